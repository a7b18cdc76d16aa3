"""`forewarn agent install`: set up the agent as a systemd service, with an example configuration."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from forewarn.agent.configuration import load_configuration
from forewarn.agent.handlers.contract import Ran
from forewarn.errors import ConfigError

__all__ = ["EXAMPLE", "UNIT", "UNIT_FOLDER", "Run", "install", "uninstall", "unit_text"]

UNIT = "forewarn-agent.service"
UNIT_FOLDER = Path("/etc/systemd/system")

EXAMPLE = """\
# What the Forewarn agent of this VM does about maintenance events.
# `forewarn agent check` explains this file; `systemctl reload forewarn-agent` puts it into effect.

# While this line stands here, no hook runs and nothing is approved: the log says what would be done.
dry_run = true

# endpoint = "http://169.254.169.254"  # "discover" asks the DHCP server instead
# listen = "127.0.0.1:9469"            # for /drainz, /healthz, /readyz, /metrics and `forewarn agent status`

# The first rule that matches an event decides. An event that none matches is only logged.

# A pause of seconds, as of a live migration, needs no preparation: let it come soon.
[[rule]]
name = "short freeze"
types = ["Freeze"]
max_duration = "10s"
approve = "at-once"

# Anything else that is to hit this VM: stop the service first, approve, and start it again when it is over.
[[rule]]
name = "anything else"
handlers = [{ use = "systemd", units = ["my-application.service"] }]
"""

_UNIT_TEXT = """\
# Written by `forewarn agent install`, which writes it anew: keep your changes in a drop-in, which stays.
#     systemctl edit forewarn-agent

[Unit]
Description=Forewarn agent: prepares this VM for maintenance events
# Units stop in the reverse of the order in which they start. So the agent begins when what its handlers speak to is
# there, for after a reboot it has to put that back into service; and at shutdown it ends early, before they do and
# while there is a network. That is on purpose. A step that is cut off then is taken up after the boot; one that lived
# on would see its services vanish and systemd refuse new jobs, and count as failed. And /drainz falls silent at once,
# so that a load balancer looks elsewhere. Services of your own: After= in a drop-in. An unknown name does no harm.
After=network.target haproxy.service nginx.service pacemaker.service kubelet.service
# An agent that gives up is of no use: it is started again for ever.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
# The agent reads its configuration again. One that is wrong changes nothing; the log and `agent status` say so.
ExecReload=/bin/kill -HUP $MAINPID
{user}
# From systemd 254 on, RestartSteps=6 and RestartMaxDelaySec=1min in a drop-in make these pauses grow.
Restart=on-failure
RestartSec=3s
# A frozen VM wakes with a clock that has gone on: three minutes, half of which may pass unnoticed, outlast a freeze.
WatchdogSec=3min
# Only the agent is asked to end; it ends its hooks, which takes 4 s at most. What is left then is killed, also when the
# agent crashed: a hook never runs twice at a time. So what a hook starts in the background ends with the agent. Hooks
# start services with systemctl.
KillMode=mixed
TimeoutStopSec=15s
# With endpoint = "discover" the agent is not ready before a DHCP server has answered, and asks for up to 3 min 30 s.
TimeoutStartSec=5min
# Lines of the log bring their priority along. What comes without is a last word: why the agent gives up.
SyslogLevel=err
# Events that are under way, and the token of `forewarn agent status`.
StateDirectory=forewarn
StateDirectoryMode=0700

# Hooks count here as well. The agent itself takes 35 MB.
MemoryMax=1G
TasksMax=1024
# Of a hook that takes too much memory the agent reports that it failed.
OOMPolicy=continue
OOMScoreAdjust=-500

# Hooks do an administrator's work, so what follows guards against accidents, not against an attacker: whoever controls
# the agent can have systemd start anything. What is forbidden fails with "Operation not permitted" or "Read-only file
# system", which the agent reports. There are two ways to loosen it. For one hook: start it as a unit of its own,
#     systemd-run --wait --pipe --collect --property=RuntimeMaxSec=60 COMMAND
# For all hooks: a drop-in that sets an option to "no", or takes from a list of what is forbidden, for example
#     [Service]
#     SystemCallFilter=@mount
#     RestrictNamespaces=no
#
# Neither clock nor kernel are a hook's business. ProtectClock= would close all devices up to systemd 251.
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND CAP_BPF CAP_LINUX_IMMUTABLE
CapabilityBoundingSet=~CAP_LEASE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_MKNOD CAP_PERFMON CAP_SYSLOG CAP_SYS_MODULE
CapabilityBoundingSet=~CAP_SYS_PACCT CAP_SYS_RAWIO CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM
ProtectKernelLogs=yes
ProtectKernelModules=yes
# sysctl and /sys can be read, but not written.
ProtectKernelTunables=yes
# systemctl changes control groups, hooks do not.
ProtectControlGroups=yes
# /usr and /boot; not /etc and /var, where files lie that make a load balancer or nginx look elsewhere.
ProtectSystem=yes
# All of these give the agent a view of its own on what is mounted. In it, umount would succeed and change nothing for
# anybody else; so it is forbidden, and `systemctl stop data.mount` does what was meant. Containers, `ip netns exec` and
# programs out of snaps mount as well, and want the drop-in above.
SystemCallFilter=~@clock @cpu-emulation @debug @module @mount @obsolete @raw-io @swap
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native
RestrictNamespaces=yes
# Packets: arping tells the neighbours that an address has moved.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
# Root loses nothing by it: su and runuser still make it another user.
NoNewPrivileges=yes
# Not set, since hooks want it: ProtectHome (kubectl and crm keep files there), PrivateTmp (sockets of databases, files
# that are handed over), PrivateDevices (disks), ProtectProc (which processes are there), MemoryDenyWriteExecute (Java,
# Node), UMask (a marker that the web server has to read).

