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
from forewarn.agent.handlers.contract import CommandResult
from forewarn.errors import ConfigError
from forewarn.util.files import replace_file

__all__ = ["EXAMPLE", "UNIT", "UNIT_FOLDER", "Run", "install_service", "render_unit", "uninstall_service"]

UNIT = "forewarn-agent.service"
UNIT_FOLDER = Path("/etc/systemd/system")

EXAMPLE = """\
# How the Forewarn agent of this VM handles maintenance events.
# `forewarn agent check` explains this file; `systemctl reload forewarn-agent` applies it.

# In a dry run, no hook runs and nothing is approved; the log shows what would be done. Remove this line to go live.
dry_run = true

# endpoint = "http://169.254.169.254"  # "discover" asks the DHCP server instead
# listen = "127.0.0.1:9469"            # for /drainz, /healthz, /readyz, /metrics and `forewarn agent status`

# The first rule that matches an event applies. An event that matches no rule is only logged.

# A pause of a few seconds, such as a live migration, needs no preparation: approve it at once.
[[rule]]
name = "short freeze"
types = ["Freeze"]
max_duration = "10s"
approve = "at-once"

# Any other event on this VM: stop the service, approve, and start the service again afterwards.
[[rule]]
name = "anything else"
handlers = [{ use = "systemd", units = ["my-application.service"] }]
"""

_UNIT_TEXT = """\
# Written by `forewarn agent install`, which overwrites it: keep your changes in a drop-in.
#     systemctl edit forewarn-agent

[Unit]
Description=Forewarn agent: prepares this VM for maintenance events
# Units stop in the reverse of their start order. So the agent starts after the services that its handlers use, because
# after a reboot it must put them back into service. At shutdown it stops first, while the services and the network
# still run. This is intended: a step that is interrupted then resumes after the boot, whereas a step that kept running
# would fail, because services disappear and systemd refuses new jobs. Also, /drainz stops answering at once, so that
# load balancers remove this VM. Add your own services with After= in a drop-in. Unknown names are ignored.
After=network.target haproxy.service nginx.service pacemaker.service kubelet.service
# Restart the agent without limit: a VM without its agent would miss events.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
# Reload the configuration. An invalid file changes nothing and is reported in the log and by `agent status`.
ExecReload=/bin/kill -HUP $MAINPID
{user}
# For growing pauses (systemd 254 or newer), set RestartSteps=6 and RestartMaxDelaySec=1min in a drop-in.
Restart=on-failure
RestartSec=3s
# The VM's clock includes a freeze, in which the agent cannot report to systemd. The agent reports every 90 s, so at
# least 90 s are left when a freeze begins: longer than any freeze.
WatchdogSec=3min
# SIGTERM goes only to the agent, which ends its hooks within 4 s. All remaining processes are then killed, also after a
# crash of the agent, so that a hook never runs twice at the same time. So background processes of a hook end with the
# agent: hooks should start services with systemctl.
KillMode=mixed
TimeoutStopSec=15s
# With endpoint = "discover", the agent is ready only after a DHCP server has answered, which may take 3 min 30 s.
TimeoutStartSec=5min
# Log lines carry their own priority. Output without a priority is an error: it explains why the agent could not run.
SyslogLevel=err
# Active events, and the token for `forewarn agent status`.
StateDirectory=forewarn
StateDirectoryMode=0700

# These limits include hooks. The agent itself uses 35 MB.
MemoryMax=1G
TasksMax=1024
# If a hook is killed because it uses too much memory, the agent keeps running and reports that the hook failed.
OOMPolicy=continue
OOMScoreAdjust=-500

# Hooks do an administrator's work, so the restrictions below protect against accidents, not attackers: anyone who
# controls the agent can have systemd start anything. A forbidden operation fails with "Operation not permitted" or
# "Read-only file system", which the agent reports. There are two ways to relax this. For one hook, use a separate unit:
#     systemd-run --wait --pipe --collect --property=RuntimeMaxSec=60 COMMAND
# For all hooks, use a drop-in that sets an option to "no" or shortens a list of forbidden items, for example
#     [Service]
#     SystemCallFilter=@mount
#     RestrictNamespaces=no
#
# Hooks need not change the clock or the kernel. ProtectClock= is not used: up to systemd 251 it closes all devices.
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND CAP_BPF CAP_LINUX_IMMUTABLE
CapabilityBoundingSet=~CAP_LEASE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_MKNOD CAP_PERFMON CAP_SYSLOG CAP_SYS_MODULE
CapabilityBoundingSet=~CAP_SYS_PACCT CAP_SYS_RAWIO CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM
ProtectKernelLogs=yes
ProtectKernelModules=yes
# sysctl and /sys are read-only.
ProtectKernelTunables=yes
# Only systemd changes control groups.
ProtectControlGroups=yes
# Protects /usr and /boot, but not /etc and /var, which hold files that drain a load balancer or nginx.
ProtectSystem=yes
# The Protect options give the agent its own mount namespace. There, umount would succeed without any effect on the rest
# of the system, so it is forbidden: use `systemctl stop data.mount` instead. Containers, `ip netns exec` and programs
# from snaps also mount, and need the drop-in above.
SystemCallFilter=~@clock @cpu-emulation @debug @module @mount @obsolete @raw-io @swap
SystemCallErrorNumber=EPERM
SystemCallArchitectures=native
RestrictNamespaces=yes
# AF_PACKET is for arping, which announces that an address has moved.
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
# This does not restrict root: su and runuser still work.
NoNewPrivileges=yes
# Not set, because it would break hooks: ProtectHome (files of kubectl and crm), PrivateTmp (database sockets, shared
# files), PrivateDevices (disks), ProtectProc (lists of processes), MemoryDenyWriteExecute (Java, Node), UMask
# (marker files that the web server reads).

[Install]
WantedBy=multi-user.target
"""

