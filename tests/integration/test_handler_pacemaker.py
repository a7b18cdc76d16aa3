"""The handler with Pacemaker's own programs: on a CIB file, and in a cluster of two nodes that really runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from forewarn.agent.codec import Duration
from forewarn.agent.configuration import parse_configuration
from forewarn.agent.handlers import PacemakerHandler
from forewarn.errors import HookFailed
from tests.support.documents import ROOT, files_in
from tests.support.interrupted import Fuse, crash_everywhere
from tests.support.pacemaker import InNode, Node, OnPaper, missing, missing_for_real, paper, real_cluster
from tests.support.processes import wait_for

HOW_TO = files_in(ROOT / "docs/how-to/agent-pacemaker.md")
BEGINNING = {"db": "node-1", "ip": "node-2"}
MOVED = {"db": "node-2", "ip": "node-2"}
ON_PAPER = PacemakerHandler(node="node-1", tool="crm_standby", wait=Duration(seconds=3))

pytestmark = pytest.mark.anyio


def unless(why_not: str | None) -> pytest.MarkDecorator:
    """Skipped for that reason, if there is one."""
    return pytest.mark.skipif(why_not is not None, reason=why_not or "")


needs_tools = unless(missing("crm_mon", "pacemakerd"))
needs_crm = unless(missing("crm_mon", "pacemakerd", "crm"))


def for_real(test: Any) -> Any:  # noqa: ANN401 - a test
    """A test in the cluster that runs."""
    for mark in (pytest.mark.slow, pytest.mark.namespaces, unless(missing_for_real())):
        test = mark(test)
    return test


async def why(work: Any) -> str:  # noqa: ANN401 - a coroutine
    with pytest.raises(HookFailed) as caught:
        await work
    return caught.value.message


# On paper


@needs_tools
async def test_a_node_goes_into_standby_and_comes_back(tmp_path: Path) -> None:
    occasion = OnPaper(paper(tmp_path))
    assert occasion.where == BEGINNING
    await ON_PAPER.prepare(occasion)
    assert occasion.where == MOVED
    await ON_PAPER.undo(occasion)
    assert "standby" not in occasion.cib.read_text()
    assert set(occasion.where.values()) == {"node-1", "node-2"}


@needs_tools
async def test_standby_until_the_next_reboot_is_kept_among_what_a_reboot_forgets(tmp_path: Path) -> None:
    occasion = OnPaper(paper(tmp_path))
    handler = PacemakerHandler(node="node-1", tool="crm_standby", lifetime="reboot")
    await handler.prepare(occasion)
    configuration, _, status = occasion.cib.read_text().partition("<status>")
    assert ("standby" in configuration, "standby" in status) == (False, True)
    assert occasion.where == MOVED
    await handler.undo(occasion)
    assert "standby" not in occasion.cib.read_text()


@needs_tools
async def test_a_node_that_was_in_standby_before_stays_so(tmp_path: Path) -> None:
    occasion = OnPaper(paper(tmp_path))
    occasion.do("crm_standby", "--node=node-1", "--update=on")
    await ON_PAPER.prepare(occasion)
    await ON_PAPER.undo(occasion)
    assert occasion.where == MOVED


@needs_tools
async def test_the_last_node_that_can_run_resources_does_not_leave(tmp_path: Path) -> None:
    occasion = OnPaper(paper(tmp_path))
    occasion.do("crm_standby", "--node=node-2", "--update=on")
    assert await why(ON_PAPER.prepare(occasion)) == "no other node of the cluster can run the resources of node-1"
    assert set(occasion.where.values()) == {"node-1"}


@needs_tools
async def test_a_resource_that_does_not_move_is_named(tmp_path: Path) -> None:
    occasion = OnPaper(paper(tmp_path))
    occasion.is_stuck = True
    assert await why(ON_PAPER.prepare(occasion)) == "node node-1 still runs db"


@needs_tools
async def test_a_node_that_is_not_in_the_cluster_is_told(tmp_path: Path) -> None:
    occasion = OnPaper(paper(tmp_path))
    said = await why(PacemakerHandler(node="node-3").prepare(occasion))
    assert said.startswith("the cluster has no node node-3, only node-1, node-2")


@needs_tools
async def test_a_cluster_that_cannot_be_asked_is_told_although_crm_mon_ends_with_status_0(tmp_path: Path) -> None:
    occasion = OnPaper(tmp_path / "nothing.xml")
    occasion.is_stuck = True
    said = await why(PacemakerHandler(node="node-1", patience=Duration(0)).prepare(occasion))
    assert said == "the cluster has not formed: it has no designated coordinator"
    assert occasion.memory == {}


@needs_crm
async def test_crm_is_not_believed_when_it_cannot_reach_the_node(tmp_path: Path) -> None:
    """It ends with status 0, and no host of this name is known here."""
    occasion = OnPaper(paper(tmp_path))
    handler = PacemakerHandler(node="node-1", tool="crm", wait=Duration(seconds=1))
    assert await why(handler.prepare(occasion)) == (
        "node node-1 is not in standby, although the command reported success"
    )


@needs_tools
@pytest.mark.slow
async def test_whenever_the_agent_is_killed_everything_can_be_repeated_and_put_back(tmp_path: Path) -> None:
    cib = paper(tmp_path)
    beginning = cib.read_text()

    def occasion(fuse: Fuse, memory: dict[str, Any]) -> OnPaper:
        if not memory:
            cib.write_text(beginning)
        return OnPaper(cib, fuse, memory)

    def is_prepared() -> bool:
        return OnPaper(cib).where == MOVED

    moments = await crash_everywhere(ON_PAPER, occasion, lambda: "standby" in cib.read_text(), is_prepared)
    assert moments > 10


# For real


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    with real_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(nodes: list[Node]) -> Iterator[list[Node]]:
    """Each test finds both nodes in service, and leaves them so."""
    yield nodes
    for node in nodes:
        nodes[0].do("crm_standby", f"--node={node.name}", "--delete")
    wait_for(lambda: set(nodes[0].where.values()) == {"node-1", "node-2"})


def handler_of(tool: Literal["auto", "crm_standby", "crm", "pcs"] = "auto", **settings: Any) -> PacemakerHandler:  # noqa: ANN401 - as the settings are
    return PacemakerHandler(tool=tool, **({"wait": Duration(seconds=30)} | settings))


@for_real
@pytest.mark.parametrize("tool", ["crm_standby", "crm", "pcs"])
async def test_resources_leave_a_node_and_it_comes_back(
    cluster: list[Node], tool: Literal["crm_standby", "crm", "pcs"]
) -> None:
    for node in cluster:
        other = next(each for each in cluster if each != node)
        occasion = InNode(node)
        handler = handler_of(tool)
        await handler.prepare(occasion)
        assert occasion.memory == {"node": node.name, "standby": False}
        assert node.standby == {node.name}
        wait_for(lambda other=other: set(other.where.values()) == {other.name} and len(other.where) == 2)
        await handler.react_to_start(occasion)
        await handler.undo(occasion)
        assert node.standby == set()
        wait_for(lambda other=other: set(other.where.values()) == {"node-1", "node-2"})


@for_real
@pytest.mark.parametrize("tool", ["crm_standby", "crm"])
async def test_standby_may_end_with_the_next_reboot(cluster: list[Node], tool: Literal["crm_standby", "crm"]) -> None:
    node = cluster[0]
    handler, occasion = handler_of(tool, lifetime="reboot"), InNode(node)
    await handler.prepare(occasion)
    assert node.standby == {"node-1"}
    node.stop()
    node.start()
    wait_for(lambda: (node.mon() or "").count('online="true"') == 2)
    assert node.standby == set(), "Pacemaker has forgotten it"
    await handler.undo(occasion)
    assert node.standby == set()


@for_real
async def test_standby_outlives_a_restart_and_ends_as_soon_as_the_cluster_is_together_again(
    cluster: list[Node],
) -> None:
    node = cluster[0]
    handler, occasion = handler_of(), InNode(node)
    await handler.prepare(occasion)
    node.stop()
    undone = asyncio.create_task(handler.undo(occasion))
    await asyncio.sleep(1)
    assert not undone.done()
    node.start()
    await undone
    assert node.standby == set()
    assert cluster[1].standby == set()


@for_real
async def test_a_node_in_standby_stays_so(cluster: list[Node]) -> None:
    node = cluster[0]
    node.do("pcs", "node", "standby", "node-1")
    handler, occasion = handler_of(), InNode(node)
    await handler.prepare(occasion)
    assert occasion.memory == {"node": "node-1", "standby": True}
    await handler.undo(occasion)
    assert node.standby == {"node-1"}


@for_real
async def test_of_two_nodes_that_are_hit_one_after_the_other_only_the_first_leaves(cluster: list[Node]) -> None:
    first, second = (InNode(node) for node in cluster)
    await handler_of().prepare(first)
    said = await why(handler_of(wait=Duration(seconds=2)).prepare(second))
    assert said == "no other node of the cluster can run the resources of node-2"
    assert cluster[0].standby == {"node-1"}
    await handler_of().undo(second)
    assert cluster[0].standby == {"node-1"}
    await handler_of().undo(first)
    assert cluster[0].standby == set()


@for_real
async def test_two_nodes_that_are_hit_at_the_same_moment_are_never_both_left_in_standby(cluster: list[Node]) -> None:
    occasions = [InNode(node) for node in cluster]
    handler = handler_of(wait=Duration(seconds=3))
    ends = await asyncio.gather(*(handler.prepare(each) for each in occasions), return_exceptions=True)
    assert {type(end) for end in ends} <= {HookFailed, type(None)}
    assert ends != [None, None]
    assert len(cluster[0].standby) <= 1
    for occasion in occasions:
        await handler.undo(occasion)
    assert cluster[0].standby == set()


@for_real
async def test_a_cluster_in_maintenance_mode_keeps_its_resources_and_that_is_told(cluster: list[Node]) -> None:
    node = cluster[0]
    wait_for(lambda: node.where == BEGINNING or set(node.where.values()) == {"node-1", "node-2"})
    (resource,) = [name for name, at in node.where.items() if at == "node-1"]
    node.do("crm_attribute", "--type=crm_config", "--name=maintenance-mode", "--update=true")
    try:
        handler, occasion = handler_of(wait=Duration(seconds=3)), InNode(node)
        assert await why(handler.prepare(occasion)) == f"node node-1 still runs {resource}"
        await handler.undo(occasion)
        assert node.standby == set()
    finally:
        node.do("crm_attribute", "--type=crm_config", "--name=maintenance-mode", "--delete")


# The documentation


def test_the_configuration_in_the_documentation_is_valid() -> None:
    (rule,) = parse_configuration(HOW_TO["agent.toml"]).rules
    (handler,) = rule.handlers
    assert isinstance(handler, PacemakerHandler)
    assert handler.describe_actions()[-1] == "wait until no resource runs there, for at most 9m"
