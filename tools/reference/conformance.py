"""The page of the checks of `forewarn conformance`."""

from __future__ import annotations

from forewarn.testing.conformance import CHECKS, SUITE_VERSION, Phase, numbers
from forewarn.testing.conformance.sources import SOURCES
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
        text += row(f"*{name}*" if check.phase is Phase.APPROVE else name, ", ".join(check.numbers), check.title)
    text += (
        "\n## Sources\n\n`documentation` is Microsoft's of Scheduled Events, `IMDS documentation` its of the instance "
        "metadata, `capture` a published answer of a real endpoint, `clients` the source of clients in use. Names with "
        "`#` are issues and pull requests on GitHub.\n\n"
    )
    text += table("requirement", "known from", "details", "checks")
    for number in numbers(CHECKS):
        source = SOURCES[number]
        checks = ", ".join(f"`{check.code}`" for check in CHECKS if number in check.numbers)
        text += row(number, ", ".join(source.bases), source.detail, checks)
    return text
