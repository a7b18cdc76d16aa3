"""Cordon, taint and drain this VM's Kubernetes node, and give the reason in its conditions.

The names of the conditions are those of KEP-5683, "Node Lifecycle Conditions": alpha in Kubernetes 1.37, and so far
only a convention, because no controller of Kubernetes reads them. Other names can be set.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from forewarn.agent.codec import Duration
from forewarn.agent.handlers.contract import BuiltInHandler, CommandResult, HandlerContext
from forewarn.errors import HookFailed
from forewarn.util.duration import format_duration
from forewarn.wire.document import Event

__all__ = ["KubernetesHandler", "NodeConditions"]

_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TAINT = re.compile(
    r"(?P<key>(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)"
    r"(?:=(?P<value>[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)?)?"
    r":(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)",
    re.ASCII,
)
_CONDITION = re.compile(r"[A-Za-z][\w./-]{0,315}", re.ASCII)
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,1023}", re.ASCII)

_PASSING = re.compile(
    r"refused|timeout|timed out|deadline|unable to connect|unavailable|unreachable|no route|reset|\bEOF\b",
    re.IGNORECASE,
)
"""Error messages of an API server that does not answer now, but may soon."""

_OURS = "Forewarn: "
"""Prefix of the message in conditions that are set here; conditions of others are left alone."""

_REQUEST_TIMEOUT_S = 15
_RETRY_DELAY_S = 5.0
_COMPLETED = "DrainCompleted"
_FAILED = "DrainFailed"
_OVER = "NoMaintenance"


class NodeConditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names of the node's conditions; an empty one is not set.

    Attributes:
        planned: Condition that is true from the moment the event is seen until it starts.
        draining: Condition that is true while pods are evicted.
        drained: Condition that is true from the end of the eviction until the event is over.
        in_progress: Condition that is true from the start of the event until it is over.
        reason: Reason given for true conditions; a word in CamelCase.
    """

    planned: str = "MaintenancePlanned"
    draining: str = "DrainInProgress"
    drained: str = "Drained"
    in_progress: str = "MaintenanceInProgress"
    reason: str = "MaintenanceWindow"

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, names that Kubernetes would refuse."""
        for name in filter(None, self.names):
            if not _CONDITION.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid condition type: expected for example 'MaintenancePlanned'")
        if not _REASON.fullmatch(self.reason):
            msg = f"{self.reason!r} is not a valid condition reason: expected for example 'MaintenanceWindow'"
            raise ValueError(msg)

    @property
    def names(self) -> tuple[str, str, str, str]:
        """All four names."""
        return self.planned, self.draining, self.drained, self.in_progress


@dataclass(frozen=True, slots=True)
class _Node:
    """State of a node, as read from the cluster."""

    is_cordoned: bool
    taints: Mapping[tuple[str, str], str]
    """Values by key and effect."""
    conditions: Mapping[str, Mapping[str, Any]]
    """Conditions by type."""


class KubernetesHandler(BuiltInHandler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kubernetes"):
    """Cordons and drains a node. After the event, uncordons the node unless it was cordoned before.

    Attributes:
        node: The node's name; if not set, this VM's name in lower case.
        kubectl: Program to run as kubectl.
        kubeconfig: Path of the kubeconfig file; if not set, kubectl chooses the file.
        context: Context in the kubeconfig file; if not set, the current context of the file.
        drain: True to evict pods; otherwise the node is only cordoned.
        drain_timeout: Time limit for the eviction of pods; must be shorter than `timeout`.
        drain_args: Further options of ``kubectl drain``, each of the form ``--name=value``.
        grace: Time that pods get to end; if not set, the grace period of each pod.
        taint: Taint to set on the node as well, as ``key=value:effect``; if not set, no taint.
        condition: True to report the progress of the event in conditions of the node, such as ``MaintenancePlanned``
            and ``Drained``; needs kubectl 1.24 or newer.
        conditions: Table of names for the conditions that `condition` sets, with the keys `planned`, `draining`,
            `drained` and `in_progress`. The key `reason` replaces ``MaintenanceWindow`` as the reason of these
            conditions. A condition whose name is empty is not set.
        patience: Maximum time to retry while the API server does not answer.
    """

    node: str = ""
    kubectl: str = "kubectl"
    kubeconfig: str = ""
    context: str = ""
    drain: bool = True
    drain_timeout: Duration = Duration(minutes=4)
    drain_args: tuple[str, ...] = ()
    grace: Duration | None = None
    taint: str = ""
    condition: bool = False
    conditions: NodeConditions = NodeConditions()
    patience: Duration = Duration(minutes=2)

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, settings that kubectl would reject or misread."""
        if self.node and not _NODE.fullmatch(self.node):
            msg = f"{self.node!r} is not a valid node name: expected lower-case letters, digits, '-' and '.'"
            raise ValueError(msg)
        if not self.kubectl or self.kubectl.startswith("-"):
            raise ValueError(f"{self.kubectl!r} is not a valid program name")
        if self.taint and not _TAINT.fullmatch(self.taint):
            effects = "NoSchedule, PreferNoSchedule or NoExecute"
            msg = f"{self.taint!r} is not a valid taint: expected key=value:effect with the effect {effects}"
            raise ValueError(msg)
        for option in self.drain_args:
            if not re.match(r"--?[A-Za-z]", option):
                raise ValueError(f"{option!r} in drain_args is not an option: expected the form --name=value")
        # kubectl takes whole seconds, and reads 0 as no limit.
        if self.drain and not timedelta(seconds=1) <= self.drain_timeout < self.timeout:
            raise ValueError("drain_timeout must be at least 1s, and shorter than timeout")

    async def prepare(self, context: HandlerContext) -> None:
        name = self._choose_node_name(context)
        # Read only once: on a repeated run, the node may be cordoned by us.
        if "cordoned" not in context.memory:
            if self.condition:
                await self._check_subresource(context)
            node = await self._read_node(context, name)
            if node is None:
                raise HookFailed(f"the cluster has no node {name}: set `node` to the name of this VM's node")
            # A missing taint is stored as None, a taint without a value as an empty string.
            await context.remember(
                node=name, cordoned=node.is_cordoned, taint=node.taints.get(self._taint_key_and_effect)
            )
        await self._set_conditions(context, {self.conditions.planned: True}, self.conditions.reason)
        await self._cordon_or_uncordon(context, name, "cordon")
        if self.taint:
            # Without --overwrite, kubectl refuses a taint whose key and effect exist, as they do on a repeated run.
            await self._run_kubectl(context, "taint", "nodes", name, self.taint, "--overwrite")
        if self.drain:
            await self._drain_node(context, name)

    async def react_to_start(self, context: HandlerContext) -> None:
        if not self.condition:
            return
        # Preparation failed before it could store the name of the node.
        if not context.memory:
            await self._check_subresource(context)
            await context.remember(node=self._choose_node_name(context))
        names = self.conditions
        await self._set_conditions(context, {names.planned: False, names.in_progress: True}, names.reason)

    async def undo(self, context: HandlerContext) -> None:
        if not context.memory:
            return
        name = context.memory["node"]
        node = await self._read_node(context, name)
        if node is None:
            context.log(f"node {name} no longer exists; nothing to restore")
            return
        # If preparation never ran, `react_to_start` has remembered only the name, and nothing was cordoned.
        if "cordoned" in context.memory:
            await self._restore_taint(context, name, node)
            if node.is_cordoned and not context.memory["cordoned"]:
                await self._cordon_or_uncordon(context, name, "uncordon")
        await self._set_conditions(context, dict.fromkeys(self.conditions.names, False), _OVER, "is over")

    def describe_actions(self) -> Sequence[str]:
        node = f"the node {self.node}" if self.node else "this VM's node"
        lines = [f"cordon {node}"]
        if self.taint:
            lines.append(f"taint {node} with {self.taint}")
        if self.drain:
            lines.append(f"drain {node} within {format_duration(self.drain_timeout)}: {' '.join(self._drain_options)}")
        if self.condition:
            lines.append(f"set conditions of {node}: {', '.join(dict.fromkeys(filter(None, self.conditions.names)))}")
        return lines

    # Queries and commands to the cluster

    async def _read_node(self, context: HandlerContext, name: str) -> _Node | None:
        """Return the node; None if there is none. An API server that does not answer is asked again for a while."""
        until = context.now + self.patience
        while True:
            try:
                # With --ignore-not-found, a missing node gives empty output, so it is not mistaken for an error.
                ran = await self._run_kubectl(context, "get", "node", name, "--output=json", "--ignore-not-found")
            except HookFailed as error:
                if not _PASSING.search(error.message) or context.now >= until:
                    raise
                context.log(f"{error.message}; retrying")
            else:
                return _decode_node(ran.output) if ran.output.strip() else None
            await context.pause(_RETRY_DELAY_S)

    async def _check_subresource(self, context: HandlerContext) -> None:
        """Check that kubectl can set conditions, before anything is changed.

        Raises:
            HookFailed: It is too old.
        """
        ran = await self._run_kubectl(context, "patch", "--help")
        if "--subresource" not in ran.output:
            msg = f"{self.kubectl} has no 'patch --subresource', so it cannot set conditions: expected 1.24 or newer"
            raise HookFailed(msg)

    async def _cordon_or_uncordon(
        self, context: HandlerContext, name: str, verb: Literal["cordon", "uncordon"]
    ) -> None:
        """Cordon or uncordon, then check the result: kubectl ends with status 0 even if it had no permission."""
        ran = await self._run_kubectl(context, verb, name)
        node = await self._read_node(context, name)
        if node is not None and node.is_cordoned != (verb == "cordon"):
            raise HookFailed(f"kubectl {verb} changed nothing{_format_last_error(ran)}")

    async def _drain_node(self, context: HandlerContext, name: str) -> None:
        names = self.conditions
        await self._set_conditions(context, {names.draining: True, names.drained: False}, names.reason)
        try:
            await self._run_kubectl(context, "drain", name, *self._drain_options)
        except HookFailed:
            with contextlib.suppress(HookFailed):  # the drain's error is the more important of the two
                await self._set_conditions(context, {names.draining: False, names.drained: False}, _FAILED)
            raise
        await self._set_conditions(context, {names.draining: False, names.drained: True}, _COMPLETED)

    async def _restore_taint(self, context: HandlerContext, name: str, node: _Node) -> None:
        """Remove the taint, or restore its former value."""
        before, key, effect = context.memory["taint"], *self._taint_key_and_effect
        if not self.taint or node.taints.get(self._taint_key_and_effect) == before:
            return
        if before is None:
            await self._run_kubectl(context, "taint", "nodes", name, f"{key}:{effect}-")
        else:
            value = f"={before}" if before else ""
            await self._run_kubectl(context, "taint", "nodes", name, f"{key}{value}:{effect}", "--overwrite")

    async def _set_conditions(
        self, context: HandlerContext, wanted: Mapping[str, bool], reason: str, what: str = ""
    ) -> None:
        """Set the conditions that differ, except those that another writer has set."""
        if not self.condition:
            return
        name = context.memory["node"]
        node = await self._read_node(context, name)
        message = _format_condition_message(context.event, what)
        changes = _build_condition_changes(node.conditions if node else {}, wanted, reason, message, context.now)
        if changes:
            # A strategic merge patch changes only conditions of the given types.
            patch = json.dumps({"status": {"conditions": changes}})
            await self._run_kubectl(
                context, "patch", "node", name, "--subresource=status", "--type=strategic", f"--patch={patch}"
            )

    async def _run_kubectl(self, context: HandlerContext, verb: str, *arguments: str) -> CommandResult:
        """Run kubectl.

        Raises:
            HookFailed: It failed; the message holds the last line of its errors.
        """
        # A drain is limited by its own --timeout instead.
        options = [] if verb == "drain" else [f"--request-timeout={_REQUEST_TIMEOUT_S}s"]
        if self.kubeconfig:
            options.append(f"--kubeconfig={self.kubeconfig}")
        if self.context:
            options.append(f"--context={self.context}")
        ran = await context.run(self.kubectl, verb, *arguments, *options, is_checked=False)
        if ran.status:
            raise HookFailed(f"kubectl {verb} ended with status {ran.status}{_format_last_error(ran)}")
        return ran

    def _choose_node_name(self, context: HandlerContext) -> str:
        name = self.node or context.vm.lower()
        if not _NODE.fullmatch(name):
            msg = f"this VM's name, {context.vm!r}, is not a valid node name: set `node` to the name of its node"
            raise HookFailed(msg)
        return name

    @property
    def _taint_key_and_effect(self) -> tuple[str, str]:
        match = _TAINT.fullmatch(self.taint)
        return (match["key"], match["effect"]) if match else ("", "")

    @property
    def _drain_options(self) -> tuple[str, ...]:
        seconds = int(self.drain_timeout.total_seconds())
        # Without the first two, kubectl drains no node that runs pods of a DaemonSet or pods with local data.
        options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s"]
        if self.grace is not None:
            # Rounded up, because 0 would kill the pods at once.
            options.append(f"--grace-period={math.ceil(self.grace.total_seconds())}")
        return (*options, *self.drain_args)


