"""Write the manual pages into build/man: `forewarn(1)`, one page for each command, and `forewarn.toml(5)`.

The text is the same as in `--help` and in the reference pages. A test checks the pages with `mandoc -T lint`. To read
one, run `man -l build/man/forewarn.1`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forewarn import __version__
from forewarn.config.settings import Settings

sys.path[:0] = [str(Path(__file__).parent.parent)]  # this file is run by its path

from tools.commands import leaves, names_of, nouns, said_of, words_of  # noqa: E402 - the path has to be set before
from tools.reference.plain import default_of  # noqa: E402 - as above
from tools.reference.surroundings import EXIT_STATUSES, FILES, variables  # noqa: E402 - as above

__all__ = ["main", "pages", "roff"]

ROOT = Path(__file__).parent.parent
_DATE = re.compile(r"^## \[[^\]]+\](?: - (\d{4}-\d\d-\d\d))?", re.MULTILINE)
_WIDTH = 64
_SUMMARY = "warn virtual machines of maintenance, collect their approvals, carry it out, and report its end"


def pages() -> dict[str, str]:
    """Return the text of each page, by file name."""
    made = {"forewarn.1": _front(), "forewarn.toml.5": _settings()}
    for noun, command in nouns():
        made[f"{_page(noun)}.1"] = _of_noun(noun, command)
    return made


def _page(noun: str) -> str:
    """Return the name of a command's page."""
    return f"forewarn-{noun}"


def roff(text: str) -> str:
    """Escape text for roff, so that no line is a request and no character starts an escape sequence."""
    text = " ".join(text.replace("\\", "\\e").replace("`", "").split())
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False) or [""]
    return "\n".join(re.sub(r"^([.'])", r"\\&\1", line.replace("-", "\\-")) for line in lines)


def _front() -> str:
    text = _head("forewarn", 1, _SUMMARY)
    text += ".SH SYNOPSIS\n.B forewarn\n.I command\n.RI [ options ]\n"
    text += ".SH DESCRIPTION\n" + _paragraphs(
        "Forewarn tells virtual machines what is about to happen to them, collects their approvals, and only then does "
        "it. It speaks the protocol of Azure's Scheduled Events.\n\n"
        "'forewarn serve' is the service. 'forewarn agent' prepares a VM for events, inside it. The other commands "
        "speak to a service, or help to test a handler."
    )
    text += ".SH COMMANDS\n"
    for noun, command in nouns():
        text += f".TP\n.BR {roff(_page(noun))} (1)\n{roff(_first(command.help))}\n"
    text += ".SH EXIT STATUS\n" + "".join(f".TP\n.B {status}\n{roff(what)}\n" for status, what in EXIT_STATUSES)
    text += ".SH ENVIRONMENT\n" + "".join(f".TP\n.B {name}\n{roff(what)}\n" for name, what, _ in variables())
    text += ".SH FILES\n" + "".join(f".TP\n.I {roff(name)}\n{roff(what)}\n" for name, what in FILES)
    return text + _see("forewarn.toml (5)", *(f"{_page(noun)} (1)" for noun, _ in nouns()))


def _of_noun(noun: str, command: Any) -> str:  # noqa: ANN401 - Typer's command
    text = _head(_page(noun), 1, _first(command.help))
    found = list(leaves(command, ("forewarn", noun)))
    text += ".SH SYNOPSIS\n" + ".br\n".join(_synopsis(words, leaf) for words, leaf in found)
    if len(found) == 1 and found[0][1] is command:
        text += ".SH DESCRIPTION\n" + _paragraphs(command.help) + ".SH OPTIONS\n" + _parameters(command)
        text += ".SH EXAMPLES\n" + _examples(command).removeprefix(".PP\n")
    else:
        text += ".SH COMMANDS\n"
        for words, leaf in found:
            text += f".SS {roff(' '.join(words))}\n" + _paragraphs(leaf.help) + _parameters(leaf) + _examples(leaf)
    return text + _see("forewarn (1)", "forewarn.toml (5)")


