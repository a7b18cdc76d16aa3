"""Built-in handlers, the tables allowed in ``handlers`` of a rule."""

from __future__ import annotations

from typing import TypeAlias

from forewarn.agent.handlers.contract import Handler, Occasion, Ran
from forewarn.agent.handlers.file import File
from forewarn.agent.handlers.haproxy import HAProxy
from forewarn.agent.handlers.kubernetes import Kubernetes
from forewarn.agent.handlers.nginx import Nginx
from forewarn.agent.handlers.pacemaker import Pacemaker
from forewarn.agent.handlers.systemd import Systemd

__all__ = ["AnyHandler", "File", "HAProxy", "Handler", "Kubernetes", "Nginx", "Occasion", "Pacemaker", "Ran", "Systemd"]

AnyHandler: TypeAlias = File | HAProxy | Kubernetes | Nginx | Pacemaker | Systemd
"""Any built-in handler; ``use`` selects it."""
