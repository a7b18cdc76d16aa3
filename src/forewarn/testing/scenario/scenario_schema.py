"""JSON Schema of scenario files, generated from the models that read them."""

from __future__ import annotations

import json
from typing import Any

from forewarn.testing.scenario.scenario_model import ACTIONS, SETTINGS, ScenarioIn, TimelineStep

__all__ = ["encode_scenario_schema", "scenario_schema"]

_PARAMETER = {"$ref": "#/$defs/Parameter"}
_BOUNDS = {"enum", "const", "pattern", "format"}
_TYPES = {"integer", "number", "boolean"}
_MAPS = {"properties", "$defs"}
_LISTS = {"anyOf", "oneOf", "allOf"}
_SCHEMAS = {"items", "additionalProperties"}


def encode_scenario_schema() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(scenario_schema(), indent=1, ensure_ascii=False) + "\n"


def scenario_schema() -> dict[str, Any]:
    """Return the schema, in JSON Schema 2020-12.

    It gives the keys, the values each may have, and the rule that a step does exactly one thing. Any value that is not
    text may be a parameter instead. References between names are left to ``forewarn scenario check``.
    """
    schema = ScenarioIn.model_json_schema(by_alias=True)
    # Taken out first: in a declaration of parameters, `${name}` is not allowed as a value.
    kept = schema["properties"].pop("parameters")
    parameters_of_step = schema["$defs"][TimelineStep.__name__]["properties"].pop("set")
    schema = _allow_parameters(schema)
    schema["properties"]["settings"]["propertyNames"] = {"enum": sorted(SETTINGS)}
    schema["properties"]["parameters"] = kept | {"additionalProperties": False}
    step = schema["$defs"][TimelineStep.__name__]
    step["properties"]["set"] = parameters_of_step | {"additionalProperties": False}
    step["oneOf"] = [{"required": [action]} for action in ACTIONS]
    step["not"] = {"required": ["at", "after"]}
    step["dependentRequired"] = {"set": ["include"]}
    schema["$defs"]["Parameter"] = {
        "type": "string",
        "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]{0,63}\}",
        "description": "Reference to a parameter.",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _allow_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a parameter allowed in place of every value that is not plain text."""
    made = {key: _allow_parameters_in_value(key, value) for key, value in schema.items()}
    # pydantic writes a timedelta in ISO 8601, which scenario files do not accept.
    if _is_iso_duration(made.get("default")):
        del made["default"]
    if "description" in made:
        made["description"] = _extract_first_paragraph(made["description"])
    kind = made.get("type")
    # Plain text can hold `${name}` anyway; only a value that is checked more strictly needs the alternative.
    is_checked = kind in _TYPES or (kind in {"string", None} and not _BOUNDS.isdisjoint(made))
    return {"anyOf": [made, _PARAMETER]} if is_checked else made


def _extract_first_paragraph(docstring: str) -> str:
    """Return the paragraph for authors of scenarios; the rest is for readers of the code."""
    return " ".join(docstring.partition("\n\n")[0].split())


def _allow_parameters_in_value(key: str, value: Any) -> Any:  # noqa: ANN401 - a part of a schema
    if key in _MAPS:
        return {name: _allow_parameters(each) for name, each in value.items()}
    if key in _LISTS:
        return [_allow_parameters(each) for each in value]
    if key in _SCHEMAS and isinstance(value, dict):
        return _allow_parameters(value)
    return value


def _is_iso_duration(value: object) -> bool:
    return isinstance(value, str) and value.startswith("P") and value[1:2] in {"T", "1"}