def _settings() -> str:
    text = _head("forewarn.toml", 5, "settings of the service")
    text += ".SH DESCRIPTION\n" + _paragraphs(
        "The file that 'forewarn serve --config' reads, TOML. A setting is taken from the first of: flag, variable "
        "FOREWARN_ with its name in capitals, this file, default. Spans of time are written 90s, 15m, 24h or 7d."
    )
    text += ".SH SETTINGS\n"
    for name, field in Settings.model_fields.items():
        text += f".TP\n.B {roff(name)}\n{roff(field.description or '')}\n(default: {roff(default_of(field))})\n"
    text += ".SH EXAMPLES\n.EX\n" + 'database_url = "sqlite:////var/lib/forewarn/forewarn.db"\n'
    return (
        text
        + 'minimum_notice_freeze = "30m"\n'.replace("minimum_notice_freeze", "notice_max")
        + ".EE\n"
        + _see("forewarn-serve (1)", "forewarn-config (1)")
    )


def _head(name: str, section: int, summary: str) -> str:
    released = _DATE.search((ROOT / "CHANGELOG.md").read_text())
    date = (released and released[1]) or datetime.now(UTC).date().isoformat()
    summary = summary.removesuffix(".")
    summary = summary[:1].lower() + summary[1:] if summary[1:2].islower() else summary
    return (
        ".\\\" Made by 'make man'; changes belong in the code it is made from.\n"
        f'.TH {roff(name.upper())} {section} {date} "Forewarn {__version__}" "Forewarn Manual"\n'
        f".SH NAME\n{roff(name)} \\-\n{roff(summary)}\n"
    )


def _synopsis(words: tuple[str, ...], command: Any) -> str:  # noqa: ANN401 - as above
    line = f".B {roff(' '.join(words))}\n"
    for parameter in words_of(command):
        names, metavar = names_of(parameter)
        if parameter.param_type_name == "argument":
            line += f".I {roff(metavar)}\n" if parameter.required else f".RI [ {_one(metavar)} ]\n"
        elif parameter.required:
            line += f".B {roff(names[0])}\n.I {roff(metavar)}\n"
    return line + ".RI [ options ]\n"


def _parameters(command: Any) -> str:  # noqa: ANN401 - as above
    text = ""
    for parameter in words_of(command):
        names, metavar = names_of(parameter)
        bold = ", ".join(f"\\fB{roff(name)}\\fR" for name in names)
        italic = f"\\fI{roff(metavar)}\\fR" if metavar else ""
        text += f".TP\n{bold}{' ' * bool(bold and italic)}{italic}\n{roff(said_of(parameter))}\n"
    return text


def _examples(command: Any) -> str:  # noqa: ANN401 - as above
    lines = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("    ")]
    return ".PP\n.EX\n" + "".join(f"{_literal(line)}\n" for line in lines) + ".EE\n" if lines else ""


def _literal(line: str) -> str:
    return re.sub(r"^([.'])", r"\\&\1", line.replace("\\", "\\e").replace("-", "\\-"))


def _see(*names: str) -> str:
    lines = [f".BR {roff(name.replace(' ', chr(0))).replace(chr(0), ' ')}" for name in sorted(names)]
    return ".SH SEE ALSO\n" + " ,\n".join(lines) + "\n"


def _paragraphs(text: str | None) -> str:
    parts = [part for part in (text or "").strip().split("\n\n") if part.strip()]
    return "\n.PP\n".join(roff(part) for part in parts) + "\n"


def _first(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0]


def _one(text: str) -> str:
    return f'"{roff(text)}"' if " " in text else roff(text)


def main() -> int:
    """Write the pages."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "man"
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (folder / name).write_text(text)
    print(f"wrote {len(made)} pages; man -l {folder / 'forewarn.1'} shows the first")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
