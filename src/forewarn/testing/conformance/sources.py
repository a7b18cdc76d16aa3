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
    detail: str = ""


_D, _I, _CAP, _CLI, _F = (
    EvidenceKind.DOCUMENTED,
    EvidenceKind.IMDS,
    EvidenceKind.CAPTURED,
    EvidenceKind.CLIENTS,
    EvidenceKind.CHOSEN,
)

SOURCES: dict[str, RequirementSource] = {
    "R1": RequirementSource((_D,), "path and address are in all editions since 2017"),
    "R3": RequirementSource(
        (_CLI, _F),
        "Azure's C# sample requests `scheduledEvents`; the rules for the slash and for 404 are Forewarn's choice",
    ),
    "R4": RequirementSource(
        (_D, _I), "GET and POST are documented; the table of status codes has 405 for other methods"
    ),
    "R5": RequirementSource(
        (_I,), "repeated query parameters are refused; the rule for unknown parameters is Forewarn's choice"
    ),
    "R6": RequirementSource((_CLI,), "curl, PowerShell, `requests` and .NET send chunks, `Expect` or byte order marks"),
    "R7": RequirementSource((_CLI,), "curl sends the Content-Type of a form, `requests` sends no Content-Type"),
    "R8": RequirementSource((_I, _CAP), "published answers of the instance metadata have these headers"),
    "R9": RequirementSource(
        (_D, _I), "clients may poll as often as they like; IMDS in general allows 5 requests per second"
    ),
    "R10": RequirementSource(
        (_D,),
        "the header Metadata is required since 2017-08-01; the answer to a request without this header was captured "
        "(R63)",
    ),
    "R11": RequirementSource((_CLI, _F), "a Microsoft sample sends `metadata` in lower case"),
    "R12": RequirementSource((_D, _CLI), "the C# sample of the preview sends POST without the header Metadata"),
    "R13": RequirementSource((_I,), "a request with X-Forwarded-For is rejected"),
    "R14": RequirementSource(
        (_D, _CLI),
        "the documentation calls the incarnation an ETag; Azure/vm-scheduled-events reads the ETag and handles 304",
    ),
    "R15": RequirementSource((_D,), "api-version is mandatory"),
    "R16": RequirementSource(
        (_D, _CAP), "the documentation has a table of versions; captures of 2018 to 2023 show the members"
    ),
    "R18": RequirementSource((_D, _CAP), "MicrosoftDocs/azure-docs#58422"),
    "R19": RequirementSource((_D,), "terminate notification needs 2019-01-01 or later"),
    "R20": RequirementSource((_D,), "2017-08-01 removed the underscore from names of IaaS VMs"),
    "R21": RequirementSource(
        (_D, _CAP), "every capture has NotBefore in RFC 1123; the page of the preview has ISO 8601"
    ),
    "R22": RequirementSource((_D,), "`latest` is no longer supported"),
    "R23": RequirementSource(
        (_CLI,), "Pacemaker's azure-events-az polls with one api-version and approves with another"
    ),
    "R24": RequirementSource((_D,), "MicrosoftDocs/azure-docs#46856"),
    "R25": RequirementSource((_D, _CAP)),
    "R26": RequirementSource((_CAP,), "the document is compact in MicrosoftDocs/azure-docs#39758 and #70276"),
    "R28": RequirementSource((_D,), "the incarnation changes with the events, and only then"),
    "R30": RequirementSource((_D,), "an EventId is globally unique, and the same in Scheduled and Started"),
    "R31": RequirementSource((_D,)),
    "R32": RequirementSource((_D,)),
    "R33": RequirementSource((_D,)),
    "R35": RequirementSource((_D,)),
    "R36": RequirementSource((_D, _CAP), "NotBefore is empty once the event is Started: Azure/AKS#3719"),
    "R37": RequirementSource((_D, _CAP), "scylladb/scylla-cluster-tests#5608"),
    "R38": RequirementSource((_D,)),
    "R39": RequirementSource((_D,)),
    "R40": RequirementSource((_D,), "the documentation shows the life of an event"),
    "R41": RequirementSource((_D, _CAP)),
    "R42": RequirementSource((_D,), "in the documented life of an event, the incarnations are 1, 2, 3, 4"),
    "R47": RequirementSource((_D,)),
    "R48": RequirementSource(
        (_D,), "the preview's examples for curl, C# and PowerShell send DocumentIncarnation with an approval"
    ),
    "R49": RequirementSource((_D,), "any valid EventId gets 200, also after another VM's approval"),
    "R52": RequirementSource((_D, _CLI), "sample code and azure-events-az approve several events at once"),
    "R53": RequirementSource((_D,), "examples have EventIds in upper case and in lower case"),
    "R54": RequirementSource((_D,), "400 is documented for a malformed header or payload"),
    "R55": RequirementSource((_F,), "400, 404 and 200 are accepted (A11)"),
    "R56": RequirementSource((_CLI,), "Azure-Samples/scheduled-events-mock-server"),
    "R57": RequirementSource((_CLI, _F), "the body may be empty or a document (A13); clients accept both"),
    "R62": RequirementSource((_F,)),
    "R63": RequirementSource((_CAP,), "MicrosoftDocs/azure-docs#91624"),
    "R64": RequirementSource((_I, _CAP), "MicrosoftDocs/azure-compute-docs#289"),
    "R65": RequirementSource((_I, _F), "the statuses are documented; the texts are Forewarn's choice"),
    "R66": RequirementSource((_I,), "410, 429 and 5xx should be retried"),
    "R76": RequirementSource((_D,), "an approved event may start before NotBefore"),
    "R111": RequirementSource(
        (_I, _CAP), "azure-docs#15283; hashicorp/terraform-azurerm-consul#38; insights-core#3251"
    ),
    "R112": RequirementSource((_CAP,), "published answers differ in the order of members, in case and in white space"),
    "W1": RequirementSource((_CLI,), "one client maps members to a class, and fails on unknown members"),
    "W2": RequirementSource((_CLI,), "two clients see no events unless the Content-Type is application/json"),
    "W3": RequirementSource(
        (_CLI,),
        "a client that reuses a connection loses its approval if the endpoint closes the connection without saying so "
        "in the previous answer",
    ),
    "W4": RequirementSource((_CLI,), "some clients treat 202 and 204 as failures; one client parses the body"),
    "W5": RequirementSource((_CLI,), "several clients approve again at each poll"),
    "W6": RequirementSource((_CLI,)),
    "W7": RequirementSource((_CLI,), "clients compare Resources with compute.name, case-sensitively"),
    "W8": RequirementSource((_CLI,), "half of the clients open a connection for each poll"),
    "W9": RequirementSource((_CLI,), "one client treats the incarnation 0 as missing"),
    "X1": RequirementSource((_F,), "a long poll: GET with the header `Prefer: wait` (RFC 7240)"),
    "X2": RequirementSource((_I,), "Azure lists the api-versions of the instance metadata"),
    "X3": RequirementSource((_I,)),
    "A1": RequirementSource((_D, _CAP), "the sources disagree about the format of NotBefore in 2017-03-01"),
    "A2": RequirementSource(
        (_D,), "the China cloud's documentation lacks 2017-11-01; a user got 400: MicrosoftDocs/azure-docs#46771"
    ),
    "A3": RequirementSource((_D, _CLI), "the sources disagree about the header Metadata in 2017-03-01"),
    "A4": RequirementSource((_D,), "the sources disagree about whether `latest` still works"),
    "A8": RequirementSource((_CAP,), "captures have upper case, some examples have lower case"),
    "A11": RequirementSource((_F,), "the answer to an unknown EventId is undocumented"),
    "A13": RequirementSource((_F,), "the body of the answer is undocumented"),
    "A17": RequirementSource((_I,), "no limit for Scheduled Events is documented"),
}
"""Sources by requirement number."""
