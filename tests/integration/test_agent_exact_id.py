"""The agent against an endpoint that compares EventIds letter by letter and answers 200 to whatever it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.agent_process import agent_process
from tests.support.exact_endpoint import exact_endpoint
from tests.support.processes import wait_for

LOWER = "a1b2c3d4-0000-4000-8000-00000000beef"
RULES = """
[[rule]]
prepare = [{ shell = 'echo "$FOREWARN_EVENT_ID" >> {folder}/ran' }]
"""


@pytest.mark.parametrize("event_id", [LOWER, LOWER.upper(), "Mixed-Case_7"])
def test_the_event_id_is_approved_exactly_as_it_is_shown(tmp_path: Path, event_id: str) -> None:
    """R47: an approval that the endpoint answers with 200 and does not take leaves the event Scheduled."""
    with exact_endpoint() as endpoint, agent_process(tmp_path, endpoint.url, RULES) as agent:
        endpoint.show(event_id)
        wait_for(lambda: endpoint.posts)
        assert endpoint.posts[0] == {"StartRequests": [{"EventId": event_id}]}
        assert agent.wait_for_state("started")["event"]["id"] == event_id
        assert (tmp_path / "ran").read_text() == f"{event_id}\n"


def test_an_operator_may_write_the_event_id_in_any_case(tmp_path: Path) -> None:
    with (
        exact_endpoint() as endpoint,
        agent_process(tmp_path, endpoint.url, '[[rule]]\napprove = "by-hand"\n') as agent,
    ):
        endpoint.show(LOWER)
        wait_for(agent.event)
        done = agent.forewarn("agent", "approve", LOWER.upper())
        assert done.stdout == f"event {LOWER} will be approved as soon as the preparation of this VM has ended\n"
        agent.wait_for_state("started")
        assert endpoint.statuses() == ["Started"]
