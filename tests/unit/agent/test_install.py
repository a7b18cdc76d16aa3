"""What `forewarn agent install` writes and asks of systemd; a list of commands plays systemctl."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from forewarn.agent.configuration import load_configuration, parse_configuration
from forewarn.agent.handlers.contract import CommandResult
from forewarn.agent.install import EXAMPLE, UNIT, install_service, render_unit, uninstall_service
from forewarn.errors import ConfigError
from tests.support.nobody import as_nobody

ROOT = Path(__file__).parents[3]
PACKAGED = ROOT / "packaging" / UNIT
IS_ROOT = os.geteuid() == 0


class Systemctl:
    """Takes down what is asked, and answers as it was told to.

    Attributes:
        asked: The arguments of every call.
        answers: By the first argument; everything else succeeds.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, CommandResult | OSError] = {
            "is-system-running": CommandResult(status=1, output="degraded\n", errors="")
        }

    def __call__(self, command: Sequence[str]) -> CommandResult:
        program, *arguments = command
        assert program == "systemctl"
        self.asked.append(" ".join(arguments))
        answer = self.answers.get(arguments[0], CommandResult(status=0, output="", errors=""))
        if isinstance(answer, OSError):
            raise answer
        return answer


class Machine:
    """Where something is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "etc" / "agent.toml"
        self.unit = folder / "system" / UNIT
        self.unit.parent.mkdir()
        self.systemctl = Systemctl()

    def install(self, *, is_started: bool = True, user: str | None = None, python: str = sys.executable) -> list[str]:
        return install_service(
            self.config,
            unit_folder=self.unit.parent,
            python=python,
            is_started=is_started,
            user=user,
            run=self.systemctl,
        )

    def uninstall(self) -> list[str]:
        return uninstall_service(unit_folder=self.unit.parent, run=self.systemctl)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# The files in the repository


def test_the_packaged_unit_is_the_one_that_is_rendered() -> None:
    text = render_unit("/usr/bin/python3", Path("/etc/forewarn/agent.toml"), None)
    assert PACKAGED.read_text() == text
    assert max(map(len, text.splitlines())) <= 120


def test_the_example_is_the_one_in_the_repository_and_only_pretends() -> None:
    assert (ROOT / "examples" / "agent.toml").read_text() == EXAMPLE
    configuration = parse_configuration(EXAMPLE)
    assert configuration.dry_run
    assert len(configuration.rule) == 2
    assert len(EXAMPLE.splitlines()) <= 25


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of Debian's systemd")
def test_systemd_understands_the_unit_and_its_exposure_is_the_one_in_the_docs(tmp_path: Path) -> None:
    """A directory of its own: a unit of that name may be installed here."""
    unit = tmp_path / UNIT
    unit.write_text(render_unit(sys.executable, Path("/etc/forewarn/agent.toml"), None))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=60", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    exposure = re.search(r"exposure level for .*: ([0-9.]+) ", done.stdout)
    assert exposure is not None
    version = re.search(r"systemd (\d+)", subprocess.check_output(["systemd-analyze", "--version"], text=True))
    assert version is not None
    if version[1] == "252":  # others count differently
        assert f"{exposure[1]} of 10 (systemd 252)" in (ROOT / "docs" / "how-to" / "agent-install.md").read_text()


# The text of the unit


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("/etc/forewarn/agent.toml", "/etc/forewarn/agent.toml"),
        ("/etc/a b.toml", '"/etc/a b.toml"'),
        ("/etc/100%.toml", '"/etc/100%%.toml"'),
        ("/etc/$HOME.toml", '"/etc/$$HOME.toml"'),
        ('/etc/"q".toml', '"/etc/\\"q\\".toml"'),
        ("/etc/back\\slash.toml", '"/etc/back\\\\slash.toml"'),
        ("/etc/grüße;.toml", '"/etc/grüße;.toml"'),
    ],
)
def test_a_path_is_written_so_that_systemd_reads_it_back(config: str, said: str) -> None:
    text = render_unit("/opt/forewarn/bin/python", Path(config), None)
    assert f"\nExecStart=/opt/forewarn/bin/python -m forewarn.agent --config {said}\n" in text


@pytest.mark.parametrize("config", ["/etc/a\nb.toml", "/etc/\x1b.toml", "/etc/\udcff.toml"])
def test_a_path_that_no_unit_can_say_is_refused(config: str) -> None:
    with pytest.raises(ConfigError, match="in a unit: it contains a non-printable character"):
        render_unit("/usr/bin/python3", Path(config), None)


@pytest.mark.parametrize("python", ["", "python3", "./python", "/opt/$x/python"])
def test_an_interpreter_is_named_by_an_absolute_path(python: str) -> None:
    with pytest.raises(ConfigError, match="expected an absolute path without"):
        render_unit(python, Path("/etc/forewarn/agent.toml"), None)


def test_another_user_is_named_in_the_unit_and_keeps_its_state_at_the_same_place() -> None:
    text = render_unit("/usr/bin/python3", Path("/etc/forewarn/agent.toml"), "web")
    assert "\nUser=web\n" in text
    assert "\nEnvironment=XDG_STATE_HOME=/var/lib\n" in text
    assert "User=root" not in text
    assert "{" not in text


@pytest.mark.parametrize("user", ["", "a b", "a\nExecStartPre=/bin/evil", "-x", "0"])
def test_what_is_no_name_of_a_user_is_refused(user: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid user name"):
        render_unit("/usr/bin/python3", Path("/etc/forewarn/agent.toml"), user)


# Installing


def test_everything_is_written_and_started(machine: Machine) -> None:
    said = machine.install()
    assert machine.config.read_text() == EXAMPLE
    assert machine.unit.read_text() == render_unit(sys.executable, machine.config, None)
    assert machine.systemctl.asked == ["is-system-running", "daemon-reload", f"enable --now {UNIT}"]
    assert said[:4] == [
        f"wrote {machine.config}, an example in dry-run mode: edit it before you rely on it",
        f"{machine.config} is valid: 2 rules",
        f"wrote {machine.unit}",
        "the agent is running, and starts at every boot",
    ]
    assert (machine.config.stat().st_mode & 0o777, machine.unit.stat().st_mode & 0o777) == (0o640, 0o644)
    assert [file.name for file in machine.unit.parent.iterdir()] == [UNIT]


def test_done_again_it_changes_nothing(machine: Machine) -> None:
    machine.install()
    before = machine.unit.stat()
    machine.systemctl.asked.clear()
    said = machine.install()
    assert f"kept {machine.config}" in said
    assert f"{machine.unit} is up to date" in said
    assert machine.unit.stat().st_ino == before.st_ino
    assert machine.systemctl.asked == ["is-system-running", "daemon-reload", f"enable --now {UNIT}"]


def test_what_is_configured_is_never_overwritten(machine: Machine) -> None:
    machine.config.parent.mkdir()
    machine.config.write_text("dry_run = false\n")
    machine.install()
    assert machine.config.read_text() == "dry_run = false\n"


def test_an_agent_that_runs_with_an_older_unit_is_restarted(machine: Machine) -> None:
    machine.install()
    machine.unit.write_text("[Service]\n")
    (machine.unit.parent / f".{UNIT}.forewarn").write_text("left behind")
    machine.systemctl.asked.clear()
    machine.install()
    assert machine.unit.read_text() == render_unit(sys.executable, machine.config, None)
    assert machine.systemctl.asked[1:] == ["daemon-reload", f"try-restart {UNIT}", f"enable --now {UNIT}"]
    assert [file.name for file in machine.unit.parent.iterdir()] == [UNIT]


def test_it_need_not_be_started(machine: Machine) -> None:
    said = machine.install(is_started=False)
    assert machine.systemctl.asked == ["is-system-running", "daemon-reload"]
    assert f"the agent was not started; run `systemctl enable --now {UNIT}` to start it" in said


def test_a_relative_configuration_is_made_absolute(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine.folder)
    machine.config = Path("agent.toml")
    machine.install()
    assert f"--config {machine.folder}/agent.toml\n" in machine.unit.read_text()


def test_a_wrong_configuration_is_told_before_anything_is_changed(machine: Machine) -> None:
    machine.config.parent.mkdir()
    machine.config.write_text("listen = 1\n")
    with pytest.raises(ConfigError, match=rf"^{machine.config}: listen: "):
        machine.install()
    assert not machine.unit.exists()
    assert machine.systemctl.asked == ["is-system-running"]


def test_without_systemd_it_says_how_to_run_the_agent_otherwise(machine: Machine) -> None:
    machine.systemctl.answers["is-system-running"] = FileNotFoundError(2, "No such file or directory")
    with pytest.raises(ConfigError) as caught:
        machine.install()
    assert caught.value.message == (
        "systemd is not available (systemctl: No such file or directory); have your service manager run "
        f"`{sys.executable} -m forewarn.agent --config {machine.config}`"
    )
    assert not machine.config.exists()


@pytest.mark.parametrize("state", ["offline", "unknown", ""])
def test_where_systemd_is_not_the_first_process_nothing_is_written(machine: Machine, state: str) -> None:
    machine.systemctl.answers["is-system-running"] = CommandResult(status=1, output=f"{state}\n", errors="")
    with pytest.raises(ConfigError, match=r"^this machine was not booted with systemd .*`.* -m forewarn\.agent"):
        machine.install()
    assert not machine.config.exists()


def test_what_systemd_refuses_is_told_in_its_words(machine: Machine) -> None:
    errors = f"Created symlink /a -> /b.\nJob for {UNIT} failed because ...\nSee more.\n"
    machine.systemctl.answers["enable"] = CommandResult(status=1, output="", errors=errors)
    with pytest.raises(ConfigError) as caught:
        machine.install()
    assert caught.value.message == (
        f"systemctl enable --now {UNIT} ended with status 1: Job for {UNIT} failed because ...; "
        f"see `journalctl -u {UNIT} -n 20`"
    )
    machine.systemctl.answers["daemon-reload"] = CommandResult(status=1, output="", errors="")
    with pytest.raises(ConfigError, match=r"^systemctl daemon-reload ended with status 1$"):
        machine.install()


@pytest.mark.parametrize("is_configured", [True, False])
def test_who_is_not_root_is_told_so(machine: Machine, is_configured: bool) -> None:
    machine.unit = Path("/usr/lib") / UNIT
    machine.config = Path("/dev/null") if is_configured else Path("/usr/lib/forewarn/agent.toml")
    with (
        as_nobody(),
        pytest.raises(ConfigError, match=r"^cannot write /usr/lib/.*: Permission denied: run the command as root, "),
    ):
        machine.install()


def test_a_folder_that_is_none_is_told(machine: Machine) -> None:
    machine.config = machine.folder / "system" / "file" / "agent.toml"
    (machine.folder / "system" / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^cannot write .*/file/agent\.toml: Not a directory$"):
        machine.install()


# Users


def test_a_user_that_does_not_exist_is_told_with_what_makes_it(machine: Machine) -> None:
    with pytest.raises(ConfigError, match=r"^there is no user nobody-knows: .*`useradd --system nobody-knows`"):
        machine.install(user="nobody-knows")
    assert not machine.config.exists()


@pytest.mark.skipif(not IS_ROOT, reason="gives a file to another group, so needs root")
def test_the_example_can_be_read_by_who_runs_the_agent(machine: Machine) -> None:
    machine.install(user="nobody")
    assert machine.config.stat().st_gid == pwd.getpwnam("nobody").pw_gid
    assert machine.config.parent.stat().st_mode & 0o777 == 0o755
    assert load_configuration(machine.config).dry_run


@pytest.mark.skipif(not IS_ROOT, reason="gives a file to another user, so needs root")
def test_root_is_warned_of_an_interpreter_that_others_can_change(machine: Machine) -> None:
    python = machine.folder / "python"
    python.symlink_to(sys.executable)
    assert not [line for line in machine.install(python=str(python)) if line.startswith("warning: ")]
    os.chown(python, 65534, -1, follow_symlinks=False)
    (warning,) = [line for line in machine.install(python=str(python)) if line.startswith("warning: ")]
    assert warning.startswith(f"warning: root runs {python}, but other users can change {python}: ")
    assert not [line for line in machine.install(python=str(python), user="nobody") if line.startswith("warning: ")]
    python.unlink()
    python.symlink_to(sys.executable)
    machine.folder.chmod(0o777)
    said = machine.install(python=str(python))
    assert [line for line in said if f", but other users can change {machine.folder}: " in line]


# Taking it away


def test_the_unit_goes_and_everything_else_stays(machine: Machine) -> None:
    machine.install()
    machine.systemctl.asked.clear()
    said = machine.uninstall()
    assert machine.systemctl.asked == ["is-system-running", f"disable --now {UNIT}", "daemon-reload"]
    assert said[0] == f"stopped the agent and removed {machine.unit}"
    assert (machine.unit.exists(), machine.config.exists()) == (False, True)


def test_where_nothing_is_installed_there_is_nothing_to_take_away(machine: Machine) -> None:
    assert machine.uninstall() == [f"there is no {machine.unit}: nothing is installed"]
    assert machine.systemctl.asked == []


def test_a_unit_that_does_not_stop_is_not_removed(machine: Machine) -> None:
    machine.install()
    machine.systemctl.answers["disable"] = CommandResult(status=1, output="", errors="Access denied\n")
    with pytest.raises(ConfigError, match=r"ended with status 1: Access denied; see `journalctl"):
        machine.uninstall()
    assert machine.unit.exists()


# The command


def test_the_command_prints_the_unit_that_it_would_install() -> None:
    command = [
        sys.executable,
        "-m",
        "forewarn",
        "agent",
        "install",
        "--print",
        "--config",
        "/etc/forewarn/agent.toml",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == render_unit(sys.executable, Path("/etc/forewarn/agent.toml"), None)
