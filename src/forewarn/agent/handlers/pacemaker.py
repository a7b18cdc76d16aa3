"""Put this VM's node of a Pacemaker cluster into standby, so that its resources run elsewhere.

The state of the cluster is always read with ``crm_mon``, whichever tool changes it: crmsh, for one, reports success
with status 0 even if it could not reach the node.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NoReturn

from forewarn.agent.codec import Duration
from forewarn.agent.handlers.contract import BuiltInHandler, HandlerContext
from forewarn.errors import HookFailed
from forewarn.util.duration import format_duration

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

__all__ = ["PacemakerHandler"]

_NODE = re.compile(r"[A-Za-z0-9_][\w.-]{0,255}", re.ASCII)

_TOOLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "crm_standby": (
        ("crm_standby", "--node={node}", "--update=on", "--lifetime={lifetime}"),
        ("crm_standby", "--node={node}", "--delete", "--lifetime={lifetime}"),
    ),
    "crm": (("crm", "node", "standby", "{node}", "{lifetime}"), ("crm", "node", "online", "{node}")),
    "pcs": (("pcs", "node", "standby", "{node}"), ("pcs", "node", "unstandby", "{node}")),
}
"""Commands into standby and out of it; ``auto`` takes the first tool that is installed."""

_POLL_INTERVAL_S = 1.0
_RETRY_DELAY_S = 5.0
_USAGE = 64
"""Exit status with which Pacemaker's tools reject a command line."""

