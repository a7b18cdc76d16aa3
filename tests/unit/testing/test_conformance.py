"""What can be said of the checks without an endpoint."""

from __future__ import annotations

import hashlib
import json
from xml.etree import ElementTree as ET

import pytest

from forewarn.errors import ConfigError
from forewarn.testing.conformance import (
    CHECKS,
    SUITE_VERSION,
    CheckPhase,
    CheckResult,
    ConformanceReport,
    list_requirements,
    select_checks,
)
from forewarn.testing.conformance.checks.transport import is_rfc1123
from forewarn.testing.conformance.outcome import (
    CheckOutcome,
    CheckVerdict,
    breaks,
    excerpt_body,
    holds,
    inconclusive,
    judge,
    note_difference,
)
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_document import RawDocument, parse_raw_document
from forewarn.testing.conformance.raw_reply import RawReply
from forewarn.testing.conformance.raw_request import RawRequest, build_get, build_post, encode_approval
from forewarn.testing.conformance.run import parse_address
from forewarn.testing.conformance.sources import SOURCES
from forewarn.testing.conformance.transcripts import TRANSCRIPTS, read_golden_transcript
from forewarn.testing.conformance.version_table import METADATA_MISSING, NEWEST, VERSIONS
from forewarn.wire import imds

SEEN_FROM_OUTSIDE = {
    *("R1", *(f"R{n}" for n in range(3, 9))),
    *(f"R{n}" for n in (*range(10, 17), *range(18, 27), 28, *range(30, 34), *range(35, 43))),
    *(f"R{n}" for n in (*range(47, 50), *range(52, 58), *range(62, 67))),
    *(f"W{n}" for n in range(1, 10)),
    *(f"X{n}" for n in range(1, 4)),
    *("R76", "R111", "R112"),
    *(f"A{n}" for n in (1, 3, 4, 8, 11, 13, 17)),
}


def report(*outcomes: tuple[str, CheckOutcome]) -> ConformanceReport:
    found = {check.code: check for check in CHECKS}
    findings = tuple(CheckResult(found[code], outcome) for code, outcome in outcomes)
    return ConformanceReport(url="http://endpoint", findings=findings, allow_approve=False)


# The catalogue


def test_every_requirement_that_can_be_seen_from_outside_has_a_check() -> None:
    assert set(list_requirements(CHECKS)) >= SEEN_FROM_OUTSIDE


def test_codes_are_unique_and_titles_begin_with_a_word() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    assert all(check.title and not check.title.endswith(".") for check in CHECKS)


def test_only_the_extensions_are_extensions() -> None:
    assert [check.code for check in CHECKS if check.is_extension] == ["long-poll", "version-list", "instance"]


def test_the_second_table_of_versions_agrees_with_the_first() -> None:
    """R16, R63, R64: written down twice, so that a mistake in one is found."""
    rows = {row.name: row for row in VERSIONS}
    assert list(rows) == [version.name for version in reversed(imds.VERSIONS)]
    for version in imds.VERSIONS:
        assert rows[version.name].members[6:] == version.members
        assert rows[version.name].types == {event_type.value for event_type in version.types}
    assert METADATA_MISSING == imds.METADATA_MISSING
    assert [version.name for version in imds.VERSIONS[:-4:-1]] == NEWEST


def test_checks_are_chosen_by_requirement_and_by_code_in_any_case() -> None:
    assert {check.code for check in select_checks(["r63", "etag"])} == {"metadata-body", "etag"}
    assert select_checks([]) == CHECKS


def test_what_is_neither_a_requirement_nor_a_check_is_refused() -> None:
    with pytest.raises(ConfigError, match="'R999' is neither"):
        select_checks(["R10", "R999"])


def test_numbers_come_in_the_order_of_the_specification() -> None:
    found = list_requirements(CHECKS)
    assert found[:3] == ["R1", "R3", "R4"]
    assert found.index("R9") < found.index("R10") < found.index("W1") < found.index("X1")


# Outcomes


