"""Generates the page of the control API: routes with parameters and answers, and schemas with their members."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from forewarn.cli.openapi import openapi_document
from tools.reference.plain import row, table

__all__ = ["control_api"]

_INTRODUCTION = """\
# Control API

The control API is JSON over HTTP on the control address, with `Authorization: Bearer TOKEN`. The OpenAPI document is at
`/openapi.json`; `/docs` shows it in a browser, and `forewarn openapi` prints it. Routes with the parameter
`idempotency-key` carry out a request once, even if it is repeated with the same key. Approving, applying an inventory
and updating a VM to the latest model need no key: a repeated request changes nothing.

Every error is `{"error": {"code", "message", "details"}}`; [errors](errors.md) lists the codes. Lists are paged: to
get the next page, pass `next` as `after`. On the last page, `next` is null.

`*` marks members that a request must have, or that a response always has. A number such as R91 or X6 stands for a
requirement; [conformance](conformance.md) explains the letter. Some members have the limit `At most 316224000`: that is
ten years in seconds.

"""
_LIMITS = {
    "minLength": "Minimum length: {}",
    "maxLength": "Maximum length: {}",
    "minItems": "Minimum number of items: {}",
    "maxItems": "Maximum number of items: {}",
    "minimum": "At least {:.12g}",
    "maximum": "At most {:.12g}",
    "exclusiveMinimum": "More than {:.12g}",
    "exclusiveMaximum": "Less than {:.12g}",
    "pattern": "Pattern: `{}`",
}


def control_api() -> str:
    """Return the page."""
    document = openapi_document()
    schemas: dict[str, Any] = document["components"]["schemas"]
    routes = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    text = _INTRODUCTION + table("method", "path", "what it does", "answers")
    for method, path, operation in routes:
        good = ", ".join(sorted(status for status in operation["responses"] if status.startswith("2")))
        text += row(method, f"[`{path}`](#{_anchor(f'{method} {path}')})", _first(operation), good)
    text += "\n## Routes\n"
    for method, path, operation in routes:
        text += f"\n### {method} {path}\n\n{_said(operation)}\n" + _parameters(operation) + _bodies(operation)
    text += "\n## Schemas\n"
    for name in sorted(schemas, key=_plain):
        text += f"\n### {_plain(name)}\n\n" + _schema(schemas[name])
    return text


def _first(operation: dict[str, Any]) -> str:
    return (operation.get("description") or "").split("\n\n")[0].replace("\n", " ")


def _said(operation: dict[str, Any]) -> str:
    text = (operation.get("description") or "").strip()
    # The schema, which follows on the page, describes arguments, errors and results.
    return re.split(r"\n\n(?:Args|Raises|Returns):", text)[0]


def _parameters(operation: dict[str, Any]) -> str:
    parameters = operation.get("parameters", [])
    if not parameters:
        return ""
    text = "\n" + table("parameter", "in", "type", "what it is")
    for each in parameters:
        text += row(f"`{each['name']}`", each["in"], _type(each["schema"]), _about(each["schema"], each))
    return text


def _bodies(operation: dict[str, Any]) -> str:
    lines = []
    body = operation.get("requestBody")
    if body:
        types = dict.fromkeys(_type(kind.get("schema", {})) for kind in body["content"].values())
        media = " or ".join(f"`{name}`" for name in body["content"]) if len(body["content"]) > 1 else ""
        lines.append(
            f"Takes {' or '.join(types)}"
            + (f", as {media}" if media else "")
            + ("" if body.get("required") else ", or no body")
        )
    for status, response in sorted(operation["responses"].items()):
        if status.startswith("2"):
            kinds = [_type(kind.get("schema", {})) for kind in response.get("content", {}).values()]
            lines.append(f"Answers {status}" + (f" with {' or '.join(kinds)}" if any(kinds) else ""))
    bad = [f"`{status}`" for status in sorted(operation["responses"]) if not status.startswith("2")]
    if bad:
        lines.append(f"Errors {', '.join(bad)}")
    return "\n" + "".join(f"- {line}\n" for line in lines)


def _schema(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        said = (schema.get("description") or "").split("\n\n")[0].replace("\n", " ")
        values = f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.\n"
        return f"{said}\n\n{values}" if said else values
    said = (schema.get("description") or "").split("\n\n")[0].replace("\n", " ")
    text = f"{said}\n\n" if said else ""
    members = schema.get("properties", {})
    if not members:
        return text + _type(schema) + "\n"
    text += table("member", "type", "what it is")
    for name, member in members.items():
        shown = f"`{name}`" + (" *" if name in schema.get("required", []) else "")
        text += row(shown, _type(member), _about(member, member))
    return text


def _type(schema: dict[str, Any]) -> str:
    """Return a short description of a type, with links to its schemas."""
    if "$ref" in schema:
        name = _plain(schema["$ref"].rsplit("/", 1)[-1])
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema.get("anyOf") or schema["oneOf"]))
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum") or [schema["const"]])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("format") or schema.get("type") or "anything")


def _about(schema: dict[str, Any], said: dict[str, Any]) -> str:
    parts = [(said.get("description") or schema.get("description") or "").strip().rstrip(".")]
    parts += _limits(schema)
    if schema.get("default") not in (None, [], {}, ""):
        parts.append(f"Default: `{json.dumps(schema['default'])}`")
    return ". ".join(part for part in parts if part)


def _limits(schema: dict[str, Any]) -> Iterator[str]:
    for each in [schema, *schema.get("anyOf", [])]:
        for key, words in _LIMITS.items():
            if key in each:
                yield words.format(each[key])


def _plain(name: str) -> str:
    """Return a readable schema name: without the module's path, and `PageOut_VmOut_` becomes a page of VmOut."""
    name = name.rsplit("__", 1)[-1] if "__" in name else name
    page = re.fullmatch(r"PageOut_(\w+)_", name)
    return f"Page of {page[1]}" if page else name.replace("-Input", " taken").replace("-Output", " answered")


def _anchor(heading: str) -> str:
    """Return the anchor of a heading, as code hosts and the site derive it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
