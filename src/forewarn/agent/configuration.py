"""Configuration of the agent: one TOML file. Errors name the line."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable
from datetime import datetime, tzinfo
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import msgspec

from forewarn.agent.codec import Mistake, Span, convert
from forewarn.agent.rule import Rule
from forewarn.agent.together import Together
from forewarn.client.transport import DEFAULT_URL, check_url
from forewarn.errors import ConfigError
from forewarn.net.listen import parse_listen
from forewarn.util.duration import format_span

__all__ = [
    "Configuration",
    "default_config_file",
    "default_state_file",
    "load_configuration",
    "local_time",
    "read_address",
    "read_configuration",
    "read_text",
    "to_local",
]

_SIZE_BYTES_MAX = 1 << 20
_RULES_MAX = 200
_POLL_INTERVALS = Span(milliseconds=100), Span(hours=1)
_NUMBER_SHOWN_MAX = 10**18
_WAITS = Span(0), Span(seconds=300)
_MARGINS = Span(0), Span(days=1)
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def default_config_file() -> Path:
    """Return the default path of the configuration file."""
    import platformdirs

    folder = platformdirs.site_config_dir("forewarn", appauthor=False) if sys.platform == "win32" else "/etc/forewarn"
    return Path(folder) / "agent.toml"


def default_state_file() -> Path:
    """Return the default path of the state file: in the system's folder for root, in the user's for others."""
    import platformdirs

    if sys.platform == "win32":
        folder = platformdirs.site_data_dir("forewarn", appauthor=False)
    elif os.geteuid() == 0:
        folder = "/var/lib/forewarn"
    else:
        folder = platformdirs.user_state_dir("forewarn", appauthor=False)
    return Path(folder) / "agent.json"


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the agent.

    Attributes:
        endpoint: URL of the metadata endpoint; ``discover`` looks for it with DHCP option 245 (R94).
        name: This VM's name in Resources; if empty, the endpoint is asked.
        scale_set: Name of the scale set, to derive this VM's name from its host name when the endpoint does not give it
            (R106).
        source_address: Local address to send requests from; if empty, the system chooses it.
        poll_interval: Interval between polls, where the endpoint does not hold requests (R97).
        wait: Time for which the endpoint is asked to hold a request (X1); 0s polls only.
        state_file: Path of the state that survives restarts; if empty, the system's place for it.
        listen: Address for /metrics, /healthz, /readyz, /drainz, `agent status` and `agent approve`; empty for none.
        log_file: Path of the log; if empty, stderr, which systemd puts into the journal.
        log_level: Lowest level that is logged.
        timezone: Time zone of the rules' windows: ``local``, or a name like ``Europe/Oslo``.
        margin: Time before NotBefore by which the steps before an approval must end.
        output_size_bytes_max: Maximum size of a hook's output that is kept.
        events_max: Maximum number of events handled at the same time; more are only logged.
        history_max: Number of finished events that `agent status` shows.
        dry_run: True to do everything but approvals and hooks.
        together: Agreement between the VMs of one event.
        rule: The rules; the first that matches decides.
    """

    endpoint: str = DEFAULT_URL
    name: str = ""
    scale_set: str = ""
    source_address: str = ""
    poll_interval: Span = Span(seconds=1)
    wait: Span = Span(seconds=20)
    state_file: str = ""
    listen: str = "127.0.0.1:9469"
    log_file: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    timezone: str = "local"
    margin: Span = Span(seconds=5)
    output_size_bytes_max: int = 64 << 10
    events_max: int = 1000
    history_max: int = 50
    dry_run: bool = False
    together: Together = Together()
    rule: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        """Check what types cannot express.

        Raises:
            Mistake: A value is out of its range, or is not of the expected form.
        """
        if self.endpoint != "discover":
            _check("endpoint", check_url, self.endpoint)
        if self.source_address:
            _check("source_address", _check_address, self.source_address)
        if self.listen:
            _check("listen", parse_listen, self.listen)
        _check("timezone", local_time, self.timezone)
        _check("state_file", _check_path, self.state_file)
        _check("log_file", _check_path, self.log_file)
        _check_span("poll_interval", self.poll_interval, _POLL_INTERVALS)
        _check_span("wait", self.wait, _WAITS)
        _check_span("margin", self.margin, _MARGINS)
        _check_number("output_size_bytes_max", self.output_size_bytes_max, 0, 1 << 24)
        _check_number("events_max", self.events_max, 1, 10_000)
        _check_number("history_max", self.history_max, 0, 10_000)
        if len(self.rule) > _RULES_MAX:
            msg = f"one rule too many: at most {_RULES_MAX} are read"
            raise Mistake(msg, "rule", _RULES_MAX)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, each with a name."""
        return tuple(
            rule if rule.name else msgspec.structs.replace(rule, name=f"rule {number}")
            for number, rule in enumerate(self.rule, start=1)
        )

    @property
    def state_path(self) -> Path:
        """Path of the state file."""
        return Path(self.state_file) if self.state_file else default_state_file()


def _check(key: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except (ValueError, ConfigError) as error:
        raise Mistake(str(error), key) from error


def _check_address(text: str) -> None:
    try:
        ip_address(text)
    except ValueError as error:
        msg = f"{text!r} is not an IP address: expected for example 10.0.0.4"
        raise ValueError(msg) from error


def _check_path(text: str) -> None:
    if "\0" in text:
        msg = "a path cannot hold a NUL"
        raise ValueError(msg)


def _check_span(key: str, value: Span, ends: tuple[Span, Span]) -> None:
    least, most = ends
    if not least <= value <= most:
        msg = f"{format_span(value)} is out of range: expected {format_span(least)} to {format_span(most)}"
        raise Mistake(msg, key)


def _check_number(key: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        msg = f"{value if abs(value) < _NUMBER_SHOWN_MAX else 'it'} is out of range: expected {least} to {most}"
        raise Mistake(msg, key)


def local_time(name: str) -> tzinfo | None:
    """Return the time zone of that name; None for this machine's own.

    Raises:
        ValueError: There is no such time zone.
    """
    if name == "local":
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        msg = f"{name!r} is not a time zone: expected 'local' or for example 'Europe/Oslo'"
        raise ValueError(msg) from error


def load_configuration(path: Path) -> Configuration:
    """Read and check a configuration file.

    Raises:
        ConfigError: One line that names the file, the line and what was expected.
    """
    return read_configuration(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: One line that names the file and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows that the file is too large.
            content = file.read(_SIZE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        msg = f"there is no configuration {path}: write it, or name another file with --config"
        raise ConfigError(msg) from error
    except OSError as error:
        msg = f"cannot read the configuration {path}: {error.strerror}"
        raise ConfigError(msg) from error
    if len(content) > _SIZE_BYTES_MAX:
        msg = f"{path} is larger than {_SIZE_BYTES_MAX} bytes"
        raise ConfigError(msg)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        msg = f"{path}:{line}: not UTF-8, in which TOML is written"
        raise ConfigError(msg, line=line) from error


def read_configuration(text: str, where: str = "configuration") -> Configuration:
    """Parse and check the text of a configuration.

    Args:
        text: TOML.
        where: Name of the source in errors, before the line number.

    Raises:
        ConfigError: One line that names the line and what was expected.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line, said = _unparsed(text, error)
        msg = f"{where}:{line}: not TOML: {said}"
        raise ConfigError(msg, line=line) from error
    try:
        return convert(content, Configuration)
    except msgspec.ValidationError as error:
        from forewarn.agent.fault import fault_of
        from forewarn.agent.lines import line_of

        fault = fault_of(error, content, Configuration)
        line = line_of(text, fault.keys)
        msg = f"{where}:{line}: {fault.message}"
        raise ConfigError(msg, line=line) from error


def read_address(text: str) -> Configuration:
    """Return a configuration with only the agent's address and state file, from a text that may be wrong elsewhere.

    Raises:
        ConfigError: Not even these can be read.
    """
    try:
        content = tomllib.loads(text)
        return convert({key: content[key] for key in ("listen", "state_file") if key in content}, Configuration)
    except (ValueError, RecursionError) as error:
        msg = "the configuration does not say where the agent answers"
        raise ConfigError(msg) from error


def _unparsed(text: str, error: Exception) -> tuple[int, str]:
    """Return the line at which a text stops being TOML, and the reason."""
    match = _AT.fullmatch(str(error))
    said = f"{match[1][:1].lower()}{match[1][1:]}" if match is not None else ""
    if match is not None and match[2]:
        return int(match[2]), f"{said} at column {match[3]}"
    from forewarn.agent.lines import unfinished_line

    if match is None:
        said = "a number of too many digits" if isinstance(error, ValueError) else "nested too deeply"
    return unfinished_line(text), said


def to_local(moment: datetime, zone: tzinfo | None) -> datetime:
    """Convert the time to that zone; None for this machine's own."""
    return moment.astimezone(zone)