def _format_last_error(ran: CommandResult) -> str:
    """Return the last error line, ignoring hints on where to read more."""
    said = [line.strip() for line in ran.errors.splitlines() if line.strip() and not line.startswith("See '")]
    return f": {said[-1]}" if said else ""


def _decode_node(output: str) -> _Node:
    try:
        content = json.loads(output)
        spec, status = content["spec"], content["status"]
        taints = {(each["key"], each["effect"]): each.get("value", "") for each in spec.get("taints") or ()}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HookFailed("kubectl get did not print a node") from error
    return _Node(is_cordoned=bool(spec.get("unschedulable")), taints=taints, conditions=conditions)


def _build_condition_changes(
    found: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, bool], reason: str, message: str, now: datetime
) -> list[dict[str, str]]:
    """Return the conditions to set, in the API's format; the transition time changes only with the status."""
    changes = []
    for kind, is_true in wanted.items():
        there, status, moment = found.get(kind, {}), str(is_true), _format_time(now)
        if kind and _may_set_condition(there, message, is_true=is_true):
            times = {"lastHeartbeatTime": moment}
            if there.get("status") != status:
                times["lastTransitionTime"] = moment
            changes.append({"type": kind, "status": status, "reason": reason, "message": message, **times})
    return changes


def _may_set_condition(current: Mapping[str, Any], message: str, *, is_true: bool) -> bool:
    """Return True if the condition differs from the wanted one and no other writer has set it.

    A condition that another event has set here is taken over, but is left as it is when ours is over.
    """
    status, said = current.get("status"), str(current.get("message", ""))
    if is_true:
        return status != "True" or (said.startswith(_OURS) and said != message)
    # The message ends with the id of its event, and only that event may reset the condition.
    return status == "True" and said.startswith(_OURS) and said.rpartition("(")[2] == message.rpartition("(")[2]


def _format_condition_message(event: Event, what: str) -> str:
    """Return the message of a condition; it ends with the event's id in parentheses."""
    if not what:
        moment = event.not_before
        what = (
            "has started"
            if event.is_started
            else "is planned" + (f", not before {_format_time(moment)}" if moment else "")
        )
    return f"{_OURS}{event.type} of this VM {what} (event {event.id})"


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
