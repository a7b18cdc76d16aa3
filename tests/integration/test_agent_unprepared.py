"""The agent and an event that has started when it sees it first: prepared for at once, never approved, and reported."""

from __future__ import annotations

from pathlib import Path

from tests.support.agent_process import agent_process
from tests.support.exact_endpoint import exact_endpoint
from tests.support.processes import wait_for

EVENT = "602D9444-D2CD-49C7-8624-8643E7171297"
STEPS = ("prepare", "before_approval", "started", "recover", "canceled")
NOTING = "[[rule]]\n" + "".join(
    f"{step} = [{{ shell = 'echo {step} $FOREWARN_EVENT_STATUS >> {{folder}}/ran' }}]\n" for step in STEPS
)
TOUCHING = "[[rule]]\nhandlers = [{ use = 'file', touch = '{folder}/drained' }]\n"


def test_a_failure_without_notice_is_prepared_for_then_recovered_from_and_counted(tmp_path: Path) -> None:
    """R73, R78."""
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, NOTING) as agent:
        endpoint.show(EVENT, EventStatus="Started", NotBefore="")
        wait_for(lambda: agent.event() and "started" in agent.event()["steps"])
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
        ran = (tmp_path / "ran").read_text().splitlines()
        assert ran == ["prepare Started", "started Started", "recover Started"]
        assert not endpoint.posts
        (finished,) = agent.status()["finished"]
        assert (finished["outcome"], finished["was_prepared"]) == ("recovered", False)
        assert 'forewarn_agent_unprepared_total{type="Reboot"} 1.0' in agent.metrics()
    assert [line["event"] for line in agent.log() if line["level"] == "warning"] == [
        f"event {EVENT} started before this VM was prepared"
    ]


def test_a_handler_takes_the_vm_out_of_service_until_the_failure_is_over(tmp_path: Path) -> None:
    drained = tmp_path / "drained"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, TOUCHING) as agent:
        endpoint.show(EVENT, EventStatus="Started", NotBefore="")
        wait_for(lambda: agent.event() and agent.event()["steps"].get("started", {}).get("state") == "done")
        assert drained.exists()
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
        assert not drained.exists()


def test_a_notice_that_is_too_short_to_begin_is_prepared_for_once_it_has_started(tmp_path: Path) -> None:
    """R90: a Preempt may come with hardly any."""
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, TOUCHING) as agent:
        endpoint.show(EVENT, NotBefore="Mon, 01 Jan 2001 10:00:00 GMT")
        assert agent.wait_for_state("failed")["steps"]["prepare"]["tries"] == 0
        assert not (tmp_path / "drained").exists()
        endpoint.start()
        wait_for((tmp_path / "drained").exists)
        assert agent.wait_for_state("started")["steps"]["prepare"]["tries"] == 1
        assert not endpoint.posts


def test_a_dry_run_says_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    rules = "dry_run = true\n" + TOUCHING
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        endpoint.show(EVENT, EventStatus="Started", NotBefore="")
        wait_for(lambda: agent.event() and agent.event()["steps"].get("prepare", {}).get("state") == "done")
        assert not (tmp_path / "drained").exists()
    assert f"dry run: prepare would create the file {tmp_path}/drained" in [line["event"] for line in agent.log()]
