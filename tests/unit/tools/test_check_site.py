"""The check of the documentation site finds what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_site import faults


def _site(folder: Path, body: str, head: str = "") -> Path:
    (folder / "a.html").write_text(f"<html><head>{head}</head><body>{body}</body></html>")
    (folder / "b.html").write_text('<html><body><h1 id="there">B</h1></body></html>')
    (folder / "style.css").write_text("body { background: url(data:image/png;base64,AA==) }")
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<a href="b.html">B</a>',
        '<a href="b.html#there">B</a><a id="here"></a><a href="#here">A</a><a href="#">top</a>',
        '<a href="https://example.com/x">out</a><a href="https://example.com/y">out</a>',
        '<img src="data:image/png;base64,AA==">',
    ],
)
def test_a_site_that_is_well_linked_has_no_faults(body: str, tmp_path: Path) -> None:
    assert list(faults(_site(tmp_path, body))) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="c.html">C</a>', "a.html: link to c.html, which is not there"),
        ('<a href="b.html#where">B</a>', "whose anchor is not there"),
        ('<a href="../b.html">B</a>', "outside the site"),
        ('<a href="ftp:b">B</a>', "whose scheme is not known"),
        ('<a href="http://example.com/">out</a>', "no https address"),
        ('<a href="https://intranet/">out</a>', "no https address"),
        ('<img src="https://example.com/x.png">', "a.html: loads https://example.com/x.png from elsewhere"),
        ('<script src="//example.com/x.js"></script>', "from elsewhere"),
        ('<script src="x.js"></script>', "which is not there"),
        ('<a href="https://www.example.com">1</a><a href="https://example.com">2</a>', "written in 2 ways"),
    ],
)
def test_a_fault_is_a_line_that_says_where(body: str, said: str, tmp_path: Path) -> None:
    (found,) = faults(_site(tmp_path, body))
    assert said in found


def test_a_style_sheet_from_elsewhere_is_a_fault(tmp_path: Path) -> None:
    site = _site(tmp_path, "", '<link rel="stylesheet" href="https://fonts.example.com/x.css">')
    (site / "style.css").write_text("@import 'https://fonts.example.com/y.css';")
    assert len(list(faults(site))) == 2


def test_a_folder_without_pages_is_a_fault(tmp_path: Path) -> None:
    assert list(faults(tmp_path)) == [f"{tmp_path} holds no pages: run make docs"]
