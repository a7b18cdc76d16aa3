"""Run the demo, and draw its output as docs/images/demo.svg.

    .venv/bin/python tools/demo_picture.py [FILE]

The picture contains no URLs, so viewers load nothing from the network.
"""

import asyncio
import html
import io
import re
import sys
from pathlib import Path

from rich.terminal_theme import TerminalTheme

from forewarn.demo.run import play_demo
from forewarn.demo.style import WIDTH_MAX, DemoConsole, make_console

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "demo.svg"
BLANK = "&#160;"
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
THEME = TerminalTheme(
    background=(22, 27, 34),
    foreground=(222, 228, 235),
    normal=[
        (22, 27, 34),
        (255, 118, 110),
        (96, 205, 120),
        (240, 190, 80),
        (110, 170, 255),
        (220, 140, 255),
        (80, 205, 215),
        (222, 228, 235),
    ],
    bright=[(125, 135, 148)],
)


def make_recorder() -> DemoConsole:
    """Return a console that shows nothing, and records all output with its colours."""
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(WIDTH_MAX), "FORCE_COLOR": "1"}
    console = make_console(environment, io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    console.record = True
    return console


def unindent(match: re.Match[str]) -> str:
    """Replace leading blanks of a text by a larger x, because some viewers ignore leading blanks."""
    blanks = len(match["blanks"]) // len(BLANK)
    length = float(match["length"])
    shown = match["shown"]
    columns = blanks + len(html.unescape(shown))
    step = length / columns
    return (
        f'<text{match["before"]}x="{float(match["x"]) + blanks * step:g}"{match["between"]}'
        f'textLength="{length - blanks * step:g}"{match["after"]}>{shown}</text>'
    )


def clean(svg: str) -> str:
    """Remove references to external fonts and URLs from the picture."""
    svg = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", svg)
    svg = re.sub(r"@import[^;]*;\s*", "", svg)
    svg = re.sub(r"font-variant-east-asian:[^;]*;\s*", "", svg)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;]*;", f"font-family: {FONTS};", svg)
    text = (
        r'<text(?P<before>[^>]*?)x="(?P<x>[\d.]+)"(?P<between>[^>]*?)textLength="(?P<length>[\d.]+)"(?P<after>[^>]*)>'
    )
    svg = re.sub(rf"{text}(?P<blanks>(?:{BLANK})+)(?P<shown>[^<]*?)</text>", unindent, svg)
    svg = "\n".join(row.rstrip() for row in svg.splitlines()) + "\n"
    others = set(re.findall(r"https?://[^\s\"'<)]+", svg)) - {"http://www.w3.org/2000/svg"}
    strange = {address for address in others if not address.startswith("http://127.0.0.1:")}
    assert not strange, f"the picture refers to {strange}"
    return svg


def main(*arguments: str) -> None:
    file = Path(arguments[0]) if arguments else PICTURE
    console = make_recorder()
    asyncio.run(play_demo(console))
    svg = clean(console.export_svg(title="forewarn demo", theme=THEME, unique_id="demo"))
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(svg)
    draft.replace(file)
    print(f"{file}: {len(svg.splitlines())} lines, {len(svg)} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
