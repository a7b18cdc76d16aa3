"""What the checks may look at: the settings of this machine and the control API of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from forewarn.config.loading import load_settings
from forewarn.config.settings import Settings
from forewarn.errors import ConfigError, ForewarnError

__all__ = ["Situation"]

_TOKENS_MAX = 1000


@dataclass(frozen=True, kw_only=True)  # not slotted: the answers are read once, and kept
class Situation:
    """The set-up that is checked.

    Attributes:
        now: Time of this machine.
        fetch: Function that returns the JSON of a path of the control API, with query parameters.
        config: File with settings; None for none.
    """

    now: datetime
    fetch: Callable[..., Any]
    config: Path | None = None

    @cached_property
    def loaded(self) -> Settings | ConfigError:
        """Settings that `forewarn serve` would use here, or the reason why it would not start."""
        try:
            return load_settings(self.config)
        except ConfigError as error:
            return error

    @property
    def settings(self) -> Settings | None:
        """Settings that `forewarn serve` would use here; None if they are invalid."""
        return self.loaded if isinstance(self.loaded, Settings) else None

    @cached_property
    def answer(self) -> dict[str, Any] | ForewarnError:
        """Status of the service, or the reason why there is none."""
        try:
            found: dict[str, Any] = self.fetch("/v1/status")
        except ForewarnError as error:
            return error
        return found

    @property
    def status(self) -> dict[str, Any] | None:
        """Status of the service; None if it does not answer."""
        return None if isinstance(self.answer, ForewarnError) else self.answer

    @cached_property
    def tokens(self) -> list[dict[str, Any]] | ForewarnError:
        """Valid tokens of people and programs, at most 1,000; or the reason why they cannot be listed."""
        try:
            found: list[dict[str, Any]] = self.fetch("/v1/tokens", valid=True, limit=_TOKENS_MAX)["items"]
        except ForewarnError as error:
            return error
        return found
