"""The page of the checks of `forewarn conformance`."""

from __future__ import annotations

import json

from forewarn.testing.conformance import CHECKS, SUITE_VERSION, CheckPhase, list_requirements
from forewarn.testing.conformance.sources import SOURCES
from forewarn.testing.conformance.transcripts import TRANSCRIPTS, read_golden_transcript
from tools.reference.plain import row, table

__all__ = ["conformance"]


def conformance() -> str:
    """Every check, and the sources of its requirements."""
    text = (
        f"# Checks of `forewarn conformance`\n\nSuite {SUITE_VERSION}, {len(CHECKS)} checks; "
        "[how to run them](../how-to/check-an-endpoint.md). The letter of a requirement shows its origin. `R`: the "
        "sources of the protocol say it. `W`: clients in use depend on it. `X`: Forewarn adds it. `A`: the sources "
        "leave the question open, so every documented answer is right.\n\n"
        "The first number of the suite's version grows when an endpoint that passed before may now fail, the second "
        "with every other change of a check.\n\n## Checks\n\nA check in italics approves an event, and runs only with "
        "`--allow-approve`.\n\n"
    )
    text += table("check", "requirements", "what the check expects")
    for check in CHECKS:
        name = f"`{check.code}`"
        text += row(f"*{name}*" if check.phase is CheckPhase.APPROVE else name, ", ".join(check.numbers), check.title)
    text += (
        "\n## Sources\n\n`documentation` is Microsoft's documentation of Scheduled Events, `IMDS documentation` that "
        "of the instance metadata. `capture` is a published answer of a real endpoint, `clients` is the source code of "
        "clients in use. Names with `#` are issues and pull requests on GitHub.\n\n"
    )
    text += table("requirement", "known from", "details", "checks")
    for number in list_requirements(CHECKS):
        source = SOURCES[number]
        checks = ", ".join(f"`{check.code}`" for check in CHECKS if number in check.numbers)
        text += row(number, ", ".join(source.bases), source.detail, checks)
    return text + _transcripts()


def _transcripts() -> str:
    """What the golden transcripts are, and how to read them."""
    text = (
        "\n## Golden transcripts\n\nThe files `src/forewarn/testing/conformance/transcripts/*.jsonl` contain requests, "
        "and the answers that an endpoint should give. With them, you can check another implementation without "
        "Forewarn's code. A test checks Forewarn's own endpoint with them.\n\n"
    )
    text += table("transcript", "about", "needs")
    for name in TRANSCRIPTS:
        head = json.loads(read_golden_transcript(name)[0])
        text += row(f"`{name}.jsonl`", head["title"], head["needs"])
    return text + _FORMAT


_FORMAT = """
A file is JSON Lines in UTF-8. The first line describes the file. The other lines, in order, are exchanges (a request with
its answer) and steps to carry out in your service.

| member of the first line | what it holds |
| --- | --- |
| `conformance_transcript` | version of the format, 1 |
| `suite_version` | version of the suite |
| `needs` | condition that must hold before you play the file |
| `variables` | variables to set before you play the file, with their meanings |

`${name}` in a text stands for the value of a variable. Insert the value before you send or compare the text.

| member of an exchange | what it holds |
| --- | --- |
| `requirements` | requirements that the exchange checks |
| `open` | questions (`A…`) that the sources leave open: here, a different answer is a choice, not a fault; empty: none |
| `request` | `method`, `target`, `headers`, and `body` as text, which is sent in UTF-8; null: no body. Send it over HTTP/1.1, with `Host`, and with `Content-Length` if there is a body |
| `answer.status` | expected status |
| `answer.headers` | expected headers, with names in lower case; the answer may have others as well |
| `answer.body` | the bytes of the body, as UTF-8 |
| `answer.exact` | true: the body must be equal, byte for byte; false: it must be a JSON object with a text `error`, whose words may differ from Forewarn's |

A line with `do` is a step, not an exchange: carry out in your service what `what` describes, then set the variables that
`sets` names.

The order of members, the case of EventIds and white space around the document are no requirement (R112). If your
implementation differs in these, compare the bodies as JSON.
"""  # noqa: E501 - rows of a table
