"""Writes the reference pages that come from the code.

Settings, commands, errors, metrics, the control API, the lifecycle, the versions of the protocol.
``python tools/build_docs.py`` writes them; with ``--check`` it only says which are stale, and fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from pydantic_core import PydanticUndefined

from forewarn import errors
from forewarn.cli.main import app as cli
from forewarn.cli.openapi import openapi_document
from forewarn.config import Settings
from forewarn.core.causes import CAUSES, MINIMUM_NOTICE
from forewarn.core.lifecycle import EVENT_STATUS, TRANSITIONS
from forewarn.core.model import ACTIVE_STATES, MaintenanceState
from forewarn.endpoint.traffic import Limits, Traffic
from forewarn.feed import Feed
from forewarn.metrics import Metrics
from forewarn.span import format_span
from forewarn.wire.imds import VERSIONS, Dialect

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Made by `make docs`; changes belong into the code it is made from. -->\n\n"


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _table(*heads: str) -> str:
    return _row(*heads) + _row(*("---" for _ in heads))


def settings() -> str:
    """Every setting of `forewarn serve`."""
    text = (
        "# Settings\n\nA value is taken from the first of: command-line flag, environment variable, TOML file "
        "(`--config`), default.\nThe variable of `database_url` is `FOREWARN_DATABASE_URL`. Any setting can be given as "
        "`--set NAME=VALUE`.\nSpans of time are written `90s`, `15m`, `24h` or `7d`.\n\n"
    )
    text += _table("setting", "default", "what it does")
    for name, field in Settings.model_fields.items():
        text += _row(f"`{name}`", _default(field), field.description or "")
    return text


def _default(field: Any) -> str:  # noqa: ANN401 - pydantic's FieldInfo
    if field.default is PydanticUndefined:
        return "the user's state folder" if field.default_factory is not None else "required"
    value = field.default
    if value is None:
        return "not set"
    shown = format_span(value) if hasattr(value, "total_seconds") else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def error_codes() -> str:
    """Every error, from the tree in `forewarn.errors`."""
    text = (
        "# Errors\n\nThe control API answers every error as "
        '`{"error": {"code": "…", "message": "…", "details": {…}}}`.\n`code` is stable and meant for programs; `message` '
        "is one line for a person.\n\n"
    )
    text += _table("code", "status", "class", "when")
    for name in errors.__all__:
        kind = getattr(errors, name)
        text += _row(f"`{kind.code}`", kind.status, f"`{name}`", (kind.__doc__ or "").splitlines()[0])
    return text + (
        "\nA request that does not fit the schema gets `422 invalid_request`, an unknown path `404 not_found`, a body over "
        "the limit\n`413 too_large`.\n\nCommands write the message to stderr and end with 1 (failed), 2 (usage) or 3 (cannot "
        "reach the service).\n"
    )


def metrics() -> str:
    """Every metric of `/metrics`."""
    feed = Feed(Dialect())
    collector = Metrics(Traffic(Limits(), len(feed.versions)), feed, lambda: 0)
    text = "# Metrics\n\n`GET /metrics` on the control address, in the Prometheus text format; on loopback without a token.\n\n"
    text += _table("metric", "type", "labels", "what it tells")
    for family in sorted(collector.registry.collect(), key=lambda f: f.name):
        suffix = "_total" if family.type == "counter" else ""
        labels = sorted({label for s in family.samples for label in s.labels} - {"le"})
        text += _row(f"`{family.name}{suffix}`", family.type, ", ".join(labels), family.documentation)
    return text


def lifecycle() -> str:
    """The lifecycle, drawn from its table."""
    text = "# Lifecycle\n\nOf a maintenance; drawn from `TRANSITIONS` in `core/lifecycle.py`.\n\n```mermaid\nstateDiagram-v2\n"
    for (state, trigger), target in TRANSITIONS.items():
        text += f"    {state or '[*]'} --> {target}: {trigger}\n"
    for end in (s for s in MaintenanceState if s not in ACTIVE_STATES):
        text += f"    {end} --> [*]\n"
    text += "```\n\nWhat its events show in each state:\n\n" + _table("maintenance", "EventStatus", "in documents")
    for each in MaintenanceState:
        status = EVENT_STATUS.get(each, "no events yet")
        text += _row(each, status, "yes" if status in {"Scheduled", "Started"} else "no")
    text += "\nAn event that its scope no longer sees, because the scope was disabled, is `Withdrawn`.\n\n## Causes\n\n"
    text += _table("cause", "type", "source", "notice", "seconds", "description")
    for cause in CAUSES.values():
        notice = "none" if cause.is_immediate else format_span(cause.notice or MINIMUM_NOTICE[cause.type])
        text += _row(
            f"`{cause.name}`", cause.type, cause.source, notice, cause.duration_s, cause.description or "(empty)"
        )
    return text


def api_versions() -> str:
    """What each api-version of the metadata protocol shows."""
    text = "# Versions of the metadata protocol\n\n" + _table(
        "api-version", "event types", "members after NotBefore", "names", "Metadata header"
    )
    order = ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]
    for version in VERSIONS:
        types = ", ".join(t for t in order if t in version.types)
        names = "`_` + name (not for cloud services)" if version.prefixes_names else "as they are"
        header = "required" if version.requires_metadata else "not enforced"
        text += _row(version.name, types, ", ".join(version.members) or "none", names, header)
    return text


def control_api() -> str:
    """The routes of the control API, from its OpenAPI document."""
    document = openapi_document()
    text = (
        "# Control API\n\nJSON over the control address, with `Authorization: Bearer TOKEN`. The whole description is served "
        "at `/openapi.json`\nand, to look at, at `/docs`; `forewarn openapi` prints it. Changes take an `Idempotency-Key`: repeated under the same\nkey they are done once. Approving, applying an inventory and bringing a VM to the latest model are the same when repeated, with\nor without a key.\n\n"
    )
    text += _table("method", "path", "what it does", "answers")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            good = ", ".join(sorted(s for s in operation["responses"] if s.startswith("2")))
            what = (operation.get("description") or "").split("\n\n")[0].replace("\n", " ")
            text += _row(method.upper(), f"`{path}`", what, good)
    return text


def commands() -> str:
    """Every command with its help."""
    text = "# Commands\n\nEvery command has `--help` with examples.\n"
    for words, command in _walk(typer.main.get_command(cli), ("forewarn",)):
        text += f"\n## {' '.join(words)}\n\n{_help(command)}\n"
        options = [p for p in command.params if p.name != "help"]
        if options:
            text += "\n" + _table("argument", "what it is")
            for option in options:
                names = (
                    ", ".join(f"`{o}`" for o in option.opts)
                    if option.opts[0].startswith("-")
                    else f"`{option.name.upper()}`"
                )
                text += _row(names, (getattr(option, "help", "") or "").strip())
    return text


def _walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - click's commands
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        if not child.hidden:
            yield from _walk(child, (*words, name))


def _help(command: Any) -> str:  # noqa: ANN401 - a click command
    parts = [(command.help or "").strip(), (command.epilog or "").strip()]
    return "\n\n".join(part for part in parts if part)


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "errors.md": error_codes,
    "metrics.md": metrics,
    "lifecycle.md": lifecycle,
    "versions.md": api_versions,
    "control-api.md": control_api,
    "commands.md": commands,
}


def stale() -> Iterator[str]:
    """Names of the pages that differ from what the code says."""
    for name, make in PAGES.items():
        path = REFERENCE / name
        if not path.is_file() or path.read_text() != _page(make):
            yield name


def _page(make: Callable[[], str]) -> str:
    return NOTE + make()


def main() -> int:
    """Write the pages, or check them."""
    if "--check" in sys.argv[1:]:
        names = list(stale())
        if names:
            print(f"stale: {', '.join(names)}; run make docs")
        return 1 if names else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(_page(make))
    (REFERENCE / "openapi.json").write_text(json.dumps(openapi_document(), indent=1) + "\n")
    print(f"wrote {len(PAGES) + 1} pages to {REFERENCE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