_ONLINE_WITHIN = Duration(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClusterNode:
    """A node of the cluster."""

    is_standby: bool
    is_able: bool
    """True if the node could run resources."""
    resources: tuple[str, ...]


class PacemakerHandler(BuiltInHandler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pacemaker"):
    """Puts a node into standby. After the event, ends the standby unless the node was in standby before.

    Attributes:
        node: The node's name in the cluster; if not set, Pacemaker's name for this machine.
        tool: Tool that changes the cluster: ``crm_standby``, ``crm`` or ``pcs``; ``auto`` takes the first that is
            installed.
        lifetime: How long the standby lasts. ``forever``: until the handler ends it, also after a reboot. ``reboot``:
            until Pacemaker stops on this machine.
        wait: Maximum time to wait until no resource runs on the node; must be shorter than `timeout`. With ``0s``, the
            handler does not wait.
        alone: What the handler does if no other node can run resources. ``refuse``: the handler leaves the node in
            service, and fails. ``proceed``: the handler lets the resources stop.
        patience: Maximum time to retry while the cluster does not answer or has not yet formed.
    """

    node: str = ""
    tool: Literal["auto", "crm_standby", "crm", "pcs"] = "auto"
    lifetime: Literal["forever", "reboot"] = "forever"
    wait: Duration = Duration(minutes=4)
    alone: Literal["refuse", "proceed"] = "refuse"
    patience: Duration = Duration(minutes=2)

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, a name or a combination that cannot be used."""
        if self.node and not _NODE.fullmatch(self.node):
            raise ValueError(f"{self.node!r} is not a valid node name: expected letters, digits, '_', '-' and '.'")
        if self.tool == "pcs" and self.lifetime == "reboot":
            raise ValueError("pcs does not support lifetime 'reboot': use another tool, or lifetime = 'forever'")
        if self.wait >= self.timeout:
            raise ValueError("wait must be shorter than timeout")

    async def prepare(self, context: HandlerContext) -> None:
        until = context.now + self.wait
        # Ask only once: on a repeated run, the standby may be our own.
        if "standby" not in context.memory:
            name = self.node or await self._read_local_name(context)
            found = _find_node(await self._read_nodes(context), name)
            await context.remember(node=name, standby=found.is_standby)
        # A node that an operator put into standby stays as it is, also afterwards.
        if not context.memory["standby"]:
            await self._enter_standby(context, until)
        await self._wait_until_empty(context, until)

    async def undo(self, context: HandlerContext) -> None:
        if not context.memory or context.memory["standby"]:
            return
        name = context.memory["node"]
        members = await self._read_nodes(context)
        if name not in members:
            context.log(f"node {name} is no longer in the cluster; nothing to restore")
            return
        if not members[name].is_standby:
            return
        # The command only changes an attribute of the node; the cluster acts on it later.
        await self._set_standby(context, name, is_standby=False)
        until = context.now + _ONLINE_WITHIN
        while _find_node(await self._read_nodes(context), name).is_standby:
            if context.now >= until:
                raise HookFailed(f"node {name} is still in standby")
            await context.pause(_POLL_INTERVAL_S)

    def describe_actions(self) -> Sequence[str]:
        node = f"node {self.node}" if self.node else "this machine's node"
        tool = "" if self.tool == "auto" else f" with {self.tool}"
        lines = [f"put {node} of the Pacemaker cluster into standby{tool}"]
        if self.lifetime == "reboot":
            lines[0] += ", until it reboots"
        if self.alone == "refuse":
            lines.append("refuse if no other node can run its resources")
        if self.wait:
            lines.append(f"wait until no resource runs there, for at most {format_duration(self.wait)}")
        return lines

    def _can_leave(self, members: Mapping[str, _ClusterNode], name: str) -> bool:
        """Return True if another node can run the resources, or if that does not matter."""
        return self.alone == "proceed" or any(each.is_able for other, each in members.items() if other != name)

    async def _enter_standby(self, context: HandlerContext, until: datetime) -> None:
        """Go into standby as soon as another node can run the resources."""
        name = context.memory["node"]
        while True:
            members = await self._read_nodes(context)
            is_standby = _find_node(members, name).is_standby
            if self._can_leave(members, name):
                break
            # On a repeated run, this is our own standby, and the other nodes have become unable to take over.
            if is_standby:
                await self._return_to_service(context, name)
            if context.now >= until:
                raise HookFailed(f"no other node of the cluster can run the resources of {name}")
            await context.pause(_POLL_INTERVAL_S)
        if not is_standby:
            await self._set_standby(context, name, is_standby=True)

    async def _wait_until_empty(self, context: HandlerContext, until: datetime) -> None:
        """Wait until no resource runs here, and go back if the other nodes have left as well."""
        name = context.memory["node"]
        while self.wait:
            members = await self._read_nodes(context)
            found = _find_node(members, name)
            if not context.memory["standby"] and not self._can_leave(members, name):
                await self._return_to_service(context, name)
            if found.is_standby and not found.resources:
                return
            if context.now >= until:
                raise HookFailed(_describe_obstacle(name, found))
            await context.pause(_POLL_INTERVAL_S)

    async def _return_to_service(self, context: HandlerContext, name: str) -> NoReturn:
        """Leave standby because no other node is left: two nodes may have checked at the same time."""
        await self._set_standby(context, name, is_standby=False)
        msg = f"no other node of the cluster is left to run resources, so {name} was taken out of standby again"
        raise HookFailed(msg)

    # Queries and commands to the cluster

    async def _read_nodes(self, context: HandlerContext) -> Mapping[str, _ClusterNode]:
        """Return the nodes, once the cluster has formed."""
        until = context.now + self.patience
        while True:
            content = _parse_xml(await self._run_query(context, "crm_mon", "--one-shot", "--output-as=xml"))
            # Without a coordinator, the node knows only its own stored state, as before the cluster has formed.
            coordinator = content.find("summary/current_dc")
            if coordinator is not None and coordinator.get("present") == "true":
                return _parse_nodes(content)
            if context.now >= until:
                raise HookFailed("the cluster has not formed: it has no designated coordinator")
            await context.pause(_RETRY_DELAY_S)

    async def _read_local_name(self, context: HandlerContext) -> str:
        name = (await self._run_query(context, "crm_node", "--name")).strip()
        if not _NODE.fullmatch(name):
            msg = f"crm_node reports {name!r}, which is not a valid node name: set `node` to the name of this VM's node"
            raise HookFailed(msg)
        return name

    async def _run_query(self, context: HandlerContext, *command: str) -> str:
        """Run a command and return its output; a cluster that does not answer is asked again for a while."""
        until = context.now + self.patience
        while True:
            ran = await context.run(*command, is_checked=False)
            if ran.status == 0:
                return ran.output
            if ran.status == _USAGE or context.now >= until:
                raise HookFailed(_describe_failure(command, ran.status, ran.errors or ran.output))
            await context.pause(_RETRY_DELAY_S)

    async def _set_standby(self, context: HandlerContext, name: str, *, is_standby: bool) -> None:
        into, out = _TOOLS[self._chosen_tool]
        command = [word.format(node=name, lifetime=self.lifetime) for word in (into if is_standby else out)]
        ran = await context.run(*command, is_checked=False)
        if ran.status:
            raise HookFailed(_describe_failure(command, ran.status, ran.errors or ran.output))

    @property
    def _chosen_tool(self) -> str:
        if self.tool != "auto":
            return self.tool
        found = next((tool for tool in _TOOLS if shutil.which(tool)), None)
        if found is None or (found == "pcs" and self.lifetime == "reboot"):
            msg = f"none of {', '.join(_TOOLS)} can put this node into standby with lifetime {self.lifetime}"
            raise HookFailed(msg)
        return found


def _parse_xml(output: str) -> Element:
    import xml.etree.ElementTree as ET

    try:
        return ET.fromstring(output)  # noqa: S314 - Pacemaker on this machine has written it
    except ET.ParseError as error:
        raise HookFailed("crm_mon did not print XML: expected Pacemaker 2.0.3 or newer") from error


def _parse_nodes(content: Element) -> Mapping[str, _ClusterNode]:
    running: dict[str, list[str]] = {}
    for resource in content.iter("resource"):
        for node in resource.iterfind("node"):
            running.setdefault(node.get("name", ""), []).append(resource.get("id", ""))
    return {
        node.get("name", ""): _ClusterNode(
            is_standby=node.get("standby") == "true",
            is_able=node.get("online") == "true"
            and not any(node.get(state) == "true" for state in ("standby", "maintenance", "pending", "unclean")),
            resources=tuple(running.get(node.get("name", ""), ())),
        )
        for node in content.iterfind("nodes/node")
    }


def _find_node(members: Mapping[str, _ClusterNode], name: str) -> _ClusterNode:
    if name not in members:
        msg = f"the cluster has no node {name}, only {', '.join(members)}: set `node` to the name of this VM's node"
        raise HookFailed(msg)
    return members[name]


def _describe_obstacle(name: str, found: _ClusterNode) -> str:
    """Return the reason why the wait did not succeed."""
    if not found.is_standby:
        return f"node {name} is not in standby, although the command reported success"
    return f"node {name} still runs {', '.join(found.resources)}"


def _describe_failure(command: Sequence[str], status: int, printed: str) -> str:
    # crmsh colours its messages, and with --output-as=xml crm_mon reports errors as XML.
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m|<[^>]*>", "", printed).splitlines() if line.strip()]
    return f"{' '.join(command)} ended with status {status}" + (f": {lines[-1]}" if lines else "")
