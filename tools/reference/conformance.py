"""Generates the page about the checks of `forewarn conformance`."""

from __future__ import annotations

import json

from forewarn.testing.conformance import CHECKS, SUITE_VERSION, CheckPhase, list_requirements
from forewarn.testing.conformance.sources import SOURCES
from forewarn.testing.conformance.transcripts import TRANSCRIPTS, read_golden_transcript
from tools.reference.plain import row, table

__all__ = ["conformance"]


def conformance() -> str:
    """Return the page: all checks, and the sources of their requirements."""
    text = (
        f"# Checks of `forewarn conformance`\n\nSuite {SUITE_VERSION}, {len(CHECKS)} checks; "
        "[how to run them](../how-to/check-an-endpoint.md). The letter of a requirement shows its origin. `R`: the "
        "sources of the protocol state the requirement. `W`: clients in use depend on it. `X`: Forewarn adds it. `A`: "
        "the sources are silent or disagree, so a behaviour counts as right if at least one source shows it.\n\nA "
        "change that can make a passing endpoint fail increases the first number of the suite's version. Other changes "
        "of checks increase only the second number.\n\n## Checks\n\nA check in italics approves an event, and runs "
        "only with `--allow-approve`.\n\n"
    )
    text += table("check", "requirements", "what the check expects")
    for check in CHECKS:
        name = f"`{check.code}`"
        text += row(f"*{name}*" if check.phase is CheckPhase.APPROVE else name, ", ".join(check.numbers), check.title)
    text += (
        "\n## Sources\n\n`documentation` is Microsoft's documentation of Scheduled Events. `IMDS documentation` is "
        "Microsoft's documentation of the instance metadata service (IMDS). `capture` is a published answer of a real "
        "endpoint, and `clients` is the source code of clients in use. `Forewarn's choice` marks rules that no source "
        "states. The preview is the api-version 2017-03-01. Names with `#` are issues and pull requests on GitHub.\n\n"
    )
    text += table("requirement", "known from", "details", "checks")
    for number in list_requirements(CHECKS):
        source = SOURCES[number]
        checks = ", ".join(f"`{check.code}`" for check in CHECKS if number in check.numbers)
        text += row(number, ", ".join(source.bases), source.detail, checks)
    return text + _transcripts()


def _transcripts() -> str:
    """Return the section about the golden transcripts and their format."""
    text = (
        "\n## Golden transcripts\n\nThe files `src/forewarn/testing/conformance/transcripts/*.jsonl` contain requests, "
        "and the answers that an endpoint should give. Use them to check another implementation without "
        "Forewarn's code. A test of Forewarn plays them against its own endpoint.\n\n"
    )
    text += table("transcript", "about", "needs")
    for name in TRANSCRIPTS:
        head = json.loads(read_golden_transcript(name)[0])
        text += row(f"`{name}.jsonl`", head["title"], head["needs"])
    return text + _FORMAT


_FORMAT = """
Each file is JSON Lines in UTF-8. The first line describes the file. The other lines, in order, are exchanges (a request
with its answer) and steps to carry out in your service.

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
| `open` | list of the questions (`A…`) that the sources leave open. If the list is not empty, an answer that differs from `answer` may also be right |
| `request` | `method`, `target`, `headers`, and `body`: text to send in UTF-8, or null for no body. Send the request over HTTP/1.1, with `Host`, and with `Content-Length` if there is a body |
| `answer.status` | expected status |
| `answer.headers` | expected headers, with names in lower case. The answer may have more headers |
| `answer.body` | the bytes of the body, as UTF-8 |
| `answer.exact` | true: the body must equal `answer.body`, byte for byte. false: the body must be a JSON object whose member `error` is a text. This text may differ from Forewarn's |

A line with the member `do` is a step, not an exchange. Its member `what` describes an action: carry out this action in
your service. Then set the variables that are listed in the member `sets`.

The order of members, the case of EventIds and white space around the document are not required (R112). If your
implementation differs in these points, compare the bodies as JSON.
"""  # noqa: E501 - rows of a table
