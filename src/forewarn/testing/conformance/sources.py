"""Sources of each requirement, for the reference page of the checks.

The wording is ours. It rests on Microsoft's documentation of Scheduled Events and of the instance metadata, published
answers of real endpoints, and the source of clients in use. If none of these says anything, Forewarn has made a choice,
and a check accepts every answer that is documented or was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forewarn.testing.conformance.check import ConformanceCheck

__all__ = ["SOURCES", "EvidenceKind", "RequirementSource", "get_sources"]


class EvidenceKind(StrEnum):
    """Kind of evidence for a requirement."""

    DOCUMENTED = "documentation"
    IMDS = "IMDS documentation"
    CAPTURED = "capture"
    CLIENTS = "clients"
    CHOSEN = "Forewarn's choice"


@dataclass(frozen=True, slots=True)
class RequirementSource:
    """Evidence for a requirement.

    Attributes:
        bases: Kinds of evidence, the strongest first.
        detail: Details of the evidence; empty if the kind is enough.
    """

    bases: tuple[EvidenceKind, ...]
    detail: str = ""


_D, _I, _CAP, _CLI, _F = (
    EvidenceKind.DOCUMENTED,
    EvidenceKind.IMDS,
    EvidenceKind.CAPTURED,
    EvidenceKind.CLIENTS,
    EvidenceKind.CHOSEN,
)

SOURCES: dict[str, RequirementSource] = {
    "R1": RequirementSource((_D,), "path and address; all editions since 2017"),
    "R3": RequirementSource((_CLI, _F), "Azure's C# sample asks `scheduledEvents`; the slash and 404 are a choice"),
    "R4": RequirementSource((_D, _I), "GET and POST; the table of status codes has 405 for others"),
    "R5": RequirementSource((_I,), "repeated query parameters are refused; unknown ones: a choice"),
    "R6": RequirementSource((_CLI,), "curl, PowerShell, `requests`, .NET: chunks, `Expect`, byte order marks"),
    "R7": RequirementSource((_CLI,), "curl sends a form's type, `requests` none"),
    "R8": RequirementSource((_I, _CAP), "headers of instance metadata in published answers"),
    "R9": RequirementSource((_D, _I), "poll as often as you like; IMDS in general: 5 per second"),
    "R10": RequirementSource((_D,), "since 2017-08-01; the body of R63 was captured"),
    "R11": RequirementSource((_CLI, _F), "a Microsoft sample sends `metadata` in lower case"),
    "R12": RequirementSource((_D, _CLI), "the C# sample of the preview posts without it"),
    "R13": RequirementSource((_I,), "a request with X-Forwarded-For is rejected"),
    "R14": RequirementSource(
        (_D, _CLI), "the incarnation is called an ETag; Azure/vm-scheduled-events reads it and handles 304"
    ),
    "R15": RequirementSource((_D,), "api-version is mandatory"),
    "R16": RequirementSource((_D, _CAP), "table of versions; members in captures of 2018 to 2023"),
    "R18": RequirementSource((_D, _CAP), "MicrosoftDocs/azure-docs#58422"),
    "R19": RequirementSource((_D,), "terminate notification: 2019-01-01 or later"),
    "R20": RequirementSource((_D,), "2017-08-01 removed the underscore from names of IaaS VMs"),
    "R21": RequirementSource((_D, _CAP), "RFC 1123 in every capture; ISO 8601 in the preview's page"),
    "R22": RequirementSource((_D,), "`latest` is no longer supported"),
    "R23": RequirementSource((_CLI,), "Pacemaker's azure-events-az reads in one version and approves in another"),
    "R24": RequirementSource((_D,), "MicrosoftDocs/azure-docs#46856"),
    "R25": RequirementSource((_D, _CAP)),
    "R26": RequirementSource((_CAP,), "compact in MicrosoftDocs/azure-docs#39758, #70276"),
    "R28": RequirementSource((_D,), "the incarnation changes with the events, and only then"),
    "R30": RequirementSource((_D,), "globally unique; the same in Scheduled and Started"),
    "R31": RequirementSource((_D,)),
    "R32": RequirementSource((_D,)),
    "R33": RequirementSource((_D,)),
    "R35": RequirementSource((_D,)),
    "R36": RequirementSource((_D, _CAP), "empty once Started: Azure/AKS#3719"),
    "R37": RequirementSource((_D, _CAP), "scylladb/scylla-cluster-tests#5608"),
    "R38": RequirementSource((_D,)),
    "R39": RequirementSource((_D,)),
    "R40": RequirementSource((_D,), "example of an event's life"),
    "R41": RequirementSource((_D, _CAP)),
    "R42": RequirementSource((_D,), "example of an event's life: 1, 2, 3, 4"),
    "R47": RequirementSource((_D,)),
    "R48": RequirementSource((_D,), "curl, C# and PowerShell examples of the preview"),
    "R49": RequirementSource((_D,), "200 for any valid event id, also after another VM's approval"),
    "R52": RequirementSource((_D, _CLI), "sample code; azure-events-az"),
    "R53": RequirementSource((_D,), "examples use both cases"),
    "R54": RequirementSource((_D,), "400: header or payload malformed"),
    "R55": RequirementSource((_F,), "A11: 400, 404 and 200 are accepted"),
    "R56": RequirementSource((_CLI,), "Azure-Samples/scheduled-events-mock-server"),
    "R57": RequirementSource((_CLI, _F), "A13: empty or a document; clients take both"),
    "R62": RequirementSource((_F,)),
    "R63": RequirementSource((_CAP,), "MicrosoftDocs/azure-docs#91624"),
    "R64": RequirementSource((_I, _CAP), "MicrosoftDocs/azure-compute-docs#289"),
    "R65": RequirementSource((_I, _F), "statuses documented, texts chosen"),
    "R66": RequirementSource((_I,), "410, 429 and 5xx should be retried"),
    "R76": RequirementSource((_D,), "an approved event may start before NotBefore"),
    "R111": RequirementSource(
        (_I, _CAP), "azure-docs#15283; hashicorp/terraform-azurerm-consul#38; insights-core#3251"
    ),
    "R112": RequirementSource((_CAP,), "published answers differ in order, case and white space"),
    "W1": RequirementSource((_CLI,), "one client maps members to a class, and fails on unknown ones"),
    "W2": RequirementSource((_CLI,), "two clients see no events under another Content-Type"),
    "W3": RequirementSource((_CLI,), "a client that reuses sockets loses its approval"),
    "W4": RequirementSource((_CLI,), "some reject 202 and 204; one parses the body"),
    "W5": RequirementSource((_CLI,), "several approve again at each poll"),
    "W6": RequirementSource((_CLI,)),
    "W7": RequirementSource((_CLI,), "Resources is compared with compute.name, case-sensitively"),
    "W8": RequirementSource((_CLI,), "half of the clients open a connection for each poll"),
    "W9": RequirementSource((_CLI,), "one client treats 0 as unset"),
    "X1": RequirementSource((_F,), "RFC 7240"),
    "X2": RequirementSource((_I,), "Azure lists those of the instance metadata"),
    "X3": RequirementSource((_I,)),
    "A1": RequirementSource((_D, _CAP), "sources disagree"),
    "A2": RequirementSource((_D,), "MicrosoftDocs/azure-docs#46771: absent in the China cloud"),
    "A3": RequirementSource((_D, _CLI), "sources disagree"),
    "A4": RequirementSource((_D,), "sources disagree"),
    "A8": RequirementSource((_CAP,), "upper in captures, lower in some examples"),
    "A11": RequirementSource((_F,), "undocumented"),
    "A13": RequirementSource((_F,), "undocumented"),
    "A17": RequirementSource((_I,), "undocumented for Scheduled Events"),
}
"""Sources by requirement number."""


def get_sources(check: ConformanceCheck) -> list[tuple[str, RequirementSource]]:
    """Return the numbers of a check, each with its source."""
    return [(number, SOURCES[number]) for number in check.numbers]
