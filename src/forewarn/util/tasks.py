"""Ending of asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["cancel_tasks"]


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and return when all have ended; their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
