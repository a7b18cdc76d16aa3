"""A node goes into standby when another one can take over, and comes back; what the tools say is not believed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pytest

from forewarn.agent.codec import Duration, convert
from forewarn.agent.handlers import AnyHandler, CommandResult, PacemakerHandler
from forewarn.errors import HookFailed
from tests.support.interrupted import Fragile, Fuse, crash_everywhere

pytestmark = pytest.mark.anyio

HANDLER = PacemakerHandler(tool="crm_standby")
INTO = ("crm_standby", "--node=a", "--update=on", "--lifetime=forever")
OUT = ("crm_standby", "--node=a", "--delete", "--lifetime=forever")
MON = ("crm_mon", "--one-shot", "--output-as=xml")
NO_CLUSTER = (
    '<pacemaker-result><status code="102" message="Not connected"><errors>'
    "<error>crm_mon: Connection to cluster failed: Connection refused</error></errors></status></pacemaker-result>"
)


@dataclass
class Cluster:
    """What Pacemaker's tools know.

    Attributes:
        nodes: Attributes of each, as crm_mon shows them, where they are not the usual ones.
        running: On which node each resource is; None where it stopped.
        moves_after: How many more times crm_mon is asked until resources have moved.
        away: How many more times the cluster does not answer.
        has_coordinator: Whether it has come together.
        is_deaf: Whether changes are acknowledged but not carried out.
    """

    nodes: dict[str, dict[str, str]] = field(default_factory=lambda: {"a": {}, "b": {}})
    running: dict[str, str | None] = field(default_factory=lambda: {"db": "a", "ip": "a", "web": "b"})
    moves_after: int = 0
    away: int = 0
    has_coordinator: bool = True
    is_deaf: bool = False
    names: list[str] = field(default_factory=lambda: ["a"])

    def answer(self, command: tuple[str, ...]) -> CommandResult:
        if self.away:
            self.away -= 1
            return CommandResult(status=102, output=NO_CLUSTER, errors="")
        match command:
            case ("crm_mon", *_):
                self.moves_after -= 1
                if self.moves_after < 0:
                    self._move()
                return CommandResult(status=0, output=self._mon(), errors="")
            case ("crm_node", "--name"):
                return CommandResult(status=0, output=f"{self.names[0]}\n", errors="")
            case _:
                if not self.is_deaf:
                    is_on = command[2] in {"--update=on", "standby"}
                    name = command[1].removeprefix("--node=") if command[0] == "crm_standby" else command[3]
                    self.nodes[name]["standby"] = "true" if is_on else "false"
                return CommandResult(status=0, output="", errors="")

    def is_able(self, name: str) -> bool:
        states = self.nodes[name]
        return states.get("online") != "false" and states.get("standby") != "true"

    def _move(self) -> None:
        able = [name for name in self.nodes if self.is_able(name)]
        for resource, node in self.running.items():
            if node is None or not self.is_able(node):
                self.running[resource] = able[0] if able else None

    def _mon(self) -> str:
        usual = {"online": "true", "standby": "false", "maintenance": "false", "pending": "false", "unclean": "false"}
        nodes = "".join(
            f'<node name="{name}" {" ".join(f"{key}={value!r}" for key, value in (usual | states).items())}/>'
            for name, states in self.nodes.items()
        )
        resources = "".join(
            f'<resource id="{name}">{f"<node name={node!r}/>" if node else ""}</resource>'
            for name, node in self.running.items()
        )
        coordinator = f'<current_dc present="{str(self.has_coordinator).lower()}"/>'
        return (
            f"<pacemaker-result><summary>{coordinator}</summary><nodes>{nodes}</nodes>"
            f'<resources><group id="g">{resources}</group></resources></pacemaker-result>'
        )


class Standing(Fragile):
    """A handler context in such a cluster. Time moves by what is paused, and by commands."""

    def __init__(self, cluster: Cluster | None = None, fuse: Fuse | None = None) -> None:
        super().__init__(fuse)
        self.cluster = cluster or Cluster()

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        assert not is_checked
        self.fuse.burn()
        self.commands.append(command)
        self.now += timedelta(seconds=0.1)
        ran = self.cluster.answer(command)
        self.fuse.burn()
        return ran

    async def pause(self, seconds: float) -> None:
        self.fuse.burn()
        self.now += timedelta(seconds=seconds)

    @property
    def changes(self) -> list[tuple[str, ...]]:
        """Commands that ask for a change."""
        return [command for command in self.commands if command[0] not in {"crm_mon", "crm_node"}]


async def fails(work: Any) -> str:  # noqa: ANN401 - a coroutine
    """What it says when it fails."""
    with pytest.raises(HookFailed) as caught:
        await work
    return caught.value.message


# Settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"node": "--all"}, "'--all' is not a valid node name"),
        ({"node": "a b"}, "'a b' is not a valid node name"),
        ({"tool": "pacemaker"}, "Invalid enum value"),
        ({"tool": "pcs", "lifetime": "reboot"}, "pcs does not support lifetime 'reboot'"),
        ({"wait": "5m"}, "wait must be shorter than timeout"),
        ({"nodes": "a"}, "unknown field"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=expected):
        convert({"use": "pacemaker", **settings}, AnyHandler)  # type: ignore[arg-type]


def test_what_it_does_is_told_in_words() -> None:
    assert PacemakerHandler().describe_actions() == [
        "put this machine's node of the Pacemaker cluster into standby",
        "refuse if no other node can run its resources",
        "wait until no resource runs there, for at most 4m",
    ]
    handler = PacemakerHandler(node="a", tool="crm", lifetime="reboot", alone="proceed", wait=Duration(0))
    assert handler.describe_actions() == ["put node a of the Pacemaker cluster into standby with crm, until it reboots"]


# What is done


async def test_a_node_goes_into_standby_and_comes_back() -> None:
    occasion = Standing()
    await HANDLER.prepare(occasion)
    assert occasion.cluster.running == {"db": "b", "ip": "b", "web": "b"}
    assert occasion.commands[0] == ("crm_node", "--name")
    assert occasion.commands[1] == MON
    await HANDLER.react_to_start(occasion)
    await HANDLER.undo(occasion)
    assert occasion.cluster.is_able("a")
    assert occasion.changes == [INTO, OUT]


@pytest.mark.parametrize(
    ("handler", "changes"),
    [
        (
            PacemakerHandler(tool="crm_standby", lifetime="reboot", node="a"),
            [
                ("crm_standby", "--node=a", "--update=on", "--lifetime=reboot"),
                ("crm_standby", "--node=a", "--delete", "--lifetime=reboot"),
            ],
        ),
        (PacemakerHandler(tool="crm"), [("crm", "node", "standby", "a", "forever"), ("crm", "node", "online", "a")]),
        (PacemakerHandler(tool="pcs"), [("pcs", "node", "standby", "a"), ("pcs", "node", "unstandby", "a")]),
    ],
    ids=lambda value: value.tool if isinstance(value, PacemakerHandler) else "",
)
async def test_each_tool_has_its_words(handler: PacemakerHandler, changes: list[tuple[str, ...]]) -> None:
    occasion = Standing()
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert occasion.changes == changes


async def test_a_node_that_was_in_standby_before_stays_so() -> None:
    occasion = Standing(Cluster(nodes={"a": {"standby": "true"}, "b": {}}, moves_after=3))
    await HANDLER.prepare(occasion)
    assert "a" not in occasion.cluster.running.values(), "it waits nevertheless until nothing runs there"
    await HANDLER.undo(occasion)
    assert occasion.changes == []


async def test_undo_without_a_memory_asks_nothing() -> None:
    occasion = Standing(Cluster(nodes={"a": {"standby": "true"}, "b": {}}))
    await HANDLER.undo(occasion)
    assert occasion.commands == []


async def test_undo_leaves_a_node_alone_that_is_no_longer_in_standby() -> None:
    occasion = Standing()
    await HANDLER.prepare(occasion)
    occasion.cluster.nodes["a"].clear()
    await HANDLER.undo(occasion)
    assert occasion.changes == [INTO]


async def test_a_node_that_is_no_longer_in_the_cluster_needs_no_undo() -> None:
    occasion = Standing()
    await HANDLER.prepare(occasion)
    del occasion.cluster.nodes["a"]
    await HANDLER.undo(occasion)
    assert occasion.said == ["node a is no longer in the cluster; nothing to restore"]


async def test_it_waits_until_nothing_runs_on_the_node() -> None:
    occasion = Standing(Cluster(moves_after=60))
    began = occasion.now
    await HANDLER.prepare(occasion)
    assert "a" not in occasion.cluster.running.values()
    assert timedelta(seconds=50) < occasion.now - began < timedelta(seconds=80)


async def test_it_does_not_wait_when_it_should_not() -> None:
    occasion = Standing(Cluster(moves_after=60))
    await PacemakerHandler(tool="crm_standby", wait=Duration(0)).prepare(occasion)
    assert occasion.changes == [INTO]
    assert occasion.cluster.running["db"] == "a"


# What goes wrong


async def test_what_still_runs_is_named_when_the_time_is_over() -> None:
    occasion = Standing(Cluster(moves_after=10_000))
    began = occasion.now
    assert await fails(HANDLER.prepare(occasion)) == "node a still runs db, ip"
    assert timedelta(minutes=4) <= occasion.now - began < timedelta(minutes=4, seconds=5)
    await HANDLER.undo(occasion)
    assert occasion.cluster.is_able("a")


@pytest.mark.parametrize(
    "states", [{"online": "false"}, {"standby": "true"}, {"maintenance": "true"}, {"unclean": "true"}]
)
async def test_the_last_node_that_can_run_resources_does_not_leave(states: dict[str, str]) -> None:
    occasion = Standing(Cluster(nodes={"a": {}, "b": states}))
    assert await fails(HANDLER.prepare(occasion)) == "no other node of the cluster can run the resources of a"
    assert occasion.changes == []
    await HANDLER.undo(occasion)
    assert occasion.changes == []


async def test_the_last_node_leaves_as_soon_as_another_one_is_back() -> None:
    cluster = Cluster(nodes={"a": {}, "b": {"standby": "true"}})

    class Returning(Standing):
        async def pause(self, seconds: float) -> None:
            await super().pause(seconds)
            if len(self.commands) == 10:
                cluster.nodes["b"].clear()

    occasion = Returning(cluster)
    await HANDLER.prepare(occasion)
    assert cluster.running == {"db": "b", "ip": "b", "web": "b"}


async def test_the_last_node_leaves_where_that_does_not_matter() -> None:
    occasion = Standing(Cluster(nodes={"a": {}}, running={"db": "a"}))
    await PacemakerHandler(tool="crm_standby", alone="proceed").prepare(occasion)
    assert set(occasion.cluster.running.values()) == {None}


async def test_two_nodes_that_leave_at_the_same_time_both_come_back() -> None:
    cluster = Cluster(moves_after=1000)

    class Racing(Standing):
        async def run(self, *command: str, **options: Any) -> CommandResult:  # noqa: ANN401 - handed on
            if command[0] == "crm_standby":
                cluster.nodes["b"]["standby"] = "true"
            return await super().run(*command, **options)

    occasion = Racing(cluster)
    assert await fails(HANDLER.prepare(occasion)) == (
        "no other node of the cluster is left to run resources, so a was taken out of standby again"
    )
    assert cluster.is_able("a")


async def test_a_node_that_finds_itself_alone_after_a_crash_comes_back() -> None:
    occasion = Standing(Cluster(moves_after=1000))
    await occasion.remember(node="a", standby=False)
    occasion.cluster.nodes = {"a": {"standby": "true"}, "b": {"online": "false"}}
    assert "out of standby again" in await fails(HANDLER.prepare(occasion))
    assert occasion.cluster.is_able("a")


async def test_a_tool_that_only_says_that_it_worked_is_not_believed() -> None:
    occasion = Standing(Cluster(is_deaf=True))
    assert await fails(HANDLER.prepare(occasion)) == ("node a is not in standby, although the command reported success")
    occasion = Standing()
    await HANDLER.prepare(occasion)
    occasion.cluster.is_deaf = True
    assert await fails(HANDLER.undo(occasion)) == "node a is still in standby"


async def test_a_tool_that_fails_is_quoted() -> None:
    class Failing(Standing):
        async def run(self, *command: str, **options: Any) -> CommandResult:  # noqa: ANN401 - handed on
            if command[0] == "crm":
                return CommandResult(status=1, output="", errors="\x1b[31mERROR\x1b[0m: node.standby: no such node\n\n")
            return await super().run(*command, **options)

    assert await fails(PacemakerHandler(tool="crm").prepare(Failing())) == (
        "crm node standby a forever ended with status 1: ERROR: node.standby: no such node"
    )


async def test_a_cluster_that_is_away_is_asked_again_for_a_while() -> None:
    occasion = Standing()
    await HANDLER.prepare(occasion)
    occasion.cluster.away = 20
    began = occasion.now
    await HANDLER.undo(occasion)
    assert occasion.cluster.is_able("a")
    assert timedelta(seconds=100) < occasion.now - began < timedelta(seconds=120)


async def test_a_cluster_that_stays_away_is_a_failure() -> None:
    occasion = Standing(Cluster(away=1000))
    assert await fails(HANDLER.prepare(occasion)) == (
        "crm_node --name ended with status 102: crm_mon: Connection to cluster failed: Connection refused"
    )
    assert occasion.memory == {}


async def test_a_cluster_that_has_not_come_together_is_waited_for() -> None:
    """After a reboot it shows what it last knew, and would forget what it is told."""
    occasion = Standing()
    await HANDLER.prepare(occasion)
    occasion.cluster.has_coordinator = False
    assert await fails(HANDLER.undo(occasion)) == ("the cluster has not formed: it has no designated coordinator")
    assert occasion.changes == [INTO]


class Instant(Standing):
    """A handler context whose commands take no time."""

    async def run(self, *command: str, **options: Any) -> CommandResult:  # noqa: ANN401 - handed on
        began = self.now
        ran = await super().run(*command, **options)
        self.now = began
        return ran


async def test_no_wait_is_longer_than_its_limit() -> None:
    async def seconds_of(occasion: Instant, work: Any) -> float:  # noqa: ANN401 - a coroutine
        began = occasion.now
        await fails(work)
        return (occasion.now - began).total_seconds()

    occasion = Instant(Cluster(moves_after=10_000))
    assert await seconds_of(occasion, HANDLER.prepare(occasion)) == 240
    occasion = Instant(Cluster(nodes={"a": {}, "b": {"online": "false"}}))
    assert await seconds_of(occasion, HANDLER.prepare(occasion)) == 240
    occasion = Instant(Cluster(away=1000))
    assert await seconds_of(occasion, HANDLER.prepare(occasion)) == 120
    occasion = Instant()
    await HANDLER.prepare(occasion)
    occasion.cluster.is_deaf = True
    assert await seconds_of(occasion, HANDLER.undo(occasion)) == 10
    occasion.cluster.has_coordinator = False
    assert await seconds_of(occasion, HANDLER.undo(occasion)) == 120


async def test_a_tool_that_does_not_know_its_options_is_not_asked_again() -> None:
    class Old(Standing):
        async def run(self, *command: str, **options: Any) -> CommandResult:  # noqa: ANN401 - handed on
            await super().run(*command, **options)
            return CommandResult(status=64, output="", errors="crm_mon: Unknown option --output-as=xml\n")

    occasion = Old()
    said = await fails(PacemakerHandler(node="a").prepare(occasion))
    assert said == "crm_mon --one-shot --output-as=xml ended with status 64: crm_mon: Unknown option --output-as=xml"
    assert len(occasion.commands) == 1


async def test_output_that_is_no_xml_is_a_failure() -> None:
    class Wordy(Standing):
        async def run(self, *command: str, **options: Any) -> CommandResult:  # noqa: ANN401 - handed on
            return CommandResult(status=0, output="Online: [ a b ]", errors="")

    said = await fails(PacemakerHandler(node="a").prepare(Wordy()))
    assert said == "crm_mon did not print XML: expected Pacemaker 2.0.3 or newer"


async def test_a_node_that_is_not_in_the_cluster_is_told_with_those_that_are() -> None:
    occasion = Standing()
    said = await fails(PacemakerHandler(node="c").prepare(occasion))
    assert said == "the cluster has no node c, only a, b: set `node` to the name of this VM's node"
    assert occasion.memory == {}


async def test_a_local_name_that_is_none_needs_the_setting() -> None:
    occasion = Standing(Cluster(names=["(null)"]))
    assert "set `node` to the name of this VM's node" in await fails(HANDLER.prepare(occasion))


@pytest.mark.parametrize(
    ("programs", "lifetime", "expected"),
    [
        (["pcs", "crm", "crm_standby"], "forever", "crm_standby"),
        (["pcs", "crm"], "reboot", "crm"),
        (["pcs"], "forever", "pcs"),
        (["pcs"], "reboot", None),
        ([], "forever", None),
    ],
)
async def test_the_first_tool_that_is_there_is_taken(
    programs: list[str], lifetime: Literal["forever", "reboot"], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in programs else None)
    occasion = Standing()
    handler = PacemakerHandler(lifetime=lifetime)
    if expected is None:
        said = await fails(handler.prepare(occasion))
        assert said == (f"none of crm_standby, crm, pcs can put this node into standby with lifetime {lifetime}")
        return
    await handler.prepare(occasion)
    assert occasion.changes[0][0] == expected


# Interruptions


@pytest.mark.parametrize("states", [{}, {"standby": "true"}], ids=["online", "standby"])
async def test_whenever_the_agent_is_killed_everything_can_be_repeated_and_put_back(states: dict[str, str]) -> None:
    cluster = Cluster(nodes={"a": {"standby": "false"} | states, "b": {}}, running={"db": "a"})

    def occasion(fuse: Fuse, memory: dict[str, Any]) -> Standing:
        made = Standing(cluster, fuse)
        made.memory = memory
        cluster.moves_after = 3
        if not memory:
            cluster.running["db"] = "a"
        return made

    def is_prepared() -> bool:
        return cluster.nodes["a"]["standby"] == "true" and cluster.running["db"] == "b"

    moments = await crash_everywhere(HANDLER, occasion, lambda: copy.deepcopy(cluster.nodes), is_prepared)
    assert moments > (12 if states else 20)
