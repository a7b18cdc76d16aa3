"""Sources of each requirement, for the reference page of the checks.

The wording is ours. It rests on Microsoft's documentation of Scheduled Events and of the instance metadata, published
answers of real endpoints, and the source of clients in use. If none of these says anything, Forewarn has made a choice,
and a check accepts every answer that is documented or was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.testing.conformance.check import Check

__all__ = ["SOURCES", "Basis", "Source", "sources_of"]


class Basis(StrEnum):
    """Kind of evidence for a requirement."""

    DOCUMENTED = "documentation"
    IMDS = "IMDS documentation"
    CAPTURED = "capture"
    CLIENTS = "clients"
    CHOSEN = "Forewarn's choice"


@dataclass(frozen=True, slots=True)
class Source:
    """Evidence for a requirement.

    Attributes:
        bases: Kinds of evidence, the strongest first.
        detail: Details of the evidence; empty if the kind is enough.
    """

    bases: tuple[Basis, ...]
    detail: str = ""


_D, _I, _CAP, _CLI, _F = Basis.DOCUMENTED, Basis.IMDS, Basis.CAPTURED, Basis.CLIENTS, Basis.CHOSEN

SOURCES: dict[str, Source] = {
    "R1": Source((_D,), "path and address; all editions since 2017"),
    "R3": Source((_CLI, _F), "Azure's C# sample asks `scheduledEvents`; the slash and 404 are a choice"),
    "R4": Source((_D, _I), "GET and POST; 405 for others in the table of status codes"),
    "R5": Source((_I,), "repeated query parameters are refused; unknown ones: a choice"),
    "R6": Source((_CLI,), "curl, PowerShell, `requests`, .NET: chunks, `Expect`, byte order marks"),
    "R7": Source((_CLI,), "curl sends a form's type, `requests` none"),
    "R8": Source((_I, _CAP), "headers of instance metadata in published answers"),
    "R9": Source((_D, _I), "poll as often as you like; IMDS in general: 5 a second"),
    "R10": Source((_D,), "since 2017-08-01; the body of R63 was captured"),
    "R11": Source((_CLI, _F), "a Microsoft sample sends `metadata` in lower case"),
    "R12": Source((_D, _CLI), "the C# sample of the preview posts without it"),
    "R13": Source((_I,), "a request with X-Forwarded-For is rejected"),
    "R14": Source((_D, _CLI), "the incarnation is called an ETag; Azure/vm-scheduled-events reads it and handles 304"),
    "R15": Source((_D,), "api-version is mandatory"),
    "R16": Source((_D, _CAP), "table of versions; members in captures of 2018 to 2023"),
    "R18": Source((_D, _CAP), "MicrosoftDocs/azure-docs#58422"),
    "R19": Source((_D,), "terminate notification: 2019-01-01 or later"),
    "R20": Source((_D,), "2017-08-01 removed the underscore from names of IaaS VMs"),
    "R21": Source((_D, _CAP), "RFC 1123 in every capture; ISO 8601 in the preview's page"),
    "R22": Source((_D,), "`latest` is no longer supported"),
    "R23": Source((_CLI,), "Pacemaker's azure-events-az reads in one version and approves in another"),
    "R24": Source((_D,), "MicrosoftDocs/azure-docs#46856"),
    "R25": Source((_D, _CAP)),
    "R26": Source((_CAP,), "compact in MicrosoftDocs/azure-docs#39758, #70276"),
    "R28": Source((_D,), "the incarnation changes with the events, and only then"),
    "R30": Source((_D,), "globally unique; the same in Scheduled and Started"),
    "R31": Source((_D,)),
    "R32": Source((_D,)),
    "R33": Source((_D,)),
    "R35": Source((_D,)),
    "R36": Source((_D, _CAP), "empty once Started: Azure/AKS#3719"),
    "R37": Source((_D, _CAP), "scylladb/scylla-cluster-tests#5608"),
    "R38": Source((_D,)),
    "R39": Source((_D,)),
    "R40": Source((_D,), "example of an event's life"),
    "R41": Source((_D, _CAP)),
    "R42": Source((_D,), "example of an event's life: 1, 2, 3, 4"),
    "R47": Source((_D,)),
    "R48": Source((_D,), "curl, C# and PowerShell examples of the preview"),
    "R49": Source((_D,), "200 for any valid event id, also after another VM's approval"),
    "R52": Source((_D, _CLI), "sample code; azure-events-az"),
    "R53": Source((_D,), "examples use both cases"),
    "R54": Source((_D,), "400: header or payload malformed"),
    "R55": Source((_F,), "A11: 400, 404 and 200 are accepted"),
    "R56": Source((_CLI,), "Azure-Samples/scheduled-events-mock-server"),
    "R57": Source((_CLI, _F), "A13: empty or a document; clients take both"),
    "R62": Source((_F,)),
    "R63": Source((_CAP,), "MicrosoftDocs/azure-docs#91624"),
    "R64": Source((_I, _CAP), "MicrosoftDocs/azure-compute-docs#289"),
    "R65": Source((_I, _F), "statuses documented, texts chosen"),
    "R66": Source((_I,), "410, 429 and 5xx are to be tried again"),
    "R76": Source((_D,), "an approved event may start before NotBefore"),
    "R111": Source((_I, _CAP), "azure-docs#15283; hashicorp/terraform-azurerm-consul#38; insights-core#3251"),
    "R112": Source((_CAP,), "published answers differ in order, case and white space"),
    "W1": Source((_CLI,), "one client makes a class of the members, and stops at an unknown one"),
    "W2": Source((_CLI,), "two clients see no events under another Content-Type"),
    "W3": Source((_CLI,), "a client that keeps sockets loses its approval"),
    "W4": Source((_CLI,), "some refuse 202 and 204; one parses the body"),
    "W5": Source((_CLI,), "several approve again at each poll"),
    "W6": Source((_CLI,)),
    "W7": Source((_CLI,), "Resources is compared with compute.name, with regard to case"),
    "W8": Source((_CLI,), "half of the clients open a connection for each poll"),
    "W9": Source((_CLI,), "one client takes 0 for unset"),
    "X1": Source((_F,), "RFC 7240"),
    "X2": Source((_I,), "Azure lists those of the instance metadata"),
    "X3": Source((_I,)),
    "A1": Source((_D, _CAP), "sources disagree"),
    "A2": Source((_D,), "MicrosoftDocs/azure-docs#46771: absent in the China cloud"),
    "A3": Source((_D, _CLI), "sources disagree"),
    "A4": Source((_D,), "sources disagree"),
    "A8": Source((_CAP,), "upper in captures, lower in some examples"),
    "A11": Source((_F,), "undocumented"),
    "A13": Source((_F,), "undocumented"),
    "A17": Source((_I,), "undocumented for Scheduled Events"),
}
"""Sources by requirement number."""


def sources_of(check: Check) -> list[tuple[str, Source]]:
    """Return the numbers of a check, each with its source."""
    return [(number, SOURCES[number]) for number in check.numbers]