[Install]
WantedBy=multi-user.target
"""

_AS_ROOT = """\
# Named, although it is the default, so that hooks find HOME: kubectl and crm look there.
User=root"""

_AS_USER = """\
# sudo is of no use to hooks of this user, since NoNewPrivileges holds; what it may do, rules of polkit say.
User={user}
# So that the state lies where `sudo forewarn agent status` looks for it.
Environment=XDG_STATE_HOME=/var/lib"""

_USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@+,=-]+")
_UNIT_MODE = 0o644
_CONFIG_MODE = 0o640
_FOLDER_MODE = 0o755

Run: TypeAlias = Callable[[Sequence[str]], Ran]
"""Runs a command to its end.

Raises:
    OSError: It cannot be started.
"""


def unit_text(python: str, config: Path, user: str | None) -> str:
    """Return the text of the unit that runs the agent.

    Args:
        python: Absolute path of the interpreter that has Forewarn.
        config: Absolute path of the agent's configuration.
        user: User that the agent runs as; None for root.

    Raises:
        ConfigError: An argument cannot be written in a unit.
    """
    if not Path(python).is_absolute() or "$" in python:
        msg = f"the interpreter {python!r} cannot stand in a unit: expected an absolute path without $"
        raise ConfigError(msg)
    if user is not None and not _USER_NAME.fullmatch(user):
        msg = f"{user!r} is not the name of a user"
        raise ConfigError(msg)
    command = " ".join(map(_word, (python, "-m", "forewarn.agent", "--config", str(config))))
    return _UNIT_TEXT.format(command=command, user=_AS_USER.format(user=user) if user else _AS_ROOT)


def _word(text: str) -> str:
    """Quote one word of a command for systemd.

    Raises:
        ConfigError: The word cannot be written in a unit.
    """
    if not text.isprintable():
        msg = f"the path {text!r} cannot stand in a unit: it holds a character that cannot be printed"
        raise ConfigError(msg)
    if _PLAIN_WORD.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _run(command: Sequence[str]) -> Ran:
    # No timeout here: the unit limits how long systemd takes to start something.
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")  # noqa: S603 - ours
    return Ran(status=done.returncode, output=done.stdout, errors=done.stderr)


def install(  # noqa: PLR0913 - one for each option of the command, and two ports
    config: Path,
    *,
    unit_folder: Path = UNIT_FOLDER,
    python: str,
    is_started: bool,
    user: str | None,
    run: Run = _run,
) -> list[str]:
    """Set the agent up as a service; run again, it changes what differs.

    Args:
        config: Path of the agent's configuration; the example is written there if there is none.
        unit_folder: Folder in which systemd looks for units.
        python: Absolute path of the interpreter that has Forewarn.
        is_started: True to start it now and at every boot; otherwise it is left as it is.
        user: User that the agent runs as; None for root.
        run: Function that runs systemctl.

    Returns:
        One line for each thing done.

    Raises:
        ConfigError: It cannot be done; the message gives the remedy.
    """
    config = config.absolute()
    text = unit_text(python, config, user)
    _check_systemd(run, shlex.join([python, "-m", "forewarn.agent", "--config", str(config)]))
    group = _group_of(user)
    said = [_write_example(config, group)]
    count = len(load_configuration(config).rule)
    said.append(f"{config} is valid: {count} rule{'' if count == 1 else 's'}")
    unit = unit_folder / UNIT
    before = _read(unit)
    if before == text:
        said.append(f"{unit} is as it should be")
    else:
        _write_unit(unit, text)
        said.append(f"wrote {unit}")
    _systemctl(run, "daemon-reload")
    if is_started:
        # A running agent still uses the old unit.
        if before not in {None, text}:
            _systemctl(run, "try-restart", UNIT)
        _systemctl(run, "enable", "--now", UNIT)
        said.append("the agent runs, and starts at every boot")
    else:
        said.append(f"the agent was not started; `systemctl enable --now {UNIT}` does that")
    if user is None:
        said += _warnings(Path(python))
    return said


def uninstall(*, unit_folder: Path = UNIT_FOLDER, run: Run = _run) -> list[str]:
    """Stop the service and remove its unit; configuration, state and drop-ins stay.

    Args:
        unit_folder: Folder in which systemd looks for units.
        run: Function that runs systemctl.

    Returns:
        One line for each thing done.

    Raises:
        ConfigError: It cannot be done; the message gives the remedy.
    """
    unit = unit_folder / UNIT
    if _read(unit) is None:
        return [f"there is no {unit}: nothing is installed"]
    _check_systemd(run, "")
    _systemctl(run, "disable", "--now", UNIT)
    with _told(f"remove {unit}"):
        unit.unlink()
    _systemctl(run, "daemon-reload")
    return [f"stopped the agent and removed {unit}", "its configuration and its state were left as they are"]


def _check_systemd(run: Run, otherwise: str) -> None:
    """Check that systemd runs this machine.

    Raises:
        ConfigError: It does not.
    """
    hint = f": have what starts services here run `{otherwise}`" if otherwise else ""
    try:
        state = run(["systemctl", "is-system-running"]).output.strip()
    except OSError as error:
        msg = f"there is no systemd here (systemctl: {error.strerror}){hint}"
        raise ConfigError(msg) from error
    if state in {"", "offline", "unknown"}:
        msg = f"this machine was not booted with systemd (systemctl says {state or 'nothing'!r}){hint}"
        raise ConfigError(msg)


def _systemctl(run: Run, *arguments: str) -> None:
    """Run systemctl.

    Raises:
        ConfigError: It fails.
    """
    ran = run(["systemctl", *arguments])
    if ran.status:
        lines = [line for line in ran.errors.splitlines() if line.strip() and not line.startswith("Created symlink")]
        said = f": {lines[0].strip()}" if lines else ""
        hint = f"; `journalctl -u {UNIT} -n 20` says more" if UNIT in arguments else ""
        msg = f"systemctl {' '.join(arguments)} ended with status {ran.status}{said}{hint}"
        raise ConfigError(msg)


def _group_of(user: str | None) -> int:
    """Return the group of that user, which must be able to read the configuration; our own for root.

    Raises:
        ConfigError: There is no such user.
    """
    group = -1
    if sys.platform != "win32" and user is not None:
        import pwd

        try:
            group = pwd.getpwnam(user).pw_gid
        except KeyError as error:
            msg = f"there is no user {user}: make it, for example with `useradd --system {user}`"
            raise ConfigError(msg) from error
    return group


@contextmanager
def _told(deed: str) -> Iterator[None]:
    """Turn an error of the file system into one that gives the remedy.

    Raises:
        ConfigError: The operation failed.
    """
    try:
        yield
    except OSError as error:
        hint = ": run the command as root, for example with sudo" if isinstance(error, PermissionError) else ""
        msg = f"cannot {deed}: {error.strerror}{hint}"
        raise ConfigError(msg) from error


def _read(path: Path) -> str | None:
    """Return the content of a file; None if there is none."""
    with _told(f"read {path}"), suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="replace")
    return None


def _write_example(config: Path, group: int) -> str:
    """Write the example, unless the file exists, and return a line about the result."""
    with _told(f"write {config}"):
        if not config.parent.exists():
            config.parent.mkdir(parents=True)
            config.parent.chmod(_FOLDER_MODE)
        try:
            # O_EXCL, so that an existing configuration is never overwritten.
            descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _CONFIG_MODE)
        except FileExistsError:
            return f"kept {config}"
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(EXAMPLE)
        if sys.platform != "win32":
            os.chown(config, -1, group)
            config.chmod(_CONFIG_MODE)
    return f"wrote {config}, an example that only pretends: change it before you rely on it"


def _write_unit(unit: Path, text: str) -> None:
    """Replace a unit atomically."""
    new = unit.with_name(f".{unit.name}.new")
    with _told(f"write {unit}"):
        new.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _UNIT_MODE), "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            new.chmod(_UNIT_MODE)
            new.replace(unit)
        finally:
            new.unlink(missing_ok=True)


def _warnings(python: Path) -> list[str]:
    """Return a warning for each path that root runs and others can change."""
    return [
        f"warning: {culprit} can be changed by others than root, and root runs {path}: install Forewarn where only "
        "root may write, for example in /opt"
        for path in (python, Path(__file__))
        if (culprit := _open_to_others(path)) is not None
    ]


def _open_to_others(path: Path) -> Path | None:
    """Return the first part of a path, or of its resolved form, that others than root may change; None if none."""
    resolved = path.resolve()
    for each in (path, *path.parents, resolved, *resolved.parents):
        found = each.lstat()
        is_shared = bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (is_shared and not stat.S_ISLNK(found.st_mode)):
            return each
    return None
