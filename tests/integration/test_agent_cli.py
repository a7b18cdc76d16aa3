"""`forewarn agent check`, `status`, `approve` and `recover`, as somebody at a terminal uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ports import reserve_port
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment] # it is for comparing only


ANY = _Any()
CLI = (sys.executable, "-m", "forewarn")


def forewarn(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "160", "FOREWARN_AGENT_CONFIG": str(folder / "agent.toml")}
    return subprocess.run(
        [*CLI, *arguments], check=False, capture_output=True, text=True, timeout=GUARD_S, env=environment
    )


@contextmanager
def agent(folder: Path, endpoint: str, rules: str) -> Iterator[subprocess.Popen[bytes]]:
    """`forewarn agent run`, ended by SIGTERM."""
    (folder / "agent.toml").write_text(
        f'endpoint = "{endpoint}"\nstate_file = "{folder}/agent.json"\nlisten = "127.0.0.1:{reserve_port()}"\n{rules}'
    )
    with (folder / "agent.log").open("ab") as log:
        process = subprocess.Popen([*CLI, "agent", "run", "--config", str(folder / "agent.toml")], stderr=log)
    try:
        wait_for(lambda: status(folder) is not None)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD_S) == 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    settings = ("--set", "simulate_impact_after=0s", "--set", "simulate_complete_after=none")
    with served(folder, *settings) as running:
        yield running


def status(folder: Path) -> Any:  # noqa: ANN401 - JSON
    """What `agent status --json` would print, without starting a process for it; None while nobody answers."""
    listen = tomllib.loads((folder / "agent.toml").read_text())["listen"]
    try:
        token = (folder / "agent.token").read_text().strip()
        answer = httpx.get(
            f"http://{listen}/status", headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=GUARD_S
        )
    except (OSError, httpx.HTTPError):
        return None
    return answer.json()


def announce(service: Served, event_type: str = "Freeze") -> str:
    """Announce something; hands back the maintenance's id."""
    made = service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", event_type)
    return str((made["items"] if isinstance(made, dict) and "items" in made else made)[0]["id"])


# check


