"""Check the built documentation site for broken links, and for pages that load files from other hosts.

    python tools/check_site.py build/site

Sphinx has already checked the links in the source pages. This program checks the generated HTML, including navigation
and search. It does not follow external links, because a build needs no network. External links must be well-formed
https URLs, and must not name a host both with and without `www.`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["faults", "main"]

_LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
_LOADING_RELATIONS = {"stylesheet", "preload", "modulepreload", "icon", "preconnect", "dns-prefetch", "prefetch"}
_FROM_ELSEWHERE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^)"']*""")


@dataclass
class _Page(HTMLParser):
    """Anchors and links of a page, and the files that it loads."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record anchors, links and loaded files; the parser calls this."""
        said = {name: value or "" for name, value in attrs}
        self.anchors |= {said[name] for name in ("id", "name") if name in said}
        if tag == "a" and "href" in said:
            self.links.append(said["href"])
        elif tag == "link" and _LOADING_RELATIONS & set(said.get("rel", "").split()):
            self.loads.append(said["href"])
        else:
            self.loads += [value for name, value in said.items() if (tag, name) in _LOADING]


def faults(site: Path) -> Iterator[str]:
    """Yield the faults of a site, one line each."""
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} holds no pages: run make docs"
    for path, page in pages.items():
        for fault in _of_page(site, pages, page):
            yield f"{path.relative_to(site)}: {fault}"
    hosts: dict[str, set[str]] = defaultdict(set)
    for target in (target for page in pages.values() for target in page.links if _is_external(target)):
        hosts[(urlsplit(target).hostname or "").removeprefix("www.")].add(urlsplit(target).netloc)
    for names in hosts.values():
        if len(names) > 1:
            yield f"one host is written in {len(names)} ways: {', '.join(sorted(names))}"
    for sheet in sorted(site.rglob("*.css")):
        for found in _FROM_ELSEWHERE.findall(sheet.read_text()):
            yield f"{sheet.relative_to(site)}: loads {found} from elsewhere"


def _of_page(site: Path, pages: dict[Path, _Page], page: _Page) -> Iterator[str]:
    for target in page.loads:
        if _is_external(target):
            yield f"loads {target} from elsewhere"
        elif not target.startswith("data:") and (fault := _inside(site, pages, page.path, target)):
            yield fault
    for target in page.links:
        if fault := _outside(target) if _is_external(target) else _inside(site, pages, page.path, target):
            yield fault


def _is_external(target: str) -> bool:
    return bool(urlsplit(target).netloc) or target.startswith("mailto:")


def _outside(target: str) -> str | None:
    parts = urlsplit(target)
    if parts.scheme == "mailto":
        return None
    if parts.scheme != "https" or "." not in (parts.hostname or "") or parts.username:
        return f"link to {target}, which is no https address of a public host"
    return None


def _inside(site: Path, pages: dict[Path, _Page], path: Path, target: str) -> str | None:
    parts = urlsplit(target)
    if parts.scheme and parts.scheme != "data":
        return f"link to {target}, whose scheme is not known"
    there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not there.is_relative_to(site):
        return f"link to {target}, which is outside the site"
    if not there.is_file():
        return f"link to {target}, which is not there"
    if parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors | {"top"}:
        return f"link to {target}, whose anchor is not there"
    return None


def main() -> int:
    """Check the site that the command line names."""
    if len(sys.argv) != 2:
        print("usage: python tools/check_site.py FOLDER", file=sys.stderr)
        return 2
    site = Path(sys.argv[1]).resolve()
    found = list(faults(site))
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"{sum(1 for _ in site.rglob('*.html'))} pages are well linked; begin with {site / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
