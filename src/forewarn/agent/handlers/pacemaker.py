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

from forewarn.agent.codec import Span
from forewarn.agent.handlers.contract import Handler, Occasion
from forewarn.errors import HookFailed
from forewarn.util.duration import format_span

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

__all__ = ["Pacemaker"]

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

_ONLINE_WITHIN = Span(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A node of the cluster."""

    is_standby: bool
    is_able: bool
    """True if the node could run resources."""
    resources: tuple[str, ...]


class Pacemaker(Handler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="pacemaker"):
    """A node in standby, and out of it again, unless it was in standby before.

    Attributes:
        node: The node's name in the cluster; if empty, Pacemaker's name for this machine.
        tool: Tool that changes the cluster.
        lifetime: ``forever``: in standby until undone, also after a reboot; ``reboot``: until Pacemaker ends here.
        wait: Maximum time to wait until no resource runs here; shorter than `timeout`. 0s does not wait.
        alone: Response when no other node can run resources: ``refuse``, or ``proceed`` and stop them.
        patience: Maximum time to keep asking a cluster that does not answer or has not yet formed.
    """

    node: str = ""
    tool: Literal["auto", "crm_standby", "crm", "pcs"] = "auto"
    lifetime: Literal["forever", "reboot"] = "forever"
    wait: Span = Span(minutes=4)
    alone: Literal["refuse", "proceed"] = "refuse"
    patience: Span = Span(minutes=2)

    def __post_init__(self) -> None:
        """Check what types cannot express.

        Raises:
            ValueError: The name or a combination cannot be used.
        """
        if self.node and not _NODE.fullmatch(self.node):
            msg = f"{self.node!r} is no name of a node: expected letters, digits, '_', '-' and '.'"
            raise ValueError(msg)
        if self.tool == "pcs" and self.lifetime == "reboot":
            msg = "pcs knows no lifetime 'reboot': use another tool, or lifetime = 'forever'"
            raise ValueError(msg)
        if self.wait >= self.timeout:
            msg = "wait is expected to be shorter than timeout"
            raise ValueError(msg)

    async def prepare(self, occasion: Occasion) -> None:
        until = occasion.now + self.wait
        # Ask only once: on a repeated run, the standby may be our own.
        if "standby" not in occasion.memory:
            name = self.node or await self._local_name(occasion)
            found = _find(await self._members(occasion), name)
            await occasion.remember(node=name, standby=found.is_standby)
        if not occasion.memory["standby"]:
            await self._leave(occasion, until)
        await self._empty(occasion, until)

    async def undo(self, occasion: Occasion) -> None:
        if not occasion.memory or occasion.memory["standby"]:
            return
        name = occasion.memory["node"]
        members = await self._members(occasion)
        if name not in members:
            occasion.log(f"node {name} is no longer in the cluster, there is nothing to put back")
            return
        if not members[name].is_standby:
            return
        await self._change(occasion, name, is_standby=False)
        until = occasion.now + _ONLINE_WITHIN
        while _find(await self._members(occasion), name).is_standby:
            if occasion.now >= until:
                msg = f"node {name} is still in standby"
                raise HookFailed(msg)
            await occasion.pause(_POLL_INTERVAL_S)

    def explain(self) -> Sequence[str]:
        node = f"node {self.node}" if self.node else "this machine's node"
        tool = "" if self.tool == "auto" else f" with {self.tool}"
        lines = [f"put {node} of the Pacemaker cluster into standby{tool}"]
        if self.lifetime == "reboot":
            lines[0] += ", until it reboots"
        if self.alone == "refuse":
            lines.append("not if no other node can run its resources")
        if self.wait:
            lines.append(f"wait until no resource runs there, for at most {format_span(self.wait)}")
        return lines

    def _can_leave(self, members: Mapping[str, _Member], name: str) -> bool:
        """Return True if another node can run the resources, or if that does not matter."""
        return self.alone == "proceed" or any(each.is_able for other, each in members.items() if other != name)

    async def _leave(self, occasion: Occasion, until: datetime) -> None:
        """Go into standby as soon as another node can run the resources."""
        name = occasion.memory["node"]
        while True:
            members = await self._members(occasion)
            is_standby = _find(members, name).is_standby
            if self._can_leave(members, name):
                break
            if is_standby:
                await self._return(occasion, name)
            if occasion.now >= until:
                msg = f"no other node of the cluster can run what runs on {name}"
                raise HookFailed(msg)
            await occasion.pause(_POLL_INTERVAL_S)
        if not is_standby:
            await self._change(occasion, name, is_standby=True)

    async def _empty(self, occasion: Occasion, until: datetime) -> None:
        """Wait until no resource runs here, and go back if the other nodes have left as well."""
        name = occasion.memory["node"]
        while self.wait:
            members = await self._members(occasion)
            found = _find(members, name)
            if not occasion.memory["standby"] and not self._can_leave(members, name):
                await self._return(occasion, name)
            if found.is_standby and not found.resources:
                return
            if occasion.now >= until:
                raise HookFailed(_why(name, found))
            await occasion.pause(_POLL_INTERVAL_S)

    async def _return(self, occasion: Occasion, name: str) -> NoReturn:
        """Leave standby because no other node is left: two nodes may have checked at the same time."""
        await self._change(occasion, name, is_standby=False)
        msg = f"no other node of the cluster is left to run resources, so {name} is out of standby again"
        raise HookFailed(msg)

    # Queries and commands to the cluster

    async def _members(self, occasion: Occasion) -> Mapping[str, _Member]:
        """Return the nodes, once the cluster has formed."""
        until = occasion.now + self.patience
        while True:
            content = _parse(await self._ask(occasion, "crm_mon", "--one-shot", "--output-as=xml"))
            coordinator = content.find("summary/current_dc")
            if coordinator is not None and coordinator.get("present") == "true":
                return _members_of(content)
            if occasion.now >= until:
                msg = "the cluster has not come together: it has no designated coordinator"
                raise HookFailed(msg)
            await occasion.pause(_RETRY_DELAY_S)

    async def _local_name(self, occasion: Occasion) -> str:
        name = (await self._ask(occasion, "crm_node", "--name")).strip()
        if not _NODE.fullmatch(name):
            msg = f"crm_node calls this machine {name!r}, which is no name of a node: the setting node says which it is"
            raise HookFailed(msg)
        return name

    async def _ask(self, occasion: Occasion, *command: str) -> str:
        """Run a command and return its output; a cluster that does not answer is asked again for a while."""
        until = occasion.now + self.patience
        while True:
            ran = await occasion.run(*command, is_checked=False)
            if ran.status == 0:
                return ran.output
            if ran.status == _USAGE or occasion.now >= until:
                raise HookFailed(_failure(command, ran.status, ran.errors or ran.output))
            await occasion.pause(_RETRY_DELAY_S)

    async def _change(self, occasion: Occasion, name: str, *, is_standby: bool) -> None:
        into, out = _TOOLS[self._tool]
        command = [word.format(node=name, lifetime=self.lifetime) for word in (into if is_standby else out)]
        ran = await occasion.run(*command, is_checked=False)
        if ran.status:
            raise HookFailed(_failure(command, ran.status, ran.errors or ran.output))

    @property
    def _tool(self) -> str:
        if self.tool != "auto":
            return self.tool
        found = next((tool for tool in _TOOLS if shutil.which(tool)), None)
        if found is None or (found == "pcs" and self.lifetime == "reboot"):
            msg = f"none of {', '.join(_TOOLS)} can put this node into standby with lifetime {self.lifetime}"
            raise HookFailed(msg)
        return found


def _parse(output: str) -> Element:
    import xml.etree.ElementTree as ET

    try:
        return ET.fromstring(output)  # noqa: S314 - Pacemaker on this machine has written it
    except ET.ParseError as error:
        msg = "crm_mon printed something that is no XML: expected Pacemaker 2.0.3 or newer"
        raise HookFailed(msg) from error


def _members_of(content: Element) -> Mapping[str, _Member]:
    running: dict[str, list[str]] = {}
    for resource in content.iter("resource"):
        for node in resource.iterfind("node"):
            running.setdefault(node.get("name", ""), []).append(resource.get("id", ""))
    return {
        node.get("name", ""): _Member(
            is_standby=node.get("standby") == "true",
            is_able=node.get("online") == "true"
            and not any(node.get(state) == "true" for state in ("standby", "maintenance", "pending", "unclean")),
            resources=tuple(running.get(node.get("name", ""), ())),
        )
        for node in content.iterfind("nodes/node")
    }


def _find(members: Mapping[str, _Member], name: str) -> _Member:
    if name not in members:
        msg = f"the cluster has no node {name}, only {', '.join(members)}: the setting node says which is this VM's"
        raise HookFailed(msg)
    return members[name]


def _why(name: str, found: _Member) -> str:
    """Return the reason why the wait did not succeed."""
    if not found.is_standby:
        return f"node {name} is not in standby, although the command for that said that it worked"
    return f"node {name} still runs {', '.join(found.resources)}"


def _failure(command: Sequence[str], status: int, said: str) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m|<[^>]*>", "", said).splitlines() if line.strip()]
    return f"{' '.join(command)} ended with status {status}" + (f": {lines[-1]}" if lines else "")
