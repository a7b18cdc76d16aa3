"""What the service and its metadata process say to each other."""

from __future__ import annotations

from dataclasses import replace

from forewarn.core.limit_log import CallerKind, CallerLimitHits
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, EventType, MaintenanceState, NotificationProfile, Scope
from forewarn.core.policy import Policy
from forewarn.endpoint import messages
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.wire.imds import Dialect, encode_documents
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, availability_set, maintenance, vm

AUDIENCE = Audience(key="scope:web", scope="web", enabled_at=NOW, epoch=2, incarnation=7, active_until=NOW)
SCHEDULED = replace(maintenance(vm("web-0"), not_before=NOW + minutes(15)), hosts=("host-1",))
STARTED = replace(
    SCHEDULED, state=MaintenanceState.STARTED, started_at=NOW, type=EventType.REBOOT, impact=EventType.REBOOT
)


def told(message: messages.FromService) -> messages.FromService:
    """As it arrives."""
    arrived: messages.FromService = messages.decode_from_service(messages.encode(message))
    return arrived


def test_a_document_arrives_with_the_bytes_that_every_version_shows() -> None:
    documents = [
        AudienceDocument(audience=AUDIENCE),
        AudienceDocument(audience=AUDIENCE, items=((an_event(), SCHEDULED), (an_event(sequence=2), STARTED))),
        AudienceDocument(audience=replace(AUDIENCE, enabled_at=None)),
    ]
    arrived = told(messages.build_document_update(documents))
    assert isinstance(arrived, messages.DocumentUpdate)
    dialect = Dialect()
    for sent, shown in zip(documents, arrived.documents, strict=True):
        assert shown.audience == sent.audience
        assert encode_documents(shown, dialect.list_versions(), dialect) == encode_documents(
            sent, dialect.list_versions(), dialect
        )


def test_the_vms_that_a_maintenance_holds_are_not_sent() -> None:
    """A host's maintenance holds thousands, and is shown to each of them."""
    [(_, maintenance_shown)] = _arrived(AudienceDocument(audience=AUDIENCE, items=((an_event(), SCHEDULED),))).items
    assert SCHEDULED.claims
    assert maintenance_shown == replace(SCHEDULED, claims=(), hosts=())


def _arrived(document: AudienceDocument) -> AudienceDocument:
    arrived = told(messages.build_document_update([document]))
    assert isinstance(arrived, messages.DocumentUpdate)
    return arrived.documents[0]


def test_vms_and_scopes_arrive_as_they_are_declared_but_for_what_only_the_service_needs() -> None:
    profile = NotificationProfile(enable=True)
    one = replace(
        vm("web-0", scope="web"), addresses=("10.9.0.1", "fd00::1"), tags=(("a", "b"),), terminate_notification=profile
    )
    scope: Scope = replace(availability_set("web"), policy=Policy(approves_user_operations=True))
    arrived = told(
        messages.InventoryPart(
            vms=[messages.encode_sparse(one)],
            scopes=[messages.encode_sparse(scope)],
            removed_vms=["gone"],
            is_last=True,
        )
    )
    assert isinstance(arrived, messages.InventoryPart)
    assert arrived.vms == [replace(one, terminate_notification=NotificationProfile())]
    assert arrived.scopes == [availability_set("web")]
    assert (arrived.removed_vms, arrived.removed_scopes, arrived.is_last) == (["gone"], [], True)


def test_calls_and_their_answers_arrive_as_they_were_said() -> None:
    approver = Approver(
        actor="vm:web-0", audience="scope:web", vm="web-0", source_address="10.9.0.1", api_version="2020-07-01"
    )
    met = CallerLimitHits(guest=CallerKind.VM, name="web-0", limited={"body_bytes_max": 4}, limited_at=NOW)
    asked: list[messages.FromEndpoint] = [
        messages.ApproveCall(1, ("A", "B"), approver),
        messages.EnableCall(2, "vm:db", None),
        messages.LastRequestTimes({"scope:web": NOW}),
        messages.CounterReport(3, [1, 2], [("2020-07-01", "GET", 200, 5)], 1, 2, 3, {"body_bytes_max": 4}, [met]),
        messages.SyncReply(4),
    ]
    assert [messages.decode_from_endpoint(messages.encode(each)) for each in asked] == asked
    answered: list[messages.FromService] = [
        messages.CallResult(1, ApprovalResult(approved=("A",), refused=("B",))),
        messages.CallResult(2, None, messages.CallFailure(503, "the database is locked")),
        messages.SyncRequest(5),
        messages.CounterRequest(6, 100),
        messages.StopRequest(2.0),
    ]
    assert [told(each) for each in answered] == answered


def test_requests_of_the_hot_path_and_of_the_app_arrive_as_they_were_written_down() -> None:
    written, read = RequestJournal(lambda: NOW, 10, numbered_after=41), RequestJournal(lambda: NOW, 10)
    written.record_fast_request("vm-1", "127.0.0.1", b"GET /x?api-version=1 HTTP/1.1\r\nMetadata: true\r\n\r\n", b"{}")
    written.record_request(
        vm="vm-1",
        source_address="127.0.0.1",
        method="POST",
        target="/x",
        headers=(("Metadata", "true"),),
        body=b"\xff\x00",
        status=400,
        answer=b"{}",
        took_s=0.5,
    )
    arrived = messages.decode_from_endpoint(messages.encode(messages.JournalEntries(written.list_entries_after(0))))
    assert isinstance(arrived, messages.JournalEntries)
    read.add_entries(arrived.requests)
    read.add_entries(arrived.requests)
    assert read.list_exchanges() == written.list_exchanges()
    assert [each.number for each in read.list_exchanges()] == [42, 43]
    assert (read.newest_number, [each.number for each in written.list_entries_after(42)]) == (43, [43])
