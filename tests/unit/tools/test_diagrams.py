"""The diagrams of the pages are drawn whole, or not at all."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from tests.support.documents import pages
from tools.diagrams import draw

FENCE = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
DIAGRAMS = [(page.name, text) for page in pages() for text in FENCE.findall(page.read_text())]


def _words(svg: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter() if text.tag == "text"]  # noqa: S314 - it reads what we drew


@pytest.mark.parametrize(("name", "text"), DIAGRAMS, ids=[name for name, _ in DIAGRAMS])
def test_a_diagram_of_a_page_is_drawn_with_all_its_words(name: str, text: str) -> None:
    labels = re.findall(r"(?::| as) (.+)", text)
    assert labels
    assert set(labels) <= set(_words(draw(text)))


def test_there_are_diagrams() -> None:
    assert {name for name, _ in DIAGRAMS} >= {"lifecycle.md", "protocol.md"}


def test_an_arrow_is_drawn_for_each_transition() -> None:
    svg = draw("stateDiagram-v2\n [*] --> a: begin\n a --> b: go\n a --> c: stop\n b --> [*]\n c --> [*]")
    assert svg.count('class="arrow"') == 3
    assert _words(svg) == ["begin", "go", "stop", "a", "b", "c"]


@pytest.mark.parametrize("text", ["pie\n a: 1", "stateDiagram-v2\n a <-> b", "sequenceDiagram\n a->>b"])
def test_what_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="cannot draw"):
        draw(text)
