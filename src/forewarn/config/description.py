"""Description of every setting: its value in force, where the value comes from, its default, unit and meaning."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

from forewarn.config.settings import Settings, SettingSource

__all__ = ["SettingDescription", "describe_settings", "format_setting_value", "mask_secrets"]

_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):[^/\s]*@")
_SECRET_PARAMETER = re.compile(
    r"(?<=[?&])([^=&#\s]*(?:password|passwd|secret|token|key)[^=&#\s]*)=[^&#\s]*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDescription:
    """A setting, for people.

    Attributes:
        value: Value in force, as in JSON; secrets are masked.
        default: Default value, likewise.
        source: Where the value comes from.
        unit: Unit of the value; None if it has none.
        variable: Environment variable that sets it.
        description: Meaning, in a sentence or a few.
    """

    name: str
    value: Any
    default: Any
    source: SettingSource
    unit: str | None
    variable: str
    description: str


def describe_settings(settings: Settings) -> list[SettingDescription]:
    """Return every setting, in the order of their declaration."""
    values = settings.model_dump(mode="json")
    # `model_construct` gives the defaults without the environment.
    defaults = Settings.model_construct().model_dump(mode="json")
    return [
        SettingDescription(
            name=name,
            value=mask_secrets(values[name]),
            default=mask_secrets(defaults[name]),
            source=settings.find_source(name),
            unit=_find_unit(name, field.annotation),
            variable=f"FOREWARN_{name.upper()}",
            description=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def format_setting_value(value: object) -> str:
    """Return the value of a setting as text; tables as JSON, as variables and flags take them."""
    if value is None:
        return "not set"
    if isinstance(value, bool | dict | list):
        return json.dumps(value)
    return str(value)


def mask_secrets(value: Any) -> Any:  # noqa: ANN401 - of any setting
    """Return the value; passwords and keys in a URL are replaced by asterisks."""
    if not isinstance(value, str):
        return value
    return _SECRET_PARAMETER.sub(r"\1=***", _PASSWORD.sub(r"\1:***@", value))


def _find_unit(name: str, annotation: object) -> str | None:
    if timedelta in (annotation, *get_args(annotation)) or "timedelta" in str(annotation):
        return "s, m, h or d"
    if "_bytes" in name:
        return "bytes"
    return "per second" if name.endswith("_per_s") else None
