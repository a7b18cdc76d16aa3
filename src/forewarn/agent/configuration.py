"""Configuration of the agent: one TOML file. Errors name the key: ``rule[1].prepare[0].timeout``."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from datetime import tzinfo
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import msgspec

from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.codec import Duration, InvalidValue, convert
from forewarn.agent.rule import Rule
from forewarn.client.transport import DEFAULT_URL, check_url
from forewarn.errors import ConfigError
from forewarn.net.listen_address import parse_listen
from forewarn.util.duration import format_duration
from forewarn.util.files import read_limited

__all__ = [
    "LIVE_KEYS",
    "Configuration",
    "default_config_file",
    "default_state_file",
    "find_time_zone",
    "load_configuration",
    "merge_live_settings",
    "parse_configuration",
    "read_config_text",
    "read_listen_settings",
]

LIVE_KEYS = ("rule", "timezone", "margin", "events_max", "history_max", "log_level")
"""Settings that take effect as soon as the file is reloaded.

The others affect connections, files or peers, and wait for a restart.
"""

_SIZE_BYTES_MAX = 1 << 20
_RULES_MAX = 200
# TOML integers have no limit, so messages do not repeat larger ones.
_NUMBER_SHOWN_MAX = 10**18
_RANGES: Mapping[str, tuple[Any, Any]] = {
    "poll_interval": (Duration(milliseconds=100), Duration(hours=1)),
    # The protocol's extension holds a request for at most 300 s (X1).
    "wait": (Duration(0), Duration(seconds=300)),
    "margin": (Duration(0), Duration(days=1)),
    "output_size_bytes_max": (0, 1 << 24),
    "events_max": (1, 10_000),
    "history_max": (0, 10_000),
}
"""Minimum and maximum of the settings that are durations or numbers."""


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

    Spec: R94, R97, R106, X1.

    Attributes:
        endpoint: URL of the metadata endpoint. With ``discover``, the agent looks for the endpoint with DHCP
            option 245.
        name: This VM's name, as in the `Resources` of events; if not set, the agent asks the endpoint for the name.
        scale_set: Name of the scale set. If the endpoint does not give this VM's name, the agent derives the name from
            the scale set and the host name.
        source_address: Local address to send requests from; if not set, the system chooses the address.
        poll_interval: Interval between polls, if the endpoint supports no long polls.
        wait: Maximum duration of a long poll: the endpoint holds the request until something changes. With ``0s``, the
            agent makes no long polls.
        state_file: Path of the file with the state that survives restarts; if not set, the system's default path.
        listen: Address for /metrics, /healthz, /readyz, /drainz, `agent status` and `agent approve`; an
            empty string disables them.
        log_file: Path of the log file; if not set, the log goes to stderr, which systemd puts into the journal.
        log_level: Lowest level of messages that are logged.
        timezone: Time zone of the rules' windows: ``local``, or a name like ``Europe/Oslo``.
        margin: Safety margin: how long before `NotBefore` the agent stops the steps `prepare` and `before-approval`, if
            they are still running.
        output_size_bytes_max: Maximum number of bytes that the agent keeps of each output stream of a hook (standard
            output and standard error). Of longer output, the agent keeps the end.
        events_max: Maximum number of events that the agent handles at the same time; further events are only logged.
        history_max: Number of finished events that `agent status` shows.
        dry_run: True to only log the hooks, handlers and approvals that the agent would carry out.
        together: How the VMs of one event agree on which of them approves; see `[together]` below.
        rule: The rules; the first rule that matches an event decides what the agent does.
    """

    endpoint: str = DEFAULT_URL
    name: str = ""
    scale_set: str = ""
    source_address: str = ""
    poll_interval: Duration = Duration(seconds=1)
    wait: Duration = Duration(seconds=20)
    state_file: str = ""
    listen: str = "127.0.0.1:9469"
    log_file: str = ""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    timezone: str = "local"
    margin: Duration = Duration(seconds=5)
    output_size_bytes_max: int = 64 << 10
    events_max: int = 1000
    history_max: int = 50
    dry_run: bool = False
    together: TogetherSettings = TogetherSettings()
    rule: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        """Refuse, by an InvalidValue, what is out of its range or not of the expected form."""
        if self.endpoint != "discover":
            _check_text("endpoint", check_url, self.endpoint)
        if self.source_address:
            _check_text("source_address", _check_address, self.source_address)
        if self.listen:
            _check_text("listen", parse_listen, self.listen)
        _check_text("timezone", find_time_zone, self.timezone)
        _check_text("state_file", _check_path, self.state_file)
        _check_text("log_file", _check_path, self.log_file)
        for key, (least, most) in _RANGES.items():
            value = getattr(self, key)
            if not least <= value <= most:
                given, low, high = map(_format_quantity, (value, least, most))
                raise InvalidValue(f"{given} is out of range: expected {low} to {high}", key)
        if len(self.rule) > _RULES_MAX:
            raise InvalidValue(f"too many rules: expected at most {_RULES_MAX}", "rule", _RULES_MAX)

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


