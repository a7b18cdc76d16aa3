"""What `forewarn agent status` says of an event and of a step that failed, and `forewarn agent retry`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.agent_process import AgentProcess, agent_process
from tests.support.exact_endpoint import ExactEndpoint, exact_endpoint
from tests.support.processes import wait_for

EVENT = "602D9444-D2CD-49C7-8624-8643E7171297"
FRAGILE = "echo looking; echo done looking >&2; ls {folder}/mended"
RULES = f"""
[[rule]]
name = "db"
affects = "any"
prepare = [{{ shell = "{FRAGILE}" }}]
recover = [{{ shell = "echo undone >> {{folder}}/undone" }}]
"""


def shown(agent: AgentProcess) -> str:
    done = agent.forewarn("agent", "status")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# status


@pytest.mark.parametrize(
    ("resources", "is_mine", "words"),
    [
        (["vm-1"], True, "  resources  vm-1 (this VM)"),
        (["vm-0", "vm-1", "vm-2"], True, "  resources  vm-1 (this VM), vm-0, vm-2"),
        (["vm-0", "vm-2"], False, "  resources  vm-0, vm-2, not this VM"),
        ([f"vm-{n}" for n in range(1, 40)], True, "vm-20, 19 more"),
    ],
)
def test_status_shows_whose_event_it_is(tmp_path: Path, resources: list[str], is_mine: bool, words: str) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url) as agent:
        endpoint.show(EVENT, Resources=resources)
        wait_for(agent.event)
        assert words in shown(agent)
        told = json.loads(agent.forewarn("agent", "status", "--json").stdout)["events"][0]
        assert (told["event"]["resources"], told["affects_this_vm"]) == (resources, is_mine)


def test_status_shows_why_a_command_failed(tmp_path: Path) -> None:
    rules = "[[rule]]\nprepare = [{ shell = 'seq 1 30; exit 3' }]\n"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        endpoint.show(EVENT)
        run = agent.wait_for_state("failed")["steps"]["prepare"]
        assert (run["exit_status"], run["has_timed_out"]) == (3, False)
        assert run["reason"] == "seq 1 30; exit 3 ended with status 3: 30"
        assert run["output"].endswith("29\n30\n")
        lines = shown(agent).splitlines()
        place = next(n for n, line in enumerate(lines) if "prepare failed" in line)
        assert "ended with status 3: 30" in lines[place]
        assert lines[place + 1].split() == ["exit", "status", "3"]
        assert [line.split()[-1] for line in lines[place + 2 : place + 12]] == [str(n) for n in range(21, 31)]


def test_status_shows_that_a_command_took_too_long_and_what_it_said_meanwhile(tmp_path: Path) -> None:
    rules = "[[rule]]\nprepare = [{ shell = 'echo waiting for the disk; sleep 600', timeout = '2s' }]\n"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        endpoint.show(EVENT)
        run = agent.wait_for_state("failed")["steps"]["prepare"]
        assert (run["exit_status"], run["has_timed_out"]) == (None, True)
        text = shown(agent)
        assert "sleep 600 took longer than 2 s" in text
        assert [line.split() for line in text.splitlines() if "timed out" in line] == [["timed", "out", "yes"]]
        assert "waiting for the disk" in text


# retry


def failed(endpoint: ExactEndpoint, agent: AgentProcess) -> None:
    """Let the preparation of one event fail."""
    endpoint.show(EVENT)
    agent.wait_for_state("failed")


def test_a_failed_preparation_is_run_again_once_it_is_mended_and_then_approved(tmp_path: Path) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, RULES) as agent:
        failed(endpoint, agent)
        assert "forewarn agent retry" in agent.event()["why"]
        assert not endpoint.posts
        (tmp_path / "mended").touch()
        done = agent.forewarn("agent", "retry")
        assert (done.returncode, done.stdout) == (0, f"event {EVENT}: failed steps restarted\n")
        assert agent.wait_for_state("started")["steps"]["prepare"]["tries"] == 2
        assert endpoint.statuses() == ["Started"]


def test_a_retry_that_fails_again_says_so_and_is_undone_at_the_end(tmp_path: Path) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, RULES) as agent:
        failed(endpoint, agent)
        done = agent.forewarn("agent", "retry", EVENT.lower(), "--json")
        assert json.loads(done.stdout) == {"event_ids": [EVENT]}
        wait_for(lambda: (run := agent.event()["steps"]["prepare"])["state"] == "failed" and run["tries"] == 2)
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
        assert (tmp_path / "undone").read_text() == "undone\n"


def test_what_cannot_be_retried_is_refused_with_the_reason(tmp_path: Path) -> None:
    def refused(*event_id: str) -> str:
        done = agent.forewarn("agent", "retry", *event_id)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    rules = "[[rule]]\nbefore_approval = [['false']]\n"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        assert refused() == "forewarn: no step has failed\n"
        assert refused(EVENT) == f"forewarn: there is no event {EVENT}\n"
        endpoint.show(EVENT)
        wait_for(lambda: (event := agent.event()) and "before-approval" in event["steps"])
        endpoint.start()
        agent.wait_for_state("started")
        late = "too late to retry the failed steps: the event has moved on, or NotBefore is near"
        assert refused() == f"forewarn: {late}\n"
        assert refused(EVENT) == f"forewarn: {late}\n"


def test_a_preparation_that_failed_before_the_start_is_begun_again_after_it_by_a_retry_only(tmp_path: Path) -> None:
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, RULES) as agent:
        failed(endpoint, agent)
        endpoint.start()
        assert agent.wait_for_state("started")["steps"]["prepare"]["tries"] == 1
        (tmp_path / "mended").touch()
        assert agent.forewarn("agent", "retry").returncode == 0
        wait_for(lambda: (run := agent.event()["steps"]["prepare"])["state"] == "done" and run["tries"] == 2)
        assert not endpoint.posts
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
        assert (tmp_path / "undone").read_text() == "undone\n"


def test_a_recovery_can_be_retried(tmp_path: Path) -> None:
    rules = f"[[rule]]\nprepare = [['true']]\nrecover = [{{ shell = '{FRAGILE}' }}]\n"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        endpoint.show(EVENT)
        agent.wait_for_state("started")
        endpoint.clear()
        agent.wait_for_state("recovery-failed")
        (tmp_path / "mended").touch()
        assert agent.forewarn("agent", "retry").returncode == 0
        wait_for(lambda: agent.event() is None)
        assert agent.status()["finished"][0]["outcome"] == "recovered"
