"""Built-in handlers: what a table in ``handlers`` of a rule may be."""

from __future__ import annotations

from typing import TypeAlias

from forewarn.agent.handlers.contract import Handler, Occasion, Ran
from forewarn.agent.handlers.file import File

__all__ = ["AnyHandler", "File", "Handler", "Occasion", "Ran"]

AnyHandler: TypeAlias = File
"""Every built-in handler; ``use`` says which."""
