"""Messages that the agent posts to Slack, Teams, Discord and others, as a real server receives them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_process import agent_process
from tests.support.exact_endpoint import exact_endpoint
from tests.support.messages import CHECKS
from tests.support.processes import wait_for

EVENT = "602D9444-D2CD-49C7-8624-8643E7171297"
NASTY = 'He said "stop"}\\ and\nleft $vm <!channel> @everyone'
OWN = """
body = '''
{
  "summary": "$event_type of $event_resources",
  "details": {"text": "${event_description}", "price": "5 $$"},
  "tags": ["$step", 1, null]
}
'''
"""


@pytest.fixture
def posted() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """The URL of a server, and what was posted there: content types and JSON, in order."""
    got: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(202)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base calls it
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("name", CHECKS)
def test_a_message_has_the_form_of_its_service_at_every_step(
    tmp_path: Path, posted: tuple[str, list[tuple[str, Any]]], name: str
) -> None:
    url, got = posted
    hook = f"[{{ webhook = '{url}', template = '{name}' }}]"
    rules = f"[[rule]]\nprepare = {hook}\nbefore_approval = {hook}\nstarted = {hook}\nrecover = {hook}\n"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules) as agent:
        endpoint.show(EVENT, Description=NASTY, Resources=["vm-1", "web_vmss_0"])
        wait_for(lambda: len(got) == 3)
        endpoint.clear()
        wait_for(lambda: agent.event() is None)
    assert len(got) == 4
    for (content_type, message), words in zip(
        got, ("is announced", "is about to be approved", "has started", "is over"), strict=True
    ):
        assert content_type == "application/json"
        CHECKS[name](message)
        assert f"Reboot of vm-1 and 1 more {words}" in json.dumps(message)
        assert "He said" in json.dumps(message)


def test_an_alert_says_in_the_message_why(tmp_path: Path, posted: tuple[str, list[tuple[str, Any]]]) -> None:
    url, got = posted
    rules = f"[[rule]]\nprepare = [['false']]\nalert = [{{ webhook = '{url}', template = 'slack' }}]\n"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules):
        endpoint.show(EVENT)
        wait_for(lambda: got)
    ((_, message),) = got
    assert message["text"] == "Reboot of vm-1: a step has failed"
    assert message["blocks"][1]["fields"][-1]["text"] == "*Reason*\nstep prepare failed: false ended with status 1"


def test_json_of_ones_own_arrives_whole_whatever_the_values_hold(
    tmp_path: Path, posted: tuple[str, list[tuple[str, Any]]]
) -> None:
    url, got = posted
    rules = f"[[rule]]\n[[rule.prepare]]\nwebhook = '{url}'\n{OWN}"
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, rules):
        endpoint.show(EVENT, Description=NASTY, Resources=["vm-1", "vm-2"])
        wait_for(lambda: got)
    assert got[0][1] == {
        "summary": "Reboot of vm-1, vm-2",
        "details": {"text": NASTY, "price": "5 $"},
        "tags": ["prepare", 1, None],
    }
