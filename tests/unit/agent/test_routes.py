"""What the agent answers: anybody may ask whether it is well; only operators may see or do more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forewarn.agent.agent import Agent
from forewarn.agent.configuration import Configuration
from forewarn.agent.listener import ListenerReply, ListenerRequest
from forewarn.agent.routes import AgentRoutes
from forewarn.agent.rule import Rule
from forewarn.agent.run import _summarize_state
from forewarn.client import AsyncClient
from forewarn.clock import RealClock
from tests.support.occasion import an_event
from tests.support.quick_steps import QuickSteps
from tests.support.records import DRAIN, NOW, A, B, InMemory, document

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-the-agent"
COMMANDS = ("/approve", "/recover", "/retry")


@pytest.fixture
def agent() -> Agent:
    configuration = Configuration(name="web-0", rule=(Rule(prepare=(DRAIN,)),))
    return Agent(configuration, client=AsyncClient(), clock=RealClock(), steps=QuickSteps(), storage=InMemory())


async def ask(agent: Agent, path: str, method: str = "GET", token: str | None = TOKEN, body: bytes = b"") -> Any:  # noqa: ANN401 - text or JSON
    reply = await send(agent, path, method, token, body)
    return reply.status, read(reply)


async def send(
    agent: Agent, path: str, method: str = "GET", token: str | None = TOKEN, body: bytes = b""
) -> ListenerReply:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    incoming = ListenerRequest(method=method, path=path, headers=headers, body=body)
    return await AgentRoutes(agent, TOKEN).answer_request(incoming)


def read(reply: ListenerReply) -> Any:  # noqa: ANN401 - text or JSON
    text = reply.body.decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


@pytest.mark.parametrize("token", [None, "", "another", f"{TOKEN}x", TOKEN[:-1]])
async def test_without_the_token_nothing_is_shown_or_done(agent: Agent, token: str | None) -> None:
    for path, method in (("/status", "GET"), *((path, "POST") for path in COMMANDS)):
        status, answer = await ask(agent, path, method, token)
        assert (status, answer["error"]["code"]) == (401, "unauthorized")


async def test_a_load_balancer_needs_no_token_to_learn_whether_the_vm_takes_work(agent: Agent) -> None:
    assert await ask(agent, "/drainz", token=None) == (200, "in service\n")
    agent._registry.observe_document(document(an_event(id=A, resources=("web-0",))), NOW)
    assert await ask(agent, "/drainz/", token=None) == (503, f"out of service: Freeze {A}\n")


async def test_a_supervisor_learns_why_the_agent_is_not_ready(agent: Agent) -> None:
    assert await ask(agent, "/healthz", token=None) == (200, "ok\n")
    assert await ask(agent, "/readyz", token=None) == (503, "not ready: no answer yet\n")
    agent.last_error = "connection refused"
    assert await ask(agent, "/readyz", token=None) == (503, "not ready: connection refused\n")


async def test_the_status_has_each_event_and_what_it_waits_for(agent: Agent) -> None:
    agent._registry.observe_document(document(an_event(id=A, resources=("web-0",))), NOW)
    status, answer = await ask(agent, "/status")
    assert status == 200
    assert (answer["vm"], answer["ready"], answer["last_error"]) == ("web-0", False, None)
    assert set(answer) == {
        *("vm", "endpoint", "ready", "drained", "dry_run", "last_answer_at", "last_error", "config_error"),
        *("waits_for_restart", "now", "events", "finished"),
    }
    [event] = answer["events"]
    assert set(event) == {
        *("event", "affects_this_vm", "rule", "state", "why", "seen_at", "prepared_at", "approved_at", "started_at"),
        *("gone_at", "notice_left_s", "steps"),
    }
    assert (event["event"]["id"], event["affects_this_vm"], event["prepared_at"]) == (A, True, None)


@pytest.mark.parametrize("path", COMMANDS)
async def test_a_command_is_a_post(agent: Agent, path: str) -> None:
    reply = await send(agent, path)
    assert (reply.status, read(reply), reply.headers) == (405, "method not allowed\n", {"allow": "POST"})


@pytest.mark.parametrize(
    ("path", "allowed"), [("/status", "GET"), ("/healthz", "GET, HEAD"), ("/metrics", "GET, HEAD")]
)
async def test_what_is_only_read_takes_no_post(agent: Agent, path: str, allowed: str) -> None:
    reply = await send(agent, path, "POST")
    assert (reply.status, read(reply), reply.headers) == (405, "method not allowed\n", {"allow": allowed})


async def test_an_unknown_path_names_those_that_exist(agent: Agent) -> None:
    status, answer = await ask(agent, "/stats")
    assert status == 404
    assert answer["error"]["message"].endswith(
        "/healthz, /readyz, /drainz, /metrics, /status, /approve, /recover, /retry"
    )


def test_systemctl_shows_how_many_events_there_are(agent: Agent) -> None:
    assert _summarize_state(agent) == "web-0: in service, 0 events"
    agent._registry.observe_document(document(an_event(id=A, resources=("web-0",))), NOW)
    assert _summarize_state(agent) == "web-0: out of service, 1 event"
    agent._registry.observe_document(document(an_event(id=A), an_event(id=B)), NOW)
    assert _summarize_state(agent) == "web-0: out of service, 2 events"
