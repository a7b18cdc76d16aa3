"""Sources of each requirement, for the reference page of the checks.

The wording is ours. It rests on Microsoft's documentation of Scheduled Events and of the instance metadata, published
answers of real endpoints, and the source of clients in use. If none of these says anything, Forewarn has made a choice,
and a check accepts every answer that is documented or was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["SOURCES", "EvidenceKind", "RequirementSource"]


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
    detail: str


_D, _I, _CAP, _CLI, _F = (
    EvidenceKind.DOCUMENTED,
    EvidenceKind.IMDS,
    EvidenceKind.CAPTURED,
    EvidenceKind.CLIENTS,
    EvidenceKind.CHOSEN,
)

_ROWS: dict[str, tuple[tuple[EvidenceKind, ...], str]] = {
    "R1": ((_D,), "path and address are in all editions since 2017"),
    "R3": (
        (_CLI, _F),
        "Azure's C# sample requests `scheduledEvents`; the rules for the slash and for 404 are Forewarn's choice",
    ),
    "R4": ((_D, _I), "GET and POST are documented; the table of status codes has 405 for other methods"),
    "R5": ((_I,), "repeated query parameters are refused; the rule for unknown parameters is Forewarn's choice"),
    "R6": ((_CLI,), "curl, PowerShell, `requests` and .NET send chunks, `Expect` or byte order marks"),
    "R7": ((_CLI,), "curl sends the Content-Type of a form, `requests` sends no Content-Type"),
    "R8": ((_I, _CAP), "published answers of the instance metadata have these headers"),
    "R9": ((_D, _I), "clients may poll as often as they like; IMDS in general allows 5 requests per second"),
    "R10": (
        (_D,),
        (
            "the header Metadata is required since 2017-08-01; the answer to a request without this header was "
            "captured (R63)"
        ),
    ),
    "R11": ((_CLI, _F), "a Microsoft sample sends `metadata` in lower case"),
    "R12": ((_D, _CLI), "the C# sample of the preview sends POST without the header Metadata"),
    "R13": ((_I,), "a request with X-Forwarded-For is rejected"),
    "R14": (
        (_D, _CLI),
        "the documentation calls the incarnation an ETag; Azure/vm-scheduled-events reads the ETag and handles 304",
    ),
    "R15": ((_D,), "api-version is mandatory"),
    "R16": ((_D, _CAP), "the documentation has a table of versions; captures of 2018 to 2023 show the members"),
    "R18": ((_D, _CAP), "MicrosoftDocs/azure-docs#58422"),
    "R19": ((_D,), "terminate notification needs 2019-01-01 or later"),
    "R20": ((_D,), "2017-08-01 removed the underscore from names of IaaS VMs"),
    "R21": ((_D, _CAP), "every capture has NotBefore in RFC 1123; the page of the preview has ISO 8601"),
    "R22": ((_D,), "`latest` is no longer supported"),
    "R23": ((_CLI,), "Pacemaker's azure-events-az polls with one api-version and approves with another"),
    "R24": ((_D,), "MicrosoftDocs/azure-docs#46856"),
    "R25": ((_D, _CAP), ""),
    "R26": ((_CAP,), "the document is compact in MicrosoftDocs/azure-docs#39758 and #70276"),
    "R28": ((_D,), "the incarnation changes with the events, and only then"),
    "R30": ((_D,), "an EventId is globally unique, and the same in Scheduled and Started"),
    "R31": ((_D,), ""),
    "R32": ((_D,), ""),
    "R33": ((_D,), ""),
    "R35": ((_D,), ""),
    "R36": ((_D, _CAP), "NotBefore is empty once the event is Started: Azure/AKS#3719"),
    "R37": ((_D, _CAP), "scylladb/scylla-cluster-tests#5608"),
    "R38": ((_D,), ""),
    "R39": ((_D,), ""),
    "R40": ((_D,), "the documentation shows the life of an event"),
    "R41": ((_D, _CAP), ""),
    "R42": ((_D,), "in the documented life of an event, the incarnations are 1, 2, 3, 4"),
    "R47": ((_D,), ""),
    "R48": ((_D,), "the preview's examples for curl, C# and PowerShell send DocumentIncarnation with an approval"),
    "R49": ((_D,), "any valid EventId gets 200, also after another VM's approval"),
    "R52": ((_D, _CLI), "sample code and azure-events-az approve several events at once"),
    "R53": ((_D,), "examples have EventIds in upper case and in lower case"),
    "R54": ((_D,), "400 is documented for a malformed header or payload"),
    "R55": ((_F,), "400, 404 and 200 are accepted (A11)"),
    "R56": ((_CLI,), "Azure-Samples/scheduled-events-mock-server"),
    "R57": ((_CLI, _F), "the body may be empty or a document (A13); clients accept both"),
    "R62": ((_F,), ""),
    "R63": ((_CAP,), "MicrosoftDocs/azure-docs#91624"),
    "R64": ((_I, _CAP), "MicrosoftDocs/azure-compute-docs#289"),
    "R65": ((_I, _F), "the statuses are documented; the texts are Forewarn's choice"),
    "R66": ((_I,), "410, 429 and 5xx should be retried"),
    "R76": ((_D,), "an approved event may start before NotBefore"),
    "R111": ((_I, _CAP), "azure-docs#15283; hashicorp/terraform-azurerm-consul#38; insights-core#3251"),
    "R112": ((_CAP,), "published answers differ in the order of members, in case and in white space"),
    "W1": ((_CLI,), "one client maps members to a class, and fails on unknown members"),
    "W2": ((_CLI,), "two clients see no events unless the Content-Type is application/json"),
    "W3": (
        (_CLI,),
        (
            "a client that reuses a connection loses its approval if the endpoint closes the connection without "
            "saying so in the previous answer"
        ),
    ),
    "W4": ((_CLI,), "some clients treat 202 and 204 as failures; one client parses the body"),
    "W5": ((_CLI,), "several clients approve again at each poll"),
    "W6": ((_CLI,), ""),
    "W7": ((_CLI,), "clients compare Resources with compute.name, case-sensitively"),
    "W8": ((_CLI,), "half of the clients open a connection for each poll"),
    "W9": ((_CLI,), "one client treats the incarnation 0 as missing"),
    "X1": ((_F,), "a long poll: GET with the header `Prefer: wait` (RFC 7240)"),
    "X2": ((_I,), "Azure lists the api-versions of the instance metadata"),
    "X3": ((_I,), ""),
    "A1": ((_D, _CAP), "the sources disagree about the format of NotBefore in 2017-03-01"),
    "A2": ((_D,), "the China cloud's documentation lacks 2017-11-01; a user got 400: MicrosoftDocs/azure-docs#46771"),
    "A3": ((_D, _CLI), "the sources disagree about the header Metadata in 2017-03-01"),
    "A4": ((_D,), "the sources disagree about whether `latest` still works"),
    "A8": ((_CAP,), "captures have upper case, some examples have lower case"),
    "A11": ((_F,), "the answer to an unknown EventId is undocumented"),
    "A13": ((_F,), "the body of the answer is undocumented"),
    "A17": ((_I,), "no limit for Scheduled Events is documented"),
}

SOURCES = {number: RequirementSource(bases, detail) for number, (bases, detail) in _ROWS.items()}
"""Sources by requirement number."""
