"""Defines the navigation of the documentation site.

The pages contain no navigation, so that they read well on a code host. `SECTIONS` defines their order. A page that it
does not list is appended to the last group of its folder, so that no page is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["FRONT", "SECTIONS", "toctrees"]

FRONT = "README"
"""Name of the front page of the site, and of each folder."""
PROJECT = ("ARCHITECTURE", "CONTRIBUTING", "SECURITY", "CHANGELOG")

SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "tutorial": {"": ("first-steps", "agent", "test-your-handler", "private-cloud")},
    "how-to": {
        "In the VM": (
            "agent-install",
            "agent-systemd",
            "agent-haproxy",
            "agent-nginx",
            "agent-kubernetes",
            "agent-pacemaker",
            "agent-health-file",
            "agent-webhooks",
            "agent-several-vms",
            "agent-windows",
            "use-the-client",
        ),
        "Test": (
            "test-a-handler",
            "write-a-scenario",
            "inject-faults",
            "virtual-time",
            "simulate-a-cluster",
            "record-and-replay",
            "check-an-endpoint",
            "try-a-handler-on-github",
            "run-in-a-container",
            "unmodified-handlers",
        ),
        "Run it": ("install", "inventory", "operate", "use-the-command-line", "use-the-dashboard"),
    },
    "reference": {
        "Words": ("glossary",),
        "Commands": ("commands", "exit-statuses", "environment", "files"),
        "The service": ("settings", "control-api", "errors", "metrics", "audit-log", "lifecycle", "versions"),
        "The agent": ("agent-configuration", "agent-hooks", "agent-metrics"),
        "For tests, and from code": ("python", "scenarios", "faults", "planted-faults", "conformance"),
    },
    "explanation": {"": ("protocol", "testing")},
    "adr": {"": ()},
}
"""Folders of docs/, with their groups, and the pages of each group in order."""


def toctrees(root: Path, docname: str) -> Iterator[str]:
    """Return the lists of pages to append to a page, as MyST."""
    if docname == FRONT:
        yield _toctree("", ["docs/README", *(f"docs/{folder}/README" for folder in SECTIONS)], is_hidden=True)
        yield _toctree("The project", [*PROJECT, "docs/benchmarks", "docs/benchmark-results"], is_hidden=True)
        return
    folder = docname.removeprefix("docs/").removesuffix("/README")
    if docname != f"docs/{folder}/README" or folder not in SECTIONS:
        return
    groups = {heading: list(pages) for heading, pages in SECTIONS[folder].items()}
    named = {page for pages in groups.values() for page in pages}
    found = sorted(p.stem for p in (root / "docs" / folder).glob("*.md") if p.stem != "README")
    groups[list(groups)[-1]] += [page for page in found if page not in named]
    for heading, pages in groups.items():
        yield _toctree(heading, [page for page in pages if page in found])


def _toctree(caption: str, pages: list[str], *, is_hidden: bool = False) -> str:
    options = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * is_hidden + [":maxdepth: 1"]
    return "\n\n" + "\n".join(["```{toctree}", *options, "", *pages, "```"]) + "\n"
