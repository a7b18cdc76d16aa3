"""The agent's configuration: one TOML file. What is wrong with it is told with the number of the line."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Literal

import msgspec

from forewarn.agent.codec import Span, convert
from forewarn.agent.rule import Rule
from forewarn.agent.together import Together
from forewarn.client.transport import DEFAULT_URL, check_url
from forewarn.errors import ConfigError

__all__ = [
    "Configuration",
    "default_config_file",
    "default_state_file",
    "load_configuration",
    "local_time",
    "read_configuration",
    "to_local",
]

_SIZE_BYTES_MAX = 1 << 20
_RULES_MAX = 200
_POLL_INTERVAL_S_MIN = 0.1
_WAIT_S_MAX = 300
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


def default_config_file() -> Path:
    """Where the configuration is unless told otherwise."""
    import platformdirs

    folder = platformdirs.site_config_dir("forewarn", appauthor=False) if sys.platform == "win32" else "/etc/forewarn"
    return Path(folder) / "agent.toml"


def default_state_file() -> Path:
    """Where the state is kept unless told otherwise: the system's folder for root, the user's for others."""
    import platformdirs

    if sys.platform == "win32":
        folder = platformdirs.site_data_dir("forewarn", appauthor=False)
    elif os.geteuid() == 0:
        folder = "/var/lib/forewarn"
    else:
        folder = platformdirs.user_state_dir("forewarn", appauthor=False)
    return Path(folder) / "agent.json"


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set.

    Attributes:
        endpoint: Where to ask; ``discover`` looks for it with DHCP option 245 (R94).
        name: This VM's name in Resources; empty: asked of the endpoint.
        scale_set: Name of the scale set, to derive this VM's name from its host name when the endpoint does not say
            (R106).
        source_address: Local address to ask from; empty leaves it to the system.
        poll_interval: From one poll to the next, where the endpoint does not hold requests (R97).
        wait: How long to ask the endpoint to hold a request (X1); 0s polls only.
        state_file: What must not be forgotten; empty: the system's place for it.
        listen: For /metrics, /healthz, /readyz, /drainz, `agent status` and `agent approve`; empty for none.
        log_file: Where the log goes; empty: stderr, which systemd puts into the journal.
        log_level: Least urgent lines to log.
        timezone: Of the rules' windows: ``local``, or a name like ``Europe/Oslo``.
        margin: How long before NotBefore the steps before an approval have to end.
        output_size_bytes_max: How much of a hook's output is kept.
        events_max: Most events that are dealt with at the same time; more are only logged.
        history_max: How many finished events `agent status` shows.
        dry_run: Everything but approvals and hooks.
        together: How the VMs of one event agree.
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
        """Check what types cannot say.

        Raises:
            ValueError: A value is out of its range.
        """
        if self.endpoint != "discover":
            try:
                check_url(self.endpoint)
            except ConfigError as error:
                raise ValueError(error.message) from error
        _check_range("poll_interval", self.poll_interval.total_seconds(), _POLL_INTERVAL_S_MIN, 3600, " s")
        _check_range("wait", self.wait.total_seconds(), 0, _WAIT_S_MAX, " s")
        _check_range("output_size_bytes_max", self.output_size_bytes_max, 0, 1 << 24, "")
        _check_range("events_max", self.events_max, 1, 10_000, "")
        _check_range("history_max", self.history_max, 0, 10_000, "")
        _check_range("the number of rules", len(self.rule), 0, _RULES_MAX, "")
        local_time(self.timezone)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, each with a name."""
        return tuple(
            rule if rule.name else msgspec.structs.replace(rule, name=f"rule {number}")
            for number, rule in enumerate(self.rule, start=1)
        )

    @property
    def state_path(self) -> Path:
        """Where the state is kept."""
        return Path(self.state_file) if self.state_file else default_state_file()


def _check_range(name: str, value: float, least: float, most: float, unit: str) -> None:
    if not least <= value <= most:
        msg = f"{name} is {value:g}{unit}, expected {least:g} to {most:g}{unit}"
        raise ValueError(msg)


def local_time(name: str) -> tzinfo | None:
    """The time zone of that name; None for this machine's own.

    Raises:
        ValueError: There is none of that name.
    """
    if name == "local":
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        msg = f"timezone {name!r} is not known: expected 'local' or for example 'Europe/Oslo'"
        raise ValueError(msg) from error


def load_configuration(path: Path) -> Configuration:
    """Read and check a configuration file.

    Raises:
        ConfigError: One line that names the file, the line and what was expected.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_SIZE_BYTES_MAX + 1)
        text = content.decode("utf-8-sig")
    except OSError as error:
        msg = f"cannot read the configuration {path}: {error.strerror}"
        raise ConfigError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8"
        raise ConfigError(msg) from error
    if len(content) > _SIZE_BYTES_MAX:
        msg = f"{path} is larger than {_SIZE_BYTES_MAX} bytes"
        raise ConfigError(msg)
    return read_configuration(text, str(path))


def read_configuration(text: str, where: str = "configuration") -> Configuration:
    """The configuration of that text.

    Args:
        text: TOML.
        where: Named in errors, before the number of the line.

    Raises:
        ConfigError: One line that names the line and what was expected.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = match[1] if match else str(text.count("\n") + 1)
        msg = f"{where}:{line}: not TOML: {_lowered(str(error).partition(' (at ')[0])}"
        raise ConfigError(msg, line=int(line)) from error
    try:
        return convert(content, Configuration)
    except msgspec.ValidationError as error:
        keys = _keys(str(error))
        said = _PATH.sub("", str(error)).replace("Object ", "the table ", 1).replace("`", "'")
        unknown = re.search(r"unknown field '(.+)'", said)
        line_number = _line(text, [*keys, unknown[1]] if unknown else keys)
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
        msg = f"{where}:{line_number}: {place + ': ' if place else ''}{_lowered(said)}"
        raise ConfigError(msg, line=line_number) from error


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _keys(message: str) -> list[str | int]:
    """The path at the end of msgspec's message: ``$.rule[0].types[1]``."""
    match = _PATH.search(message)
    return [name or int(index) for name, index in _STEP.findall(match[1])] if match else []


def _line(text: str, keys: list[str | int]) -> int:
    """The line at which the value of that path begins, or the deepest part of it that is there.

    Every beginning of the file that is TOML by itself is parsed; the first that holds the path ends with the statement
    that set it. So the parser says where things are, and nothing else has to know TOML.
    """
    lines = text.splitlines(keepends=True)
    while keys:
        begin = 0
        for end in range(1, len(lines) + 1):
            try:
                content = tomllib.loads("".join(lines[:end]))
            except tomllib.TOMLDecodeError:
                continue
            if _holds(content, keys):
                return 1 + next(n for n in range(begin, end) if _is_said(lines[n]))
            begin = end
        keys = keys[:-1]
    return 1


def _is_said(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _holds(content: Any, keys: list[str | int]) -> bool:  # noqa: ANN401 - parsed TOML
    for key in keys:
        try:
            content = content[key]
        except (LookupError, TypeError):
            return False
    return True


def to_local(moment: datetime, zone: tzinfo | None) -> datetime:
    """The moment in that zone; None for this machine's own."""
    return moment.astimezone(zone)
