"""Draws the two kinds of Mermaid diagrams in the pages as SVG, for the documentation site.

Code hosts draw code blocks of the language `mermaid` themselves. On the site, Mermaid would load three megabytes of
script from another host for only two small diagrams. Unknown syntax is an error, so that no diagram is incomplete.
"""

from __future__ import annotations

import re
from html import escape

__all__ = ["draw"]

_STATE = re.compile(r"(\S+) --> (\S+?)(?:: (.+))?")
_MESSAGE = re.compile(r"(\w+)(--?)>>(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+): (.+)")
_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")

_COLUMN, _ROW, _BOX_WIDTH, _BOX_HEIGHT = 176, 90, 96, 34
_LANE, _STEP = 330, 36
_ENDS = "[*]"


def draw(text: str) -> str:
    """Return a diagram as an `svg` element, with the colours of the surrounding text.

    Raises:
        ValueError: The kind of diagram, or the syntax of a line, is unknown.
    """
    kind, *lines = [line.strip() for line in text.strip().splitlines()]
    if kind == "stateDiagram-v2":
        return _states(lines)
    if kind == "sequenceDiagram":
        return _sequence(lines)
    raise ValueError(f"cannot draw a Mermaid diagram of the kind {kind!r}")


def _states(lines: list[str]) -> str:
    """Draw states from left to right. The longest path to a state determines its column."""
    edges = [_match(_STATE, line).groups() for line in lines]
    edges = [(source, "end" if target == _ENDS else target, label) for source, target, label in edges]
    steps = [(source, target, label or "") for source, target, label in edges if target != "end"]
    ranks = {_ENDS: 0}
    for _ in steps:
        for source, target, _label in steps:
            ranks[target] = max(ranks.get(target, 0), ranks.get(source, 0) + 1)
    rows: dict[str, int] = {}
    for state, rank in ranks.items():
        rows[state] = sum(1 for other in rows if ranks[other] == rank)
    places = {state: (20 + ranks[state] * _COLUMN, 110 + rows[state] * _ROW) for state in ranks}
    drawn = [_edge(places, source, target, label) for source, target, label in steps]
    for state, (x, y) in places.items():
        if state == _ENDS:
            drawn.append(f'<circle cx="{x + _BOX_WIDTH - 8}" cy="{y}" r="8" class="dot"/>')
        else:
            drawn.append(_box(x, y, state, is_last=(state, "end") in {edge[:2] for edge in edges}))
    width = max(x for x, _ in places.values()) + _BOX_WIDTH + 20
    height = max(y for _, y in places.values()) + 70
    return _svg(width, height, "States and what leads from one to another", drawn)


def _edge(places: dict[str, tuple[int, int]], source: str, target: str, label: str) -> str:
    """Draw an arrow: straight to the next column, otherwise in a curve above or below the row."""
    (x1, y1), (x2, y2) = places[source], places[target]
    start, end = x1 + _BOX_WIDTH, x2
    columns = (x2 - x1) // _COLUMN
    if columns == 1:
        path = f"M{start} {y1} C{start + 24} {y1} {end - 30} {y2} {end} {y2}"
        lx, ly = (start + end) / 2, (y1 + y2) / 2 - 6
    else:
        far = -1 if y1 == y2 else 1
        bow = 34 * (columns - 1) + 26
        middle = y1 + far * bow if far < 0 else y2 + 44
        edge_y = y1 + far * _BOX_HEIGHT // 2
        start, end = x1 + (_BOX_WIDTH // 2 if source != _ENDS else _BOX_WIDTH - 8), x2 + _BOX_WIDTH // 2
        edge_y = edge_y if source != _ENDS else y1 - 8
        path = f"M{start} {edge_y} C{start} {middle} {end} {middle} {end} {y2 + far * _BOX_HEIGHT / 2}"
        lx, ly = (start + end) / 2, edge_y + (middle - edge_y) * 0.75 + (-6 if far < 0 else 14)
    return f'<path d="{path}" class="arrow" marker-end="url(#tip)"/>' + _text(lx, ly, label)


def _box(x: int, y: int, name: str, *, is_last: bool) -> str:
    shape = f'<rect x="{x}" y="{y - _BOX_HEIGHT // 2}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="8" class="box"'
    return shape + (' stroke-width="2.5"' if is_last else "") + "/>" + _text(x + _BOX_WIDTH / 2, y + 5, name)


def _sequence(lines: list[str]) -> str:
    """Draw participants side by side, and messages from top to bottom."""
    lanes: dict[str, int] = {}
    drawn = []
    y = 70
    for line in lines:
        if said := _PARTICIPANT.fullmatch(line):
            lanes[said[1]] = 90 + len(lanes) * _LANE
            drawn.append(_box(lanes[said[1]] - _BOX_WIDTH // 2, 24, said[2], is_last=False))
        elif said := _NOTE.fullmatch(line):
            drawn.append(_text(lanes[said[1]] + 10, y + 4, said[2], "note"))
            y += _STEP
        else:
            message = _match(_MESSAGE, line)
            x1, x2 = lanes[message[1]], lanes[message[3]]
            dashes = ' stroke-dasharray="6 4"' if message[2] == "--" else ""
            drawn.append(f'<path d="M{x1} {y}H{x2}" class="arrow" marker-end="url(#tip)"{dashes}/>')
            drawn.append(_text((x1 + x2) / 2, y - 6, message[4]))
            y += _STEP
    lines_down = [f'<path d="M{x} 41V{y}" class="lane"/>' for x in lanes.values()]
    return _svg(max(lanes.values()) + 190, y + 10, "Who says what to whom", lines_down + drawn)


def _match(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"cannot draw {line!r}")
    return found


def _text(x: float, y: float, text: str, kind: str = "label") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>' if text else ""


def _svg(width: float, height: float, title: str, parts: list[str]) -> str:
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" class="dot"/></marker></defs>'
    )
    head = f'<svg class="diagram" role="img" aria-label="{title}" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    return head + tip + "".join(parts) + "</svg>\n"