def test_what_is_wrong_is_named_once_and_not_without_end() -> None:
    assert judge([], "all is well") == holds("all is well")
    assert judge(["a", "a", "b"], "") == breaks("a; b")
    assert judge(["a", "b", "c", "d", "e"], "") == breaks("a; b; c; and 2 more")


def test_a_long_body_is_cut_and_put_on_one_line() -> None:
    assert excerpt_body(b"") == "an empty body"
    assert excerpt_body(b"a\r\n  b") == "a b"
    assert excerpt_body(b"x" * 1000).endswith("...")


def test_a_moment_needs_the_right_day_of_the_week() -> None:
    """R21."""
    assert is_rfc1123("Mon, 19 Sep 2016 18:29:47 GMT")
    for text in ("Tue, 19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47Z", "", "Mon, 19 Sep 2016 18:29:47 +0000"):
        assert not is_rfc1123(text)


# Reports


def test_a_requirement_is_broken_by_one_of_its_checks_and_held_by_one() -> None:
    found = report(
        ("path-case", holds("")), ("path-slash", breaks("")), ("etag", inconclusive("")), ("rate", holds(""))
    )
    assert found.judge_requirements() == {
        "R3": CheckVerdict.BREAKS,
        "R9": CheckVerdict.HOLDS,
        "R14": CheckVerdict.INCONCLUSIVE,
    }
    assert not found.is_conformant


def test_an_extension_that_is_not_there_breaks_nothing() -> None:
    assert report(("version-list", inconclusive("not offered")), ("etag", holds(""))).is_conformant


def test_the_report_as_json_names_requirements_by_outcome() -> None:
    found = report(("methods", breaks("PUT is answered 501")), ("etag", holds("it is"))).as_json()
    assert (found["breaks"], found["holds"], found["inconclusive"]) == (["R4"], ["R14"], [])
    assert found["checks"][0]["seen"] == "PUT is answered 501"


def test_the_report_as_junit_counts_and_survives_what_xml_cannot_hold() -> None:
    found = report(("methods", breaks("a\0b<c")), ("etag", inconclusive("no")), ("rate", holds("yes"))).as_junit()
    suite = ET.fromstring(found)  # noqa: S314 - we wrote it ourselves
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "a?b<c"


# Requests and answers


def test_a_note_stands_above_what_holds_and_below_what_is_broken() -> None:
    """R112: and fails no run."""
    noted = report(("event-id-case", note_difference("lower")), ("event-id", holds("")))
    assert noted.judge_requirements() == {"R30": CheckVerdict.NOTE, "R112": CheckVerdict.NOTE}
    assert noted.is_conformant
    assert (
        report(("event-id-case", note_difference("")), ("event-id", breaks(""))).judge_requirements()["R30"]
        is CheckVerdict.BREAKS
    )


def test_the_suite_says_its_version_in_every_form() -> None:
    found = report(("methods", note_difference("a")))
    assert found.as_json()["suite_version"] == SUITE_VERSION
    assert f'name="suite_version" value="{SUITE_VERSION}"'.encode() in found.as_junit()
    assert b"<system-out>note: a</system-out>" in found.as_junit()


def test_what_a_wrong_endpoint_would_answer_as_well_leaves_a_check_inconclusive() -> None:
    assert judge([], "right", ["blind"]) == inconclusive("blind")
    assert judge(["wrong"], "right", ["blind"]) == breaks("wrong")


def test_every_requirement_of_a_check_has_a_source_and_no_other_has() -> None:
    assert SOURCES.keys() == set(list_requirements(CHECKS))
    assert all(source.bases for source in SOURCES.values())
    assert all(check.numbers for check in CHECKS)


def test_a_request_is_exactly_what_was_said() -> None:
    request = build_post(encode_approval(["A"]), "2020-07-01").without_header("content-type")
    assert request.encode_head("h:1", "/p") == (
        b"POST /p/metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
        b"Host: h:1\r\nMetadata: true\r\nContent-Length: 37\r\n\r\n"
    )
    assert request.encode_body() == b'{"StartRequests": [{"EventId": "A"}]}'


