"""The reference pages say what the code says, and what is public is what they name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import forewarn
from forewarn.cli.command import BROKEN_PIPE
from forewarn.cli.inventory import DIFFERS
from forewarn.cli.maintenance_wait import MISSED, TIMED_OUT
from forewarn.cli.openapi import openapi_document
from forewarn.config.settings import Settings
from forewarn.core.model import EntryKind
from tools import build_docs
from tools.reference import surroundings
from tools.reference.library import autodoc, library
from tools.reference.openapi import control_api


def test_no_reference_page_is_stale() -> None:
    assert list(build_docs.stale()) == [], "run make reference"


def _modules() -> list[str]:
    found = pkgutil.walk_packages(forewarn.__path__, "forewarn.")
    return [m.name for m in found if ".migrations" not in m.name and not m.name.endswith("__main__")]


def test_every_module_says_what_is_public() -> None:
    without = [name for name in _modules() if not _is_package_without_names(name) and not _names(name)]
    assert without == []


def test_every_public_name_exists_and_has_a_docstring() -> None:
    faults = []
    for module_name in _modules():
        module = importlib.import_module(module_name)
        for name in _names(module_name):
            value = getattr(module, name, None)
            if value is None:
                faults.append(f"{module_name}.{name} does not exist")
            elif (inspect.isroutine(value) or inspect.isclass(value)) and not getattr(value, "__doc__", None):
                faults.append(f"{module_name}.{name} has no docstring")
    assert faults == []


def _names(module_name: str) -> list[str]:
    names: list[str] = getattr(importlib.import_module(module_name), "__all__", [])
    return names


def _is_package_without_names(module_name: str) -> bool:
    return hasattr(importlib.import_module(module_name), "__path__")


def _said_variables() -> set[str]:
    """Every variable of ours that the source names."""
    source = "\n".join(path.read_text() for path in Path(forewarn.__file__).parent.rglob("*.py"))
    return set(re.findall(r"\bFOREWARN_[A-Z]+(?:_[A-Z]+)*\b", source))


def test_every_variable_of_the_source_stands_in_a_page() -> None:
    settings = {f"FOREWARN_{name.upper()}" for name in Settings.model_fields}
    page = surroundings.environment()
    assert {name for name in _said_variables() - settings if f"`{name}`" not in page} == set()


def test_every_metric_of_an_endpoint_stands_in_the_page_of_metrics() -> None:
    source = "\n".join(path.read_text() for path in (Path(forewarn.__file__).parent / "host").glob("*.py"))
    named = set(re.findall(r'"(forewarn_endpoint_\w+)"', source))
    assert len(named) >= 5
    assert {name for name in named if f"`{name}`" not in build_docs.metrics()} == set()


def test_the_page_of_metrics_names_the_labels_of_metrics_that_have_no_samples_yet() -> None:
    page = build_docs.metrics()
    assert "| `forewarn_control_connections` | gauge | caller |" in page
    assert "| `forewarn_deliveries_total` | counter | subscription, outcome |" in page
    assert "| `forewarn_over_limit_total` | counter | limit |" in page
    assert "| `forewarn_start_lateness_seconds` | histogram |  |" in page


def test_a_variable_with_several_values_is_not_described_as_a_repeatable_option() -> None:
    assert [name for name, said, _ in surroundings.variables() if "repeatable" in said] == []


def test_every_kind_of_audit_log_entry_stands_in_its_page() -> None:
    page = surroundings.audit_log()
    assert [kind for kind in EntryKind if f"| `{kind}` | " not in page] == []


def test_every_route_and_schema_of_the_control_api_stands_in_its_page() -> None:
    document, page = openapi_document(), control_api()
    routes = [f"### {method.upper()} {path}\n" for path, methods in document["paths"].items() for method in methods]
    assert [route for route in routes if route not in page] == []
    members = {name for schema in document["components"]["schemas"].values() for name in schema.get("properties", {})}
    assert {name for name in members if f"| `{name}`" not in page} == set()


def test_a_link_of_the_page_of_the_control_api_leads_to_a_heading() -> None:
    page = control_api()
    found = re.findall(r"^#+ (.*)", page, re.MULTILINE)
    headings = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= headings


def test_every_exit_status_that_a_command_ends_with_stands_in_its_page() -> None:
    assert [status for status, _ in surroundings.EXIT_STATUSES] == [
        0,
        1,
        2,
        3,
        DIFFERS,
        TIMED_OUT,
        MISSED,
        130,
        BROKEN_PIPE,
    ]
    assert (
        "| 75 | From `exec_command`: the command did nothing, and may be run again. |" in surroundings.exit_statuses()
    )


def test_every_public_name_of_the_library_stands_in_its_page() -> None:
    page, added = library(), autodoc()
    for module in map(importlib.import_module, ("forewarn.client", "forewarn.testing")):
        assert [name for name in module.__all__ if f"| `{name}` | " not in page or f":: {name}\n" not in added] == []