def test_check_explains_every_kind_of_event(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[[rule]]\ntypes = ["Freeze"]\napprove = "at-once"\n')
    done = forewarn("agent", "check", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "agent.toml is valid: 1 rule" in done.stdout
    for words in ("Freeze by Platform, 5 s: live migration", "Reboot by User: restart by a user", "approves  at once"):
        assert words in done.stdout
    told = json.loads(forewarn("agent", "check", "--json", folder=tmp_path).stdout)
    assert [each["rule"] for each in told["events"]][:3] == ["rule 1", "rule 1", "none"]


def test_check_answers_about_one_event(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[[rule]]\nmax_duration = "9s"\napprove = "at-once"\n')
    asked = ("agent", "check", "--json", "--type", "Freeze", "--duration")
    short, long = (
        json.loads(forewarn(*asked, duration, folder=tmp_path).stdout)["events"][0]["rule"]
        for duration in ("5s", "10s")
    )
    assert (short, long) == ("rule 1", "none")


def test_check_warns_of_rules_that_never_match_and_of_none_at_all(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[[rule]]\n[[rule]]\nname = "second"\ntypes = ["Freeze"]\n')
    done = forewarn("agent", "check", folder=tmp_path)
    assert done.returncode == 0
    assert "agent.toml: 'second' can never match" in done.stderr
    (tmp_path / "agent.toml").write_text("")
    assert "there are no rules: every event is only logged" in forewarn("agent", "check", folder=tmp_path).stderr


@pytest.mark.parametrize("verb", ["check", "run", "status", "approve"])
def test_a_mistake_is_one_line_with_the_file_and_the_key(verb: str, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('\n[[rule]]\napprove = "soon"\n')
    done = forewarn("agent", verb, folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"forewarn: {tmp_path}/agent.toml: rule[0].approve: ")
    assert done.stderr.count("\n") == 1


def test_a_type_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("")
    done = forewarn("agent", "check", "--type", "Frezee", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Freeze, Reboot" in done.stderr


# status, approve, recover


def test_status_says_that_no_agent_runs(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(f'state_file = "{tmp_path}/agent.json"\nlisten = "127.0.0.1:1"\n')
    (tmp_path / "agent.token").write_text("secret\n")
    done = forewarn("agent", "status", folder=tmp_path)
    assert done.returncode == 3
    assert "no agent answers at 127.0.0.1:1: start it with 'forewarn agent run'" in done.stderr


def test_a_token_that_is_not_the_agents_is_refused(service: Served, tmp_path: Path) -> None:
    with agent(tmp_path, service.metadata_url, ""):
        token = (tmp_path / "agent.token").read_text()
        assert (tmp_path / "agent.token").stat().st_mode & 0o777 == 0o600
        (tmp_path / "agent.token").write_text("another\n")
        done = forewarn("agent", "status", folder=tmp_path)
        (tmp_path / "agent.token").write_text(token)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the agent's token is required" in done.stderr


@pytest.mark.slow
def test_an_operator_approves_by_hand_what_waits_for_that(service: Served, tmp_path: Path) -> None:
    with agent(tmp_path, service.metadata_url, '[[rule]]\nname = "careful"\napprove = "by-hand"\n'):
        assert "no events" in forewarn("agent", "status", folder=tmp_path).stderr
        done = forewarn("agent", "approve", folder=tmp_path)
        assert (done.returncode, done.stderr) == (1, "forewarn: no event is waiting for approval\n")
        maintenance = announce(service)
        (event,) = wait_for(lambda: status(tmp_path)["events"])
        event_id = event["event"]["id"]
        shown = forewarn("agent", "status", folder=tmp_path).stdout
        assert event_id in shown
        assert "waiting for `forewarn agent approve`" in shown
        assert "in 14m" in shown or "in 15m" in shown
        done = forewarn("agent", "approve", event_id, folder=tmp_path)
        assert done.stdout == f"event {event_id} will be approved as soon as the preparation of this VM has ended\n"
        wait_for(lambda: status(tmp_path)["events"][0]["state"] == "started")
        service.forewarn("maintenance", "complete", maintenance)
        wait_for(lambda: not status(tmp_path)["events"])
        shown = forewarn("agent", "status", folder=tmp_path).stdout
        assert "Recently ended" in shown
        assert "recovered" in shown
        assert json.loads(forewarn("agent", "status", "--json", folder=tmp_path).stdout) == status(tmp_path) | {
            "now": ANY,
            "last_answer_at": ANY,
        }


@pytest.mark.slow
def test_a_recovery_that_failed_waits_to_be_mended_and_is_run_again(service: Served, tmp_path: Path) -> None:
    rule = f'[[rule]]\nprepare = [["true"]]\nrecover = [["ls", "{tmp_path}/mended"]]\n'
    with agent(tmp_path, service.metadata_url, rule):
        maintenance = announce(service)
        wait_for(lambda: [e for e in status(tmp_path)["events"] if e["state"] == "started"])
        service.forewarn("maintenance", "complete", maintenance)
        (event,) = wait_for(lambda: [e for e in status(tmp_path)["events"] if e["state"] == "recovery-failed"])
        assert "forewarn agent retry" in event["why"]
        assert "mended" in event["steps"]["recover"]["reason"]
        assert status(tmp_path)["drained"]
        (tmp_path / "mended").touch()
        assert forewarn("agent", "recover", folder=tmp_path).returncode == 0
        wait_for(lambda: not status(tmp_path)["events"])
        assert status(tmp_path)["finished"][0]["was_prepared"]
        assert forewarn("agent", "recover", folder=tmp_path).stderr == "forewarn: no recovery has failed\n"
