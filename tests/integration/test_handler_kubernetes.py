"""The handler with the real kubectl against a stand-in for the API server, and with a stand-in for kubectl."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forewarn.agent.codec import Duration
from forewarn.agent.configuration import parse_configuration
from forewarn.agent.handlers import BuiltInHandler, KubernetesHandler
from forewarn.agent.handlers.kubernetes import NodeConditions
from forewarn.errors import HookFailed
from tests.support.apiserver import ApiServer, Asked, a_node, a_pod, api_server
from tests.support.documents import ROOT, files_in
from tests.support.interrupted import Fragile, Fuse, crash_everywhere
from tests.support.occasion import Occurring, an_event
from tests.support.spans import GUARD_S

HOW_TO = files_in(ROOT / "docs/how-to/agent-kubernetes.md")
STAND_IN = ROOT / "tests/support/kubectl"
KUBECTL = os.environ.get("FOREWARN_KUBECTL", "kubectl")
"""Another one than the first on the path, to try other versions."""

TAINT = "example.com/maintenance=scheduled:NoSchedule"

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
real = pytest.mark.skipif(shutil.which(KUBECTL) is None, reason="needs kubectl (Debian: kubernetes-client)")


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    """Two nodes; on ``db`` a pod that moves, and one of a DaemonSet that does not."""
    with api_server() as server:
        server.add(a_node("db"), a_node("other"))
        server.add(a_pod("web", "db"), a_pod("lb", "db", owner="DaemonSet"), a_pod("elsewhere", "other"))
        yield server


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home without any kubeconfig."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


@pytest.fixture
def occasion(environment: dict[str, str]) -> Occurring:
    return Occurring(environment=environment)


@pytest.fixture
def handler(cluster: ApiServer, tmp_path: Path) -> KubernetesHandler:
    """The handler for that cluster, whose context is not the current one."""
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    return KubernetesHandler(
        kubectl=KUBECTL, kubeconfig=str(kubeconfig), context="here", taint=TAINT, drain_timeout=Duration(seconds=30)
    )


def with_settings(handler: KubernetesHandler, **settings: Any) -> KubernetesHandler:  # noqa: ANN401 - as the settings are
    given = {name: getattr(handler, name) for name in handler.__struct_fields__}
    return KubernetesHandler(**(given | settings))


def can_set_conditions() -> bool:
    done = subprocess.run([KUBECTL, "patch", "--help"], capture_output=True, text=True, check=True, timeout=GUARD_S)
    return "--subresource" in done.stdout


def version() -> int:
    """Its minor version."""
    command = [KUBECTL, "version", "--client", "--output=json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=GUARD_S)
    return int(json.loads(done.stdout)["clientVersion"]["minor"].rstrip("+"))


async def why(work: Any) -> str:  # noqa: ANN401 - a coroutine
    with pytest.raises(HookFailed) as caught:
        await work
    return caught.value.message


# The real kubectl


@real
async def test_kubectl_cordons_taints_and_drains_and_puts_everything_back(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    before = cluster.nodes["db"]["spec"]
    await handler.prepare(occasion)
    assert cluster.nodes["db"]["spec"] == {
        "unschedulable": True,
        "taints": [{"key": "example.com/maintenance", "value": "scheduled", "effect": "NoSchedule"}],
    }
    assert set(cluster.pods) == {"lb", "elsewhere"}
    await handler.react_to_start(occasion)
    await handler.undo(occasion)
    assert cluster.nodes["db"]["spec"] == before
    assert cluster.nodes["other"] == a_node("other")


@real
async def test_pods_get_the_grace_that_is_set(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    await with_settings(handler, grace=Duration(seconds=7)).prepare(occasion)
    (eviction,) = [asked.body for asked in cluster.asked if asked.method == "POST"]
    assert eviction["deleteOptions"] == {"gracePeriodSeconds": 7}


@real
async def test_a_node_that_was_cordoned_and_tainted_before_stays_so(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    taints = [{"key": "example.com/maintenance", "value": "mine", "effect": "NoSchedule"}]
    cluster.add(a_node("db", unschedulable=True, taints=taints))
    await handler.prepare(occasion)
    assert cluster.nodes["db"]["spec"]["taints"][0]["value"] == "scheduled"
    await handler.undo(occasion)
    assert cluster.nodes["db"]["spec"] == {"unschedulable": True, "taints": taints}


@real
async def test_kubectl_sets_conditions_or_is_told_to_be_too_old(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    handler = with_settings(handler, condition=True)
    if not can_set_conditions():
        expected = f"{KUBECTL} has no 'patch --subresource', so it cannot set conditions: expected 1.24 or newer"
        assert await why(handler.prepare(occasion)) == expected
        assert cluster.asked == []
        return
    await handler.prepare(occasion)
    false = dict.fromkeys(NodeConditions().names, "False")
    ready = {"Ready": "True"}
    prepared = {"MaintenancePlanned": "True", "DrainInProgress": "False", "Drained": "True"}
    assert cluster.conditions("db") == ready | prepared
    occasion.event = an_event(status="Started", not_before=None)
    await handler.react_to_start(occasion)
    started = {"MaintenancePlanned": "False", "MaintenanceInProgress": "True"}
    assert cluster.conditions("db") == ready | prepared | started
    await handler.undo(occasion)
    assert cluster.conditions("db") == ready | false
    over = [each for each in cluster.nodes["db"]["status"]["conditions"] if each["type"] == "MaintenanceInProgress"]
    assert over == [
        {
            "type": "MaintenanceInProgress",
            "status": "False",
            "reason": "NoMaintenance",
            "message": "Forewarn: Freeze of this VM is over (event A123BC45-1234-5678-AB90-ABCDEF123456)",
            "lastHeartbeatTime": "2030-01-01T00:00:00Z",
            "lastTransitionTime": "2030-01-01T00:00:00Z",
        }
    ]


def needed(asked: Asked) -> tuple[str, str, str]:
    """API group, resource and verb of a request."""
    parts = asked.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces":
        rest = rest[2:]
    is_named = len(rest) > 1
    verb = {"GET": "get" if is_named else "list", "PATCH": "patch", "POST": "create"}[asked.method]
    return group, "/".join((rest[0], *rest[2:])), verb


@real
async def test_the_role_in_the_documentation_allows_what_kubectl_asks_for_and_no_more(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    handler = with_settings(handler, condition=can_set_conditions())
    for work in (handler.prepare, handler.react_to_start, handler.undo):
        await work(occasion)
    allowed = {
        (group, resource, verb)
        for rule in yaml.safe_load(HOW_TO["role.yaml"])["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if handler.condition or resource != "nodes/status"
    }
    assert {needed(asked) for asked in cluster.asked} == allowed


@real
async def test_a_protected_pod_is_named_when_the_drain_fails(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    """Slow, since kubectl waits for 5 s before it looks at the clock."""
    cluster.protected.add("web")
    handler = with_settings(handler, drain_timeout=Duration(seconds=1), condition=can_set_conditions())
    said = await why(handler.prepare(occasion))
    assert re.search(r'kubectl drain ended with status 1: .*"web".*global timeout reached: 1s', said)
    assert cluster.nodes["db"]["spec"]["unschedulable"]
    if handler.condition:
        assert cluster.conditions("db")["DrainInProgress"] == "False"
        assert cluster.conditions("db")["MaintenancePlanned"] == "True"
    await handler.undo(occasion)
    assert cluster.nodes["db"]["spec"] == {}
    assert "web" in cluster.pods


@real
async def test_a_pod_that_nobody_would_make_again_hinders_the_drain(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    cluster.add(a_pod("naked", "db", owner=""))
    assert "(use --force to override): default/naked" in await why(handler.prepare(occasion))
    await with_settings(handler, drain_args=("--force",)).prepare(occasion)
    assert "naked" not in cluster.pods


@real
async def test_a_missing_right_is_named_although_kubectl_ends_with_status_0(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    cluster.forbidden.add(("PATCH", "/api/v1/nodes/db"))
    refusal = '/api/v1/nodes/db is forbidden: User "forewarn" cannot patch it'
    assert await why(handler.prepare(occasion)) == (
        f'kubectl cordon changed nothing: error: unable to cordon node "db": {refusal}'
    )
    cluster.forbidden.clear()
    await handler.undo(occasion)
    assert cluster.nodes["db"]["spec"] == {}


@real
async def test_a_node_that_is_not_there_is_told_and_one_that_is_gone_needs_no_undo(
    handler: KubernetesHandler, cluster: ApiServer, occasion: Occurring
) -> None:
    assert "the cluster has no node w-9" in await why(with_settings(handler, node="w-9").prepare(occasion))
    await handler.prepare(occasion)
    del cluster.nodes["db"]
    await handler.undo(occasion)
    assert occasion.said == ["node db no longer exists; nothing to restore"]


@real
async def test_an_api_server_that_is_away_is_waited_for(
    handler: KubernetesHandler, environment: dict[str, str]
) -> None:
    kubeconfig = Path(handler.kubeconfig)

    def turn_up() -> None:
        content = json.loads(kubeconfig.read_text())
        kubeconfig.write_text(json.dumps(content | {"current-context": "here"}))

    class Impatient(Occurring):
        async def pause(self, seconds: float) -> None:
            await super().pause(0)
            turn_up()

    occasion = Impatient(environment=environment)
    lost = with_settings(handler, context="", patience=Duration(0))
    assert "was refused" in await why(lost.prepare(occasion))
    await with_settings(handler, context="").prepare(occasion)
    assert len(occasion.said) == 1
    assert occasion.said[0].endswith("; retrying")


@real
async def test_a_wrong_context_is_told_at_once(handler: KubernetesHandler, occasion: Occurring) -> None:
    said = await why(with_settings(handler, context="-none").prepare(occasion))
    assert "context was not found for specified context: -none" in said
    assert len(occasion.commands) == 1


async def test_a_kubectl_that_is_not_there_is_told(occasion: Occurring) -> None:
    assert await why(KubernetesHandler(kubectl="/no/kubectl").prepare(occasion)) == (
        "cannot run /no/kubectl: No such file or directory"
    )


@real
async def test_whenever_the_agent_is_killed_kubectl_puts_everything_back(
    handler: KubernetesHandler, cluster: ApiServer, environment: dict[str, str]
) -> None:
    def occasion(fuse: Fuse, memory: dict[str, Any]) -> Fragile:
        return Fragile(fuse, memory, environment)

    def state() -> object:
        return {name: (node["spec"], node["status"]) for name, node in cluster.nodes.items()}

    def is_prepared() -> bool:
        spec: dict[str, Any] = cluster.nodes["db"]["spec"]
        return bool(spec.get("unschedulable")) and len(spec["taints"]) == 1 and "web" not in cluster.pods

    assert await crash_everywhere(handler, occasion, state, is_prepared) > 12


# The stand-in for kubectl


def with_stand_in(folder: Path, state: dict[str, Any]) -> dict[str, str]:
    """An environment in which the stand-in finds that cluster."""
    file = folder / "state.json"
    file.write_text(json.dumps(state))
    return {"PATH": os.environ["PATH"], "KUBECTL_STATE": str(file)}


def a_state() -> dict[str, Any]:
    return {
        "nodes": {"db": a_node("db")},
        "pods": {"web": {"node": "db", "owner": "ReplicaSet"}, "lb": {"node": "db", "owner": "DaemonSet"}},
    }


async def test_the_stand_in_goes_through_a_whole_event(tmp_path: Path) -> None:
    occasion = Occurring(environment=with_stand_in(tmp_path, a_state()))
    handler = KubernetesHandler(kubectl=str(STAND_IN), taint=TAINT, condition=True)
    await handler.prepare(occasion)
    prepared = json.loads((tmp_path / "state.json").read_text())
    assert prepared["nodes"]["db"]["spec"]["unschedulable"]
    assert set(prepared["pods"]) == {"lb"}
    await handler.react_to_start(occasion)
    await handler.undo(occasion)
    over = json.loads((tmp_path / "state.json").read_text())["nodes"]["db"]
    assert over["spec"] == {}
    assert {each["type"] for each in over["status"]["conditions"] if each["status"] == "True"} == {"Ready"}


SAME_WORDS = range(31, 34)
"""Minor versions whose words the stand-in has."""

FORBIDDEN = ("from here on, nodes may not be changed",)
LOCAL = ("there is a pod with an emptyDir",)
NAKED = ("there is a pod that nobody has made",)
PATCH = '{"status":{"conditions":[{"type":"Drained","status":"True","reason":"R","message":"m"}]}}'
SAME: list[tuple[str, ...]] = [
    ("get", "node", "nope", "--output=json", "--ignore-not-found"),
    ("get", "node", "nope", "--output=json"),
    ("cordon", "nope"),
    ("cordon", "db"),
    ("cordon", "db"),
    ("cordon", "db", "--quietly"),
    ("uncordon", "db"),
    ("uncordon", "db", "--request-timeout=5s"),
    ("taint", "nodes", "db", "a.b/c=d:NoSchedule"),
    ("taint", "nodes", "db", "a.b/c=e:NoSchedule"),
    ("taint", "nodes", "db", "a.b/c=e:NoSchedule", "--overwrite"),
    ("taint", "nodes", "db", "a.b/c:NoSchedule-"),
    ("taint", "nodes", "db", "a.b/c:NoSchedule-"),
    ("taint", "nodes", "db", "a.b/c=d:Sometimes"),
    ("taint", "nodes", "nope", "a.b/c=d:NoSchedule"),
    ("patch", "node", "db", "--subresource=status", "--type=strategic", f"--patch={PATCH}"),
    ("patch", "node", "db", "--subresource=status", "--type=strategic", f"--patch={PATCH}"),
    ("patch", "node", "nope", "--subresource=status", "--type=strategic", f"--patch={PATCH}"),
    ("drain", "nope", "--ignore-daemonsets"),
    ("drain", "db", "--timeout=9s"),
    ("drain", "db", "--timeout=soon"),
    ("drain", "db", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=9s", "--grace-period=1"),
    LOCAL,
    ("drain", "db", "--ignore-daemonsets", "--timeout=9s"),
    ("drain", "db", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=9s"),
    NAKED,
    ("drain", "db", "--ignore-daemonsets", "--timeout=9s"),
    ("drain", "db", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=9s"),
    ("uncordon", "db"),
    FORBIDDEN,
    ("cordon", "db"),
    ("uncordon", "db"),
]


@real
def test_the_stand_in_says_what_kubectl_says(cluster: ApiServer, environment: dict[str, str], tmp_path: Path) -> None:
    """Versions that have other words for some things agree in their statuses, and in what becomes of the node."""
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    imitated = with_stand_in(tmp_path, a_state())
    file = tmp_path / "state.json"
    has_same_words, can_patch = version() in SAME_WORDS, can_set_conditions()

    def run(program: list[str], environment: dict[str, str], *command: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*program, *command], capture_output=True, text=True, check=False, env=environment, timeout=60
        )
        if not has_same_words:
            return done.returncode, "", ""
        # Google's package writes "Error", the others write "error".
        return done.returncode, done.stdout, done.stderr[:1].lower() + done.stderr[1:]

    for command in SAME:
        state = json.loads(file.read_text())
        if command == FORBIDDEN:
            cluster.forbidden.add(("PATCH", "/api/v1/nodes/db"))
            file.write_text(json.dumps(state | {"readonly": True}))
        elif command == LOCAL:
            cluster.add(a_pod("cache", "db", is_local=True))
            state["pods"]["cache"] = {"node": "db", "owner": "ReplicaSet", "is_local": True}
            file.write_text(json.dumps(state))
        elif command == NAKED:
            cluster.add(a_pod("naked", "db", owner=""))
            state["pods"]["naked"] = {"node": "db"}
            file.write_text(json.dumps(state))
        elif can_patch or command[0] != "patch":
            original = run([KUBECTL], environment, *command, f"--kubeconfig={kubeconfig}", "--context=here")
            assert run([sys.executable, str(STAND_IN)], imitated, *command) == original, command
    node = json.loads(file.read_text())["nodes"]["db"]
    assert (node["spec"], node["status"]) == (cluster.nodes["db"]["spec"], cluster.nodes["db"]["status"])


# The documentation


@pytest.mark.parametrize("name", ["agent.toml", "aks.toml"])
def test_the_configurations_in_the_documentation_are_valid(name: str) -> None:
    for rule in parse_configuration(HOW_TO[name]).rules:
        (handler,) = rule.handlers
        assert isinstance(handler, BuiltInHandler)
        assert isinstance(handler, KubernetesHandler)
        assert handler.describe_actions()
