"""Sphinx extension of the documentation site: adds navigation, links to folders, and diagrams to the pages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

from tools.diagrams import draw
from tools.reference.library import PAGE, autodoc
from tools.site_pages import FRONT, toctrees

__all__ = ["setup"]

_FRAME = '<div class="diagram-frame">{}</div>\n'


def setup(app: Any) -> dict[str, Any]:  # noqa: ANN401 - Sphinx's application
    """Register the extension; Sphinx calls this."""
    app.connect("source-read", _add_toctrees)
    app.connect("doctree-read", _adapt)
    app.connect("env-get-outdated", _fronts)
    # Sphinx reads all pages again when one of these files has changed.
    made_by = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.rglob("*.py"))))
    app.add_config_value("made_by", made_by.hexdigest(), "env", str)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fronts(_app: Any, env: Any, _added: Any, _changed: Any, _removed: Any) -> list[str]:  # noqa: ANN401 - as above
    """Return the pages to read at each build, because they list pages that may be new."""
    return [name for name in env.found_docs if Path(name).name == FRONT]


def _add_toctrees(app: Any, docname: str, source: list[str]) -> None:  # noqa: ANN401 - as above
    if docname == PAGE.removesuffix(".md"):
        source[0] += autodoc()
    for tree in toctrees(Path(app.srcdir), docname):
        source[0] += tree


def _adapt(app: Any, doctree: Any) -> None:  # noqa: ANN401 - Sphinx's and docutils' own
    """Convert links to folders, and diagrams, into a form that the site can show."""
    for node in list(doctree.findall(pending_xref)):
        _lead_to_page(app, node)
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") == "mermaid":
            block.replace_self(nodes.raw("", _FRAME.format(draw(block.astext())), format="html"))


def _lead_to_page(app: Any, node: Any) -> None:  # noqa: ANN401 - as above
    """Return a link to a folder's README if the site has one, otherwise only the folder's name."""
    target = str(node.get("reftarget", ""))
    source = Path(app.srcdir).resolve()
    where = (source / Path(node.get("refdoc", FRONT)).parent / target).resolve()
    if node.get("reftype") != "myst" or not target or not where.is_dir():
        return
    page = (where.relative_to(source) / FRONT).as_posix()
    if page in app.env.found_docs:
        node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", page, None
    else:
        node.replace_self(node.children)
