"""A node is cordoned, tainted and drained, its conditions say why, and all of it is put back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Coroutine
from datetime import timedelta
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forewarn.agent.codec import Duration, convert
from forewarn.agent.handlers import AnyHandler, CommandResult, KubernetesHandler
from forewarn.agent.handlers.kubernetes import NodeConditions
from forewarn.errors import HookFailed
from forewarn.wire.document import Event
from tests.support.apiserver import a_node
from tests.support.interrupted import Crash, Fragile, Fuse, crash_everywhere
from tests.support.occasion import an_event

pytestmark = pytest.mark.anyio

STAND_IN = Path("tests/support/kubectl").resolve()
TAINT = "example.com/maintenance=scheduled:NoSchedule"
EVERYTHING = KubernetesHandler(taint=TAINT, condition=True)
QUIET = "--request-timeout=15s"


def stand_in() -> Callable[[dict[str, Any], list[str]], tuple[int, str, str]]:
    """The stand-in for kubectl, to be called rather than run."""
    loader = SourceFileLoader("kubectl_stand_in", str(STAND_IN))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    answer: Callable[[dict[str, Any], list[str]], tuple[int, str, str]] = module.answer
    return answer


ANSWER = stand_in()

Answer = Callable[[tuple[str, ...]], tuple[int, str, str]]
"""A command to its status, output and errors."""


def a_cluster(**spec: Any) -> dict[str, Any]:  # noqa: ANN401 - members of a node's spec
    return {
        "nodes": {"db": a_node("db", **spec)},
        "pods": {"web": {"node": "db", "owner": "ReplicaSet"}, "lb": {"node": "db", "owner": "DaemonSet"}},
    }


class Cluster(Fragile):
    """A handler context in a cluster of one node, ``db``, with a pod. Time moves by what is paused, and by commands.

    Attributes:
        state: The cluster.
        answer: Runs commands.
    """

    def __init__(self, event: Event | None = None, vm: str = "db", state: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.event = event or an_event()
        self.vm = vm
        self.state = state or a_cluster()
        self.answer: Answer = lambda command: ANSWER(self.state, list(command[1:]))

    async def run(
        self, *command: str, stdin: bytes = b"", timeout_s: float | None = None, is_checked: bool = True
    ) -> CommandResult:
        assert not is_checked
        self.fuse.burn()
        self.commands.append(command)
        self.now += timedelta(seconds=0.1)
        status, output, errors = self.answer(command)
        self.fuse.burn()
        return CommandResult(status=status, output=output, errors=errors)

    async def pause(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state["nodes"]["db"]["spec"]
        return found

    @property
    def conditions(self) -> dict[str, dict[str, str]]:
        return {each["type"]: each for each in self.state["nodes"]["db"]["status"]["conditions"]}

    @property
    def true(self) -> set[str]:
        """Conditions that hold."""
        return {kind for kind, each in self.conditions.items() if each["status"] == "True"}

    def set_condition(self, kind: str, message: str) -> None:
        others = [each for each in self.conditions.values() if each["type"] != kind]
        told = {"type": kind, "status": "True", "reason": "AdminRequested", "message": message}
        self.state["nodes"]["db"]["status"]["conditions"] = [*others, told]

    @property
    def changes(self) -> list[tuple[str, ...]]:
        """Commands that ask for a change, without the program."""
        return [command[1:] for command in self.commands if command[1] != "get" and "--help" not in command]


async def fails(work: Coroutine[Any, Any, None]) -> str:
    """What it says when it fails."""
    with pytest.raises(HookFailed) as caught:
        await work
    return caught.value.message


# Settings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"node": "-A"}, "'-A' is not a valid node name"),
        ({"node": "Web_1"}, "'Web_1' is not a valid node name"),
        ({"node": "a" * 254}, "is not a valid node name"),
        ({"kubectl": ""}, "'' is not a valid program name"),
        ({"kubectl": "--help"}, "'--help' is not a valid program name"),
        ({"taint": "-x=y:NoSchedule"}, "is not a valid taint"),
        ({"taint": "x=y:Sometimes"}, "NoSchedule, PreferNoSchedule or NoExecute"),
        ({"taint": "x=y"}, "expected key=value:effect"),
        ({"drain_args": ["other-node"]}, "'other-node' in drain_args is not an option"),
        ({"drain_args": ["--"]}, "'--' in drain_args is not an option"),
        ({"drain_timeout": "5m"}, "shorter than timeout"),
        ({"drain_timeout": "0s"}, "at least 1s"),
        ({"conditions": {"planned": "Maintenance planned"}}, "is not a valid condition type"),
        ({"conditions": {"reason": "because it is so"}}, "is not a valid condition reason"),
        ({"conditions": {"over": "Over"}}, "unknown field"),
        ({"nodes": "db"}, "unknown field"),
    ],
)
def test_settings_that_kubectl_would_refuse_or_misunderstand_are_refused(
    settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=expected):
        convert({"use": "kubernetes", **settings}, AnyHandler)  # type: ignore[arg-type]


@pytest.mark.parametrize("taint", ["key:NoSchedule", "key=:NoExecute", TAINT, "a.b/c_d=e.f-g:PreferNoSchedule"])
async def test_a_taint_may_lack_a_value_or_have_a_prefix(taint: str) -> None:
    occasion = Cluster()
    handler = KubernetesHandler(taint=taint)
    await handler.prepare(occasion)
    assert len(occasion.spec["taints"]) == 1
    await handler.undo(occasion)
    assert "taints" not in occasion.spec


def test_a_node_that_is_only_cordoned_may_have_a_short_timeout() -> None:
    assert KubernetesHandler(drain=False, timeout=Duration(seconds=10)).drain_timeout > Duration(seconds=10)


def test_what_it_does_is_told_in_words() -> None:
    assert KubernetesHandler().describe_actions() == [
        "cordon this VM's node",
        "drain this VM's node within 4m: --ignore-daemonsets --delete-emptydir-data --timeout=240s",
    ]
    handler = KubernetesHandler(
        node="w-1", drain=False, taint=TAINT, condition=True, conditions=NodeConditions(draining="")
    )
    assert handler.describe_actions() == [
        "cordon the node w-1",
        f"taint the node w-1 with {TAINT}",
        "set conditions of the node w-1: MaintenancePlanned, Drained, MaintenanceInProgress",
    ]


# What is done


async def test_a_node_is_cordoned_and_drained_and_uncordoned() -> None:
    occasion, handler = Cluster(), KubernetesHandler()
    await handler.prepare(occasion)
    assert occasion.spec == {"unschedulable": True}
    assert set(occasion.state["pods"]) == {"lb"}
    await handler.react_to_start(occasion)
    await handler.undo(occasion)
    assert occasion.spec == {}
    assert occasion.changes == [
        ("cordon", "db", QUIET),
        ("drain", "db", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"),
        ("uncordon", "db", QUIET),
    ]


async def test_every_command_goes_where_the_settings_say() -> None:
    handler = KubernetesHandler(
        kubectl="/opt/kubectl",
        kubeconfig="/etc/-k",
        context="-prod",
        grace=Duration(seconds=1.5),
        drain_timeout=Duration(seconds=90),
        drain_args=("--force", "--pod-selector=app!=db"),
        taint=TAINT,
        condition=True,
    )
    occasion = Cluster()
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert {command[0] for command in occasion.commands} == {"/opt/kubectl"}
    asked = [command for command in occasion.commands if "--help" not in command]
    assert all({"--kubeconfig=/etc/-k", "--context=-prod"} <= set(command) for command in asked)
    (drain,) = [command for command in asked if command[1] == "drain"]
    assert drain[5:9] == ("--timeout=90s", "--grace-period=2", "--force", "--pod-selector=app!=db")


async def test_a_node_may_only_be_cordoned() -> None:
    occasion = Cluster()
    await KubernetesHandler(drain=False).prepare(occasion)
    assert occasion.changes == [("cordon", "db", QUIET)]


async def test_the_node_is_the_vm_in_lower_case() -> None:
    occasion = Cluster(vm="DB")
    await KubernetesHandler().prepare(occasion)
    assert occasion.memory["node"] == "db"


async def test_a_vm_whose_name_no_node_can_have_needs_the_setting() -> None:
    occasion = Cluster(vm="-web_1")
    assert "is not a valid node name: set `node` to the name of its node" in await fails(
        KubernetesHandler().prepare(occasion)
    )
    assert occasion.commands == []


async def test_a_node_that_is_not_there_fails_and_leaves_nothing_to_undo() -> None:
    occasion = Cluster()
    assert "the cluster has no node w-9" in await fails(KubernetesHandler(node="w-9").prepare(occasion))
    assert occasion.memory == {}
    assert occasion.changes == []


async def test_a_node_that_was_cordoned_before_stays_so() -> None:
    occasion = Cluster(state=a_cluster(unschedulable=True))
    handler = KubernetesHandler()
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert occasion.spec == {"unschedulable": True}


async def test_a_taint_that_was_there_before_keeps_its_value() -> None:
    handler = KubernetesHandler(taint=TAINT)
    for value in ({"value": "mine"}, {"value": "scheduled"}, {}):
        taint = {"key": "example.com/maintenance", "effect": "NoSchedule", **value}
        occasion = Cluster(state=a_cluster(taints=[taint]))
        await handler.prepare(occasion)
        assert occasion.spec["taints"] == [taint | {"value": "scheduled"}]
        await handler.undo(occasion)
        assert occasion.spec["taints"] == [taint]


async def test_other_taints_are_left_alone() -> None:
    other = {"key": "example.com/maintenance", "value": "x", "effect": "NoExecute"}
    occasion = Cluster(state=a_cluster(taints=[other]))
    handler = KubernetesHandler(taint=TAINT)
    await handler.prepare(occasion)
    assert len(occasion.spec["taints"]) == 2
    await handler.undo(occasion)
    assert occasion.spec["taints"] == [other]


async def test_undo_without_a_memory_asks_nothing() -> None:
    occasion = Cluster(state=a_cluster(unschedulable=True))
    await EVERYTHING.undo(occasion)
    assert occasion.commands == []


async def test_undo_leaves_a_node_alone_that_is_no_longer_cordoned() -> None:
    occasion, handler = Cluster(), KubernetesHandler(taint=TAINT)
    await handler.prepare(occasion)
    occasion.spec.clear()
    occasion.commands.clear()
    await handler.undo(occasion)
    assert occasion.changes == []


async def test_a_node_that_is_gone_needs_no_undo() -> None:
    occasion = Cluster()
    await EVERYTHING.prepare(occasion)
    occasion.state["nodes"].clear()
    await EVERYTHING.undo(occasion)
    assert occasion.said == ["node db no longer exists; nothing to restore"]


# What goes wrong


async def test_a_drain_that_fails_says_which_pod_is_in_the_way_and_leaves_the_node_cordoned() -> None:
    occasion = Cluster()
    occasion.state["pods"]["web"]["protected"] = True
    expected = 'kubectl drain ended with status 1: error when evicting pods/"web" -n "default": global timeout reached'
    assert (await fails(EVERYTHING.prepare(occasion))).startswith(expected)
    assert occasion.spec["unschedulable"]
    assert occasion.true == {"Ready", "MaintenancePlanned"}
    assert occasion.conditions["DrainInProgress"]["reason"] == "DrainFailed"
    await EVERYTHING.undo(occasion)
    assert occasion.spec == {}
    assert occasion.true == {"Ready"}


async def test_what_kubectl_says_last_is_the_reason_but_for_its_hints() -> None:
    def refuse(command: tuple[str, ...]) -> tuple[int, str, str]:
        if command[1] == "get":
            return 0, json.dumps(a_node("db")), ""
        return 1, "", "W0101 something else\nerror: unknown flag: --x\nSee 'kubectl cordon --help' for usage.\n"

    occasion = Cluster()
    occasion.answer = refuse
    assert (
        await fails(KubernetesHandler().prepare(occasion))
        == "kubectl cordon ended with status 1: error: unknown flag: --x"
    )
    silent = Cluster()
    silent.answer = lambda _: (2, "", "")
    assert await fails(KubernetesHandler().prepare(silent)) == "kubectl get ended with status 2"


async def test_a_right_that_is_missing_is_told_although_kubectl_ends_with_status_0() -> None:
    occasion, handler = Cluster(), KubernetesHandler()
    occasion.state["readonly"] = True
    refusal = '/api/v1/nodes/db is forbidden: User "forewarn" cannot patch it'
    for work in (handler.prepare, handler.undo):
        verb = work.__name__.replace("prepare", "cordon").replace("undo", "uncordon")
        expected = f'kubectl {verb} changed nothing: error: unable to {verb} node "db": {refusal}'
        assert await fails(work(occasion)) == expected
        occasion.spec["unschedulable"] = True


async def test_an_api_server_that_is_away_is_asked_again_for_a_while() -> None:
    occasion, handler = Cluster(), KubernetesHandler()
    await handler.prepare(occasion)
    occasion.state["away"] = 20
    began = occasion.now
    await handler.undo(occasion)
    assert occasion.spec == {}
    assert timedelta(seconds=100) < occasion.now - began < timedelta(seconds=120)
    assert occasion.said[0].endswith("did you specify the right host or port?; retrying")


async def test_an_api_server_that_stays_away_is_a_failure() -> None:
    occasion, handler = Cluster(), KubernetesHandler()
    await handler.prepare(occasion)
    occasion.state["away"] = 1000
    began = occasion.now
    assert "was refused" in await fails(handler.undo(occasion))
    assert timedelta(seconds=120) <= occasion.now - began < timedelta(seconds=130)
    assert occasion.spec["unschedulable"]


async def test_what_will_not_pass_is_not_tried_again() -> None:
    refusal = 'Error from server (Forbidden): nodes "db" is forbidden: User "vm" cannot get resource "nodes"'
    occasion = Cluster()
    occasion.answer = lambda _: (1, "", refusal)
    assert await fails(KubernetesHandler().prepare(occasion)) == f"kubectl get ended with status 1: {refusal}"
    assert len(occasion.commands) == 1


@pytest.mark.parametrize(
    "output", ["{", "[]", "{}", '{"spec": {"taints": [{}]}, "status": {}}', '{"spec": 1, "status": 2}']
)
async def test_output_that_is_no_node_is_a_failure(output: str) -> None:
    occasion = Cluster()
    occasion.answer = lambda _: (0, output, "")
    assert await fails(KubernetesHandler().prepare(occasion)) == "kubectl get did not print a node"
    assert occasion.memory == {}


# Conditions


async def test_the_conditions_follow_the_event() -> None:
    """KEP-5683."""
    seen: list[set[str]] = []
    occasion = Cluster()
    answer = occasion.answer

    def watched(command: tuple[str, ...]) -> tuple[int, str, str]:
        if command[1] in {"cordon", "drain"}:
            seen.append(occasion.true)
        return answer(command)

    occasion.answer = watched
    await EVERYTHING.prepare(occasion)
    seen.append(occasion.true)
    occasion.event = an_event(status="Started", not_before=None)
    await EVERYTHING.react_to_start(occasion)
    seen.append(occasion.true)
    await EVERYTHING.undo(occasion)
    seen.append(occasion.true)
    assert [each - {"Ready"} for each in seen] == [
        {"MaintenancePlanned"},
        {"MaintenancePlanned", "DrainInProgress"},
        {"MaintenancePlanned", "Drained"},
        {"MaintenanceInProgress", "Drained"},
        set(),
    ]
    assert {occasion.conditions[kind]["reason"] for kind in NodeConditions().names if kind != "DrainInProgress"} <= {
        "MaintenanceWindow",
        "NoMaintenance",
    }


async def test_a_condition_says_which_event_it_is_about_and_when() -> None:
    occasion = Cluster()
    handler = KubernetesHandler(drain=False, condition=True)
    await handler.prepare(occasion)
    planned = occasion.conditions["MaintenancePlanned"]
    assert planned["message"] == (
        "Forewarn: Freeze of this VM is planned, not before 2030-01-01T00:15:00Z"
        " (event A123BC45-1234-5678-AB90-ABCDEF123456)"
    )
    assert planned["reason"] == "MaintenanceWindow"
    occasion.event = an_event(status="Started", not_before=None)
    await handler.react_to_start(occasion)
    assert "Freeze of this VM has started" in occasion.conditions["MaintenanceInProgress"]["message"]
    await handler.undo(occasion)
    assert "Freeze of this VM is over" in occasion.conditions["MaintenanceInProgress"]["message"]
    occasion.event = an_event(not_before=None)
    await handler.prepare(occasion)
    assert "Freeze of this VM is planned (event" in occasion.conditions["MaintenancePlanned"]["message"]


async def test_the_time_of_a_transition_moves_only_with_the_status() -> None:
    occasion = Cluster()
    handler = KubernetesHandler(drain=False, condition=True)
    await handler.prepare(occasion)
    first = occasion.conditions["MaintenancePlanned"]
    assert first["lastTransitionTime"] == first["lastHeartbeatTime"] == "2030-01-01T00:00:00Z"
    await occasion.pause(60)
    occasion.commands.clear()
    await handler.prepare(occasion)
    assert [command[0] for command in occasion.changes] == ["cordon"], "nothing has changed, so nothing is patched"
    occasion.event = an_event(not_before=occasion.now)
    await handler.prepare(occasion)
    second = occasion.conditions["MaintenancePlanned"]
    assert (second["lastTransitionTime"], second["lastHeartbeatTime"][:16]) == (
        "2030-01-01T00:00:00Z",
        "2030-01-01T00:01",
    )
    await handler.undo(occasion)
    assert occasion.conditions["MaintenancePlanned"]["lastTransitionTime"].startswith("2030-01-01T00:01")


async def test_conditions_may_have_other_names_or_none() -> None:
    names = NodeConditions(
        planned="VMEventScheduled",
        draining="",
        drained="",
        in_progress="VMEventScheduled",
        reason="VMEventScheduled",
    )
    occasion, handler = Cluster(), KubernetesHandler(condition=True, conditions=names)
    await handler.prepare(occasion)
    assert occasion.true == {"Ready", "VMEventScheduled"}
    await handler.react_to_start(occasion)
    assert occasion.true == {"Ready", "VMEventScheduled"}
    await handler.undo(occasion)
    assert set(occasion.conditions) == {"Ready", "VMEventScheduled"}
    assert occasion.true == {"Ready"}


async def test_a_condition_that_somebody_else_has_set_is_left_alone() -> None:
    occasion = Cluster()
    occasion.set_condition("MaintenancePlanned", "a new kernel")
    before = occasion.conditions["MaintenancePlanned"]
    for work in (EVERYTHING.prepare, EVERYTHING.react_to_start, EVERYTHING.undo):
        await work(occasion)
        assert occasion.conditions["MaintenancePlanned"] == before
    assert occasion.true == {"Ready", "MaintenancePlanned"}


async def test_a_condition_of_another_event_is_taken_over_and_outlives_the_first() -> None:
    first = Cluster()
    second = Cluster(an_event(id="B", type="Reboot"), state=first.state)
    handler = KubernetesHandler(drain=False, condition=True)
    await handler.prepare(first)
    await handler.prepare(second)
    await handler.undo(first)
    assert first.true == {"Ready", "MaintenancePlanned"}
    assert "Reboot" in first.conditions["MaintenancePlanned"]["message"]
    await handler.undo(second)
    assert first.true == {"Ready"}


async def test_an_event_that_was_never_prepared_for_is_in_progress_when_it_starts() -> None:
    occasion = Cluster(an_event(status="Started"), state=a_cluster(unschedulable=True))
    await EVERYTHING.react_to_start(occasion)
    assert occasion.true == {"Ready", "MaintenanceInProgress"}
    await EVERYTHING.undo(occasion)
    assert occasion.true == {"Ready"}
    assert occasion.spec == {"unschedulable": True}, "somebody else cordoned it"


async def test_without_conditions_the_start_asks_nothing() -> None:
    occasion = Cluster()
    await KubernetesHandler().react_to_start(occasion)
    assert occasion.commands == []
    assert occasion.memory == {}


@pytest.mark.parametrize("step", ["prepare", "react_to_start"])
async def test_a_kubectl_that_is_too_old_for_conditions_is_told_before_anything_changes(step: str) -> None:
    occasion = Cluster()
    occasion.state["version"] = "1.20"
    said = await fails(getattr(EVERYTHING, step)(occasion))
    assert said == "kubectl has no 'patch --subresource', so it cannot set conditions: expected 1.24 or newer"
    assert occasion.changes == []
    assert occasion.memory == {}
    await EVERYTHING.undo(occasion)
    assert occasion.changes == []


# Interruptions


def lasting(state: dict[str, Any]) -> dict[str, Any]:
    """The nodes, without what conditions keep of the past."""
    nodes: dict[str, Any] = copy.deepcopy(state["nodes"])
    for node in nodes.values():
        conditions = node["status"]["conditions"]
        node["status"]["conditions"] = [each["type"] for each in conditions if each["status"] == "True"]
    return nodes


BEFORE = {
    "in use": {},
    "cordoned": {"unschedulable": True},
    "tainted": {"taints": [{"key": "example.com/maintenance", "value": "mine", "effect": "NoSchedule"}]},
}


@pytest.mark.parametrize("spec", BEFORE.values(), ids=BEFORE)
async def test_whenever_the_agent_is_killed_everything_can_be_repeated_and_put_back(spec: dict[str, Any]) -> None:
    state = a_cluster(**spec)

    def occasion(fuse: Fuse, memory: dict[str, Any]) -> Cluster:
        made = Cluster(state=state)
        made.fuse, made.memory = fuse, memory
        return made

    def is_prepared() -> bool:
        node = state["nodes"]["db"]
        return node["spec"]["unschedulable"] and set(lasting(state)["db"]["status"]["conditions"]) == {
            "Ready",
            "MaintenancePlanned",
            "Drained",
        }

    moments = await crash_everywhere(EVERYTHING, occasion, lambda: lasting(state), is_prepared)
    assert moments > 30


async def test_whenever_the_agent_is_killed_at_the_start_of_an_event_its_end_clears_the_conditions() -> None:
    for lasts in range(100):
        occasion = Cluster()
        await EVERYTHING.prepare(occasion)
        occasion.fuse = Fuse(lasts)
        try:
            await EVERYTHING.react_to_start(occasion)
        except Crash:
            is_crashed = True
        else:
            is_crashed = False
        occasion.fuse = Fuse()
        if lasts % 2:
            await EVERYTHING.react_to_start(occasion)
        await EVERYTHING.undo(occasion)
        assert lasting(occasion.state) == lasting(a_cluster())
        if not is_crashed:
            break
    else:
        pytest.fail("it never got to the end")
