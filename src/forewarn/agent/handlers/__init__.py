"""Built-in handlers, the tables allowed in ``handlers`` of a rule."""

from __future__ import annotations

from typing import TypeAlias

from forewarn.agent.handlers.contract import BuiltInHandler, CommandResult, HandlerContext
from forewarn.agent.handlers.file import FileHandler
from forewarn.agent.handlers.haproxy import HAProxyHandler
from forewarn.agent.handlers.kubernetes import KubernetesHandler
from forewarn.agent.handlers.nginx import NginxHandler
from forewarn.agent.handlers.pacemaker import PacemakerHandler
from forewarn.agent.handlers.systemd import SystemdHandler

__all__ = [
    "AnyHandler",
    "BuiltInHandler",
    "CommandResult",
    "FileHandler",
    "HAProxyHandler",
    "HandlerContext",
    "KubernetesHandler",
    "NginxHandler",
    "PacemakerHandler",
    "SystemdHandler",
]

AnyHandler: TypeAlias = (
    FileHandler | HAProxyHandler | KubernetesHandler | NginxHandler | PacemakerHandler | SystemdHandler
)
"""Any built-in handler; ``use`` selects it."""
