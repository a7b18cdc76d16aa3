"""The configuration can be read, and the service would start with it."""

from __future__ import annotations

from forewarn.config.settings import Settings
from forewarn.doctor.finding import Finding, fail, ok
from forewarn.doctor.situation import Situation

__all__ = ["check_configuration"]


def check_configuration(situation: Situation) -> Finding:
    """Check the file and the environment variables with settings."""
    where = "defaults and variables" if situation.config is None else str(situation.config)
    if isinstance(situation.loaded, Settings):
        return ok(f"the settings are valid ({where})")
    return fail(situation.loaded.message, "Correct the setting; 'forewarn config show' lists all settings.")
