"""The tutorial about the agent, followed as a reader would: what it shows is typed, what it promises comes out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support import namespaces
from tests.support.documents import ROOT, files_in
from tests.support.terminal import Block, blocks, terminal

pytestmark = pytest.mark.begins_first(100)

PAGE = ROOT / "docs/tutorial/agent.md"
FILES = ROOT / "examples/tutorial"
PART_2 = {"without an agent", "what that cost"}
_TOOLS = ("haproxy", "curl", "unshare", "start-stop-daemon")
_SENT_MIN = 500


def _missing() -> str | None:
    return namespaces.missing() or next((tool for tool in _TOOLS if shutil.which(tool) is None), None)


def needs_machines(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that goes through the tutorial."""
    for mark in (
        pytest.mark.slow,
        pytest.mark.namespaces,
        pytest.mark.skipif(_missing() is not None, reason=f"the tutorial needs {_missing()}"),
        pytest.mark.timeout(600),
    ):
        test = mark(test)
    return test


# What is promised


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of all clients.

    Attributes:
        counted: By how much both counters went up together.
    """

    sent: int
    answered: int
    counted: int
    lost: int

    @property
    def is_without_loss(self) -> bool:
        """Whether every request was answered and counted."""
        return self.sent == self.answered == self.counted and self.lost == 0


_OUTCOME = re.compile(r"sent (\d+), answered (\d+), counted (-?\d+), lost (\d+),")


def outcome(output: str) -> Outcome:
    """What the clients said at their end."""
    found = _OUTCOME.search(output)
    assert found is not None, output
    sent, answered, counted, lost = (int(found[number]) for number in range(1, 5))
    return Outcome(sent, answered, counted, lost)


@pytest.mark.parametrize("name", sorted(files_in(PAGE)))
def test_a_file_that_the_tutorial_shows_is_the_one_that_it_uses(name: str) -> None:
    assert files_in(PAGE)[name] == (FILES / name).read_text()


def test_what_the_tutorial_shows_of_the_other_configuration_is_in_it() -> None:
    shown = re.search(r"\n```\n(    option httpchk\n.*?)```\n", PAGE.read_text(), re.DOTALL)
    assert shown is not None
    assert shown[1] in (FILES / "drainz/haproxy.cfg").read_text()


def test_the_tutorial_asks_for_something_to_be_typed() -> None:
    names = [block.name for block in blocks(PAGE)]
    assert len(names) == len(set(names))
    assert len(names) == PAGE.read_text().count("<!-- step: ") + PAGE.read_text().count("<!-- look: ")
    assert set(names) >= PART_2 | {"freeze", "reboot", "redeploy", "the sum", "clean up"}


def _tell(record_property: Callable[[str, object], None], **outcomes: Outcome) -> None:
    """Say what was measured: `pytest -rP` shows it, and the report keeps it."""
    for name, clients in outcomes.items():
        record_property(name, str(clients))
        print(f"{name}: {clients}")  # noqa: T201


@needs_machines
def test_with_an_agent_no_request_is_lost_and_without_one_some_are(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with terminal(tmp_path) as reader:
        printed = {block.name: reader.do(block) for block in blocks(PAGE)}
        namespaces_left = reader.do(Block("look", "", "what is left", "ip netns list", ""))
        is_folder_left = (reader.home / "survive").exists()
    without, with_agent = outcome(printed["what that cost"]), outcome(printed["the sum"])
    _tell(record_property, without=without, with_agent=with_agent)
    assert without.lost > 0
    assert without.counted < without.answered
    assert with_agent.sent > _SENT_MIN
    assert with_agent.is_without_loss
    assert (namespaces_left, is_folder_left) == ("", False)


@needs_machines
def test_haproxy_may_ask_the_agent_instead_of_being_told(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """As the page says: the other files, and no part 2."""
    page = PAGE.read_text()
    assert "run `cp drainz/* .`, and leave out step 2" in page
    with terminal(tmp_path) as reader:
        printed = {block.name: reader.do(_as_for_drainz(block)) for block in blocks(PAGE) if block.name not in PART_2}
    clients = outcome(printed["the sum"])
    _tell(record_property, with_drainz=clients)
    assert clients.sent > _SENT_MIN
    assert clients.is_without_loss


def _as_for_drainz(block: Block) -> Block:
    """What is typed, and what HAProxy says, where it has its own opinion of servers."""
    script = block.script.replace("cd ~/survive\n", "cd ~/survive\ncp drainz/* .\n")
    return replace(block, script=script, prints=block.prints.replace(" MAINT ", " DOWN "))
