"""The page of the checks of `forewarn conformance`."""

from __future__ import annotations

import json

from forewarn.testing.conformance import CHECKS, SUITE_VERSION, CheckPhase, list_requirements
from forewarn.testing.conformance.sources import SOURCES
from forewarn.testing.conformance.transcripts import TRANSCRIPTS, read_golden_transcript
from tools.reference.plain import row, table

__all__ = ["conformance"]


def conformance() -> str:
    """Every check, and where what it holds an endpoint to is known from."""
    text = (
        f"# Checks of `forewarn conformance`\n\nSuite {SUITE_VERSION}, {len(CHECKS)} checks; "
        "[how to run them](../how-to/check-an-endpoint.md). `R`: what the sources of the protocol say. `W`: what "
        "clients in use depend on. `X`: what Forewarn adds. `A`: what the sources leave open; every documented answer "
        "is right.\n\n"
        "The first number of the suite's version grows when an endpoint that held may now break, the second with every "
        "other change of a check.\n\n## Checks\n\nA check in italics approves an event, and runs with "
        "`--allow-approve` only.\n\n"
    )
    text += table("check", "requirements", "what ought to be so")
    for check in CHECKS:
        name = f"`{check.code}`"
        text += row(f"*{name}*" if check.phase is CheckPhase.APPROVE else name, ", ".join(check.numbers), check.title)
    text += (
        "\n## Sources\n\n`documentation` is Microsoft's of Scheduled Events, `IMDS documentation` its of the instance "
        "metadata, `capture` a published answer of a real endpoint, `clients` the source of clients in use. Names with "
        "`#` are issues and pull requests on GitHub.\n\n"
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
        "\n## Golden transcripts\n\nRequests, and the answers of an endpoint to them, to hold another implementation "
        "to without Forewarn's code: the files `src/forewarn/testing/conformance/transcripts/*.jsonl`. Forewarn's own "
        "endpoint is held to them by a test.\n\n"
    )
    text += table("transcript", "about", "needs")
    for name in TRANSCRIPTS:
        head = json.loads(read_golden_transcript(name)[0])
        text += row(f"`{name}.jsonl`", head["title"], head["needs"])
    return text + _FORMAT


_FORMAT = """
A file is JSON Lines in UTF-8. The first line describes it; the others are exchanges and things to do, in order.

| member of the first line | what it holds |
| --- | --- |
| `conformance_transcript` | version of the format, 1 |
| `suite_version` | version of the suite |
| `needs` | what must be so before the first line is played |
| `variables` | names that are set before, with what they mean |

`${name}` in a text stands for the value of a variable. Put it in before sending and before comparing.

| member of an exchange | what it holds |
| --- | --- |
| `requirements` | what the exchange is about |
| `open` | questions that the sources leave open (`A…`): another answer is another choice, not a fault; empty: none |
| `request` | `method`, `target`, `headers`, and `body` as text, which is sent in UTF-8; null: no body. Send over HTTP/1.1, with `Host`, and with `Content-Length` where there is a body |
| `answer.status` | must be equal |
| `answer.headers` | names in lower case; each must be there with this value, others may be |
| `answer.body` | the bytes of the body, as UTF-8 |
| `answer.exact` | true: the body must be equal, byte for byte; false: it must be a JSON object with a text `error`, and the words are Forewarn's |

A line with `do` is no exchange: make happen what `what` says, in a way of your own, then set the variables that `sets`
names.

The order of members, the case of EventIds and white space around the document are no requirement (R112). An
implementation that differs there compares the bodies as JSON.
"""  # noqa: E501 - rows of a table