_AS_ROOT = """\
# The default user, set explicitly so that hooks have HOME: kubectl and crm read it.
User=root"""

_AS_USER = """\
# With NoNewPrivileges, hooks of this user cannot use sudo; grant them permissions with polkit rules.
User={user}
# Keeps the state where `sudo forewarn agent status` looks for it.
Environment=XDG_STATE_HOME=/var/lib"""

_USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@+,=-]+")
_UNIT_MODE = 0o644
_CONFIG_MODE = 0o640
_FOLDER_MODE = 0o755

Run: TypeAlias = Callable[[Sequence[str]], CommandResult]
"""Runs a command to its end.

Raises:
    OSError: It cannot be started.
"""


def render_unit(python: str, config: Path, user: str | None) -> str:
    """Return the text of the unit that runs the agent.

    Args:
        python: Absolute path of the interpreter that has Forewarn.
        config: Absolute path of the agent's configuration.
        user: User that the agent runs as; None for root.

    Raises:
        ConfigError: An argument cannot be written in a unit.
    """
    # systemd expands nothing in the path of the program, so an escaped $$ would stay as it is there.
    if not Path(python).is_absolute() or "$" in python:
        raise ConfigError(f"cannot use the interpreter {python!r} in a unit: expected an absolute path without $")
    if user is not None and not _USER_NAME.fullmatch(user):
        raise ConfigError(f"{user!r} is not a valid user name")
    command = " ".join(map(_quote_word, (python, "-m", "forewarn.agent", "--config", str(config))))
    return _UNIT_TEXT.format(command=command, user=_AS_USER.format(user=user) if user else _AS_ROOT)


def _quote_word(text: str) -> str:
    """Quote one word of a command for systemd.

    Raises:
        ConfigError: The word cannot be written in a unit.
    """
    if not text.isprintable():
        raise ConfigError(f"cannot use the path {text!r} in a unit: it contains a non-printable character")
    if _PLAIN_WORD.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _run_command(command: Sequence[str]) -> CommandResult:
    # No timeout here: the unit limits how long systemd takes to start something.
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")  # noqa: S603 - ours
    return CommandResult(status=done.returncode, output=done.stdout, errors=done.stderr)