def _check_text(key: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except (ValueError, ConfigError) as error:
        raise InvalidValue(str(error), key) from error


def _check_address(text: str) -> None:
    try:
        ip_address(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IP address: expected for example 10.0.0.4") from error


def _check_path(text: str) -> None:
    if "\0" in text:
        raise ValueError("a path cannot contain a NUL character")


def _format_quantity(value: Duration | int) -> str:
    if isinstance(value, Duration):
        return format_duration(value)
    return str(value) if abs(value) < _NUMBER_SHOWN_MAX else "it"


def find_time_zone(name: str) -> tzinfo | None:
    """Return the time zone of that name for `datetime.astimezone`; None for this machine's own.

    Raises:
        ValueError: There is no such time zone.
    """
    if name == "local":
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError) as error:
        raise ValueError(f"{name!r} is not a time zone: expected 'local' or for example 'Europe/Oslo'") from error


def load_configuration(path: Path) -> Configuration:
    """Read and check a configuration file.

    Raises:
        ConfigError: One line that names the file, the key and what was expected.
    """
    return parse_configuration(read_config_text(path), str(path))


def read_config_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: One line that names the file and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            content = read_limited(file, _SIZE_BYTES_MAX)
    except FileNotFoundError as error:
        msg = f"configuration file {path} does not exist: create it, or name another file with --config"
        raise ConfigError(msg) from error
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        # Editors on Windows may begin the file with a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: not valid UTF-8, which TOML requires (at line {line})") from error


def parse_configuration(text: str, source: str = "configuration") -> Configuration:
    """Parse and check the text of a configuration.

    Args:
        text: TOML.
        source: Name of the source in errors.

    Raises:
        ConfigError: One line that names the key and what was expected; for invalid TOML, the line and column.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{source}: not valid TOML: {'nested too deeply' if isinstance(error, RecursionError) else error}"
        raise ConfigError(msg) from error
    try:
        return convert(content, Configuration)
    except msgspec.ValidationError as error:
        # Imported only when needed: an idle agent must not hold what only errors use.
        from forewarn.agent.config_problem import describe_problem

        raise ConfigError(f"{source}: {describe_problem(error, content, Configuration)}") from error


def merge_live_settings(current: Configuration, loaded: Configuration) -> tuple[Configuration, tuple[str, ...]]:
    """Return the configuration in effect from now on, and the keys that differ but wait for a restart.

    Args:
        current: Configuration in effect.
        loaded: Configuration in the file.
    """
    merged = msgspec.structs.replace(current, **{key: getattr(loaded, key) for key in LIVE_KEYS})
    keys = tuple(key for key in Configuration.__struct_fields__ if getattr(merged, key) != getattr(loaded, key))
    return merged, keys


def read_listen_settings(text: str) -> Configuration:
    """Return a configuration with only the agent's address and state file, from a text that may be wrong elsewhere.

    Raises:
        ConfigError: Not even these can be read.
    """
    try:
        content = tomllib.loads(text)
        # Other keys are ignored: `agent status` must reach an agent that runs with the previous, valid file.
        return convert({key: content[key] for key in ("listen", "state_file") if key in content}, Configuration)
    except (ValueError, RecursionError) as error:
        raise ConfigError("cannot read the agent's address from the configuration") from error