def test_a_body_goes_out_in_chunks() -> None:
    request = RawRequest(method="POST", body=b"0123456789", is_chunked=True)
    assert b"Transfer-Encoding: chunked" in request.encode_head("h", "")
    assert request.encode_body() == b"7\r\n0123456\r\n3\r\n789\r\n0\r\n\r\n"


def test_a_header_takes_the_place_of_one_with_its_name() -> None:
    assert build_get("x").with_headers(("METADATA", "no")).headers == (("METADATA", "no"),)


def test_an_answer_that_is_no_json_has_no_content() -> None:
    assert RawReply(status=200, http_version="1.1", headers=(), body=b"[" * 100_000).content is None


def test_an_address_is_read_from_a_url() -> None:
    """R1."""
    assert parse_address("http://169.254.169.254").url == "http://169.254.169.254"
    address = parse_address("http://[::1]:8080/mock/metadata/scheduledevents/")
    assert (address.netloc, address.port, address.prefix) == ("[::1]:8080", 8080, "/mock")


def test_what_lets_something_start_has_its_turn_after_all_that_only_looks() -> None:
    assert {check.phase for check in CHECKS} == set(CheckPhase)
    assert all(check.code.startswith("approve") for check in CHECKS if check.phase is CheckPhase.APPROVE)


# Documents over time


class Documents(EndpointProbe):
    """A probe that has seen only these documents, a tenth of a second apart."""

    def __init__(self, *shown: tuple[int, dict[str, str]]) -> None:
        contents = [
            {"DocumentIncarnation": n, "Events": [{"EventId": i, "EventStatus": s} for i, s in events.items()]}
            for n, events in shown
        ]
        bodies = [json.dumps(content).encode() for content in contents]
        replies = [RawReply(status=200, http_version="1.1", headers=(), body=body) for body in bodies]
        found = (parse_raw_document(NEWEST[0], reply, at_s=n / 10) for n, reply in enumerate(replies))
        self._found = [document for document in found if document is not None]

    def list_documents(self, version: str | None = None) -> list[RawDocument]:
        return self._found


@pytest.mark.parametrize(
    ("before", "after", "growth", "verdict"),
    [
        ({"A": "Scheduled"}, {"A": "Started"}, 1, CheckVerdict.HOLDS),
        ({"A": "Scheduled"}, {"A": "Started"}, 2, CheckVerdict.BREAKS),
        ({"A": "Started"}, {}, 1, CheckVerdict.HOLDS),
        ({"A": "Started"}, {}, 2, CheckVerdict.BREAKS),
        ({"A": "Scheduled"}, {}, 2, CheckVerdict.HOLDS),  # it may have started in between
        ({}, {"A": "Started"}, 2, CheckVerdict.HOLDS),  # it may have been scheduled in between
        ({"A": "Started", "B": "Started"}, {}, 2, CheckVerdict.HOLDS),
    ],
)
def test_the_incarnation_grows_by_one_with_a_single_change(
    before: dict[str, str], after: dict[str, str], growth: int, verdict: CheckVerdict
) -> None:
    """R42."""
    (check,) = select_checks(["incarnation-growth"])
    assert check.run(Documents((1, before), (1 + growth, after))).verdict is verdict


DIGESTS = {"1.0": "89a7e1fe47ca79ab"}
"""Digest of the checks and golden transcripts of each version of the suite; that of a released one is never edited."""


def test_checks_and_transcripts_that_change_get_a_new_version() -> None:
    """Others compare results by the version, so one version means the same checks everywhere."""
    rows = [(check.code, check.numbers, check.title, check.phase.name, check.needs_document) for check in CHECKS]
    digest = hashlib.sha256(repr(rows).encode())
    for name in TRANSCRIPTS:
        digest.update("\n".join(read_golden_transcript(name)).encode())
    assert DIGESTS.get(SUITE_VERSION) == digest.hexdigest()[:16], "let SUITE_VERSION grow, and add its digest"