def install_service(  # noqa: PLR0913 - one for each option of the command, and two ports
    config: Path,
    *,
    unit_folder: Path = UNIT_FOLDER,
    python: str,
    is_started: bool,
    user: str | None,
    run: Run = _run_command,
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
    text = render_unit(python, config, user)
    # Before anything is written, because without systemd the unit would be of no use.
    _check_systemd(run, shlex.join([python, "-m", "forewarn.agent", "--config", str(config)]))
    group = _find_group_id(user)
    said = [_write_example(config, group)]
    count = len(load_configuration(config).rule)
    said.append(f"{config} is valid: {count} rule{'' if count == 1 else 's'}")
    unit = unit_folder / UNIT
    before = _read_file(unit)
    if before == text:
        said.append(f"{unit} is up to date")
    else:
        with _explain_os_error(f"write {unit}"):
            replace_file(unit, text.encode(), mode=_UNIT_MODE)
        said.append(f"wrote {unit}")
    _run_systemctl(run, "daemon-reload")
    if is_started:
        # A running agent still uses the old unit.
        if before not in {None, text}:
            _run_systemctl(run, "try-restart", UNIT)
        _run_systemctl(run, "enable", "--now", UNIT)
        said.append("the agent is running, and starts at every boot")
    else:
        said.append(f"the agent was not started; run `systemctl enable --now {UNIT}` to start it")
    if user is None:
        said += _list_permission_warnings(Path(python))
    return said


def uninstall_service(*, unit_folder: Path = UNIT_FOLDER, run: Run = _run_command) -> list[str]:
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
    if _read_file(unit) is None:
        return [f"there is no {unit}: nothing is installed"]
    _check_systemd(run, "")
    _run_systemctl(run, "disable", "--now", UNIT)
    with _explain_os_error(f"remove {unit}"):
        unit.unlink()
    _run_systemctl(run, "daemon-reload")
    return [f"stopped the agent and removed {unit}", "kept its configuration and state"]


def _check_systemd(run: Run, fallback_command: str) -> None:
    """Check that systemd runs this machine.

    Raises:
        ConfigError: It does not.
    """
    hint = f"; have your service manager run `{fallback_command}`" if fallback_command else ""
    try:
        state = run(["systemctl", "is-system-running"]).output.strip()
    except OSError as error:
        raise ConfigError(f"systemd is not available (systemctl: {error.strerror}){hint}") from error
    # In a container, systemctl may be installed while systemd does not run. Every other state, even degraded, is fine.
    if state in {"", "offline", "unknown"}:
        raise ConfigError(f"this machine was not booted with systemd (systemctl reports {state or 'nothing'!r}){hint}")


def _run_systemctl(run: Run, *arguments: str) -> None:
    """Run systemctl.

    Raises:
        ConfigError: It fails.
    """
    ran = run(["systemctl", *arguments])
    if ran.status:
        # `systemctl enable` reports the links that it makes on stderr, where they are no errors.
        lines = [line for line in ran.errors.splitlines() if line.strip() and not line.startswith("Created symlink")]
        said = f": {lines[0].strip()}" if lines else ""
        hint = f"; see `journalctl -u {UNIT} -n 20`" if UNIT in arguments else ""
        raise ConfigError(f"systemctl {' '.join(arguments)} ended with status {ran.status}{said}{hint}")


def _find_group_id(user: str | None) -> int:
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
            msg = f"there is no user {user}: create it, for example with `useradd --system {user}`"
            raise ConfigError(msg) from error
    return group


@contextmanager
def _explain_os_error(operation: str) -> Iterator[None]:
    """Turn an error of the file system into one that gives the remedy.

    Raises:
        ConfigError: The operation failed.
    """
    try:
        yield
    except OSError as error:
        hint = ": run the command as root, for example with sudo" if isinstance(error, PermissionError) else ""
        raise ConfigError(f"cannot {operation}: {error.strerror}{hint}") from error


def _read_file(path: Path) -> str | None:
    """Return the content of a file; None if there is none."""
    with _explain_os_error(f"read {path}"), suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="replace")
    return None


def _write_example(config: Path, group: int) -> str:
    """Write the example, unless the file exists, and return a line about the result."""
    with _explain_os_error(f"write {config}"):
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
            # The group may read the file, which may hold secrets, but only root may change what the agent runs.
            os.chown(config, -1, group)
            config.chmod(_CONFIG_MODE)
    return f"wrote {config}, an example in dry-run mode: edit it before you rely on it"


def _list_permission_warnings(python: Path) -> list[str]:
    """Return a warning for each path that root runs and others can change."""
    return [
        f"warning: root runs {path}, but other users can change {culprit}: install Forewarn where only root can "
        "write, for example in /opt"
        for path in (python, Path(__file__))
        if (culprit := _find_writable_part(path)) is not None
    ]


def _find_writable_part(path: Path) -> Path | None:
    """Return the first part of a path, or of its resolved form, that others than root may change; None if none."""
    resolved = path.resolve()
    for each in (path, *path.parents, resolved, *resolved.parents):
        found = each.lstat()
        # In a sticky folder such as /tmp, others cannot replace files of root. The mode of a symbolic link has no
        # meaning.
        is_shared = bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid != 0 or (is_shared and not stat.S_ISLNK(found.st_mode)):
            return each
    return None
