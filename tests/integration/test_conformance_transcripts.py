"""The golden transcripts: Forewarn's own endpoint answers as they say, played by the example that needs nothing of it.

A transcript's requests are written by hand. After a wanted change of the wire, write its answers anew, and read the
difference before it is committed:

    .venv/bin/python -m tests.integration.test_conformance_transcripts
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from examples.hold_to_transcripts import Answer, Ask, Do, asker, differs, main, play
from forewarn.testing.conformance import CHECKS, SUITE_VERSION, list_requirements
from forewarn.testing.conformance.transcripts import TRANSCRIPTS, read_golden_transcript
from tests.support.service import Running, Vm, running
from tests.support.wire import get
from tests.support.wrong_endpoint import wrong_endpoint

HEADERS = ("content-type", "etag", "allow", "content-length")
"""Those of Forewarn's answers that a transcript keeps; the length and the type only where they say something."""

FOLDER = Path(__file__).parents[2] / "src/forewarn/testing/conformance/transcripts"

names = pytest.mark.parametrize("name", TRANSCRIPTS)


def doer(service: Running, vm: Vm) -> Do:
    """What makes happen, in a running service, what a transcript says."""

    def do(verb: str, _: str, sets: list[str]) -> dict[str, str]:
        if verb == "schedule":
            service.schedule(vm)
        elif verb == "evict":
            service.schedule(vm, event_type=None, cause="spot-eviction")
        else:
            service.complete(vm)
        return values(service, vm) if sets else {}

    return do


def values(service: Running, vm: Vm) -> dict[str, str]:
    """What the event of that VM sets."""
    with service.wire(vm) as wire:
        event = wire.ask(get()).json["Events"][0]
    moment = parsedate_to_datetime(event["NotBefore"]).astimezone(UTC)
    return {
        "event": event["EventId"],
        "event_lower": event["EventId"].lower(),
        "not_before": event["NotBefore"],
        "not_before_iso": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def ask_as(service: Running, vm: Vm) -> Ask:
    return asker(service.url, vm.address)


@names
def test_our_own_endpoint_answers_as_the_transcript_says(service: Running, name: str) -> None:
    """R14 to R16, R18 to R28, R36, R40, R42, R47 to R49, R53 to R57, R63, R64, R111."""
    vm = service.web[-1] if name == "preempt" else service.vm()
    played = list(play(read_golden_transcript(name), {"vm": vm.name}, ask_as(service, vm), doer(service, vm)))
    assert [f"{step['name']}: {difference}" for step, _, difference in played if difference] == []
    assert played


@names
def test_a_transcript_is_complete_and_about_requirements_of_the_suite(name: str) -> None:
    head, *steps = map(json.loads, read_golden_transcript(name))
    assert (head["name"], head["suite_version"]) == (name, SUITE_VERSION)
    known = set(list_requirements(CHECKS)) | {"R27", "R45", "R79"}
    exchanges = [step for step in steps if "request" in step]
    assert {number for step in exchanges for number in step["requirements"]} <= known
    assert all(step["answer"]["status"] for step in exchanges)
    assert len({step["name"] for step in exchanges}) == len(exchanges)


def test_an_endpoint_that_answers_otherwise_is_found_out() -> None:
    with wrong_endpoint() as url:
        played = list(play(read_golden_transcript("requests"), {"vm": "Vm-1"}, asker(url), lambda *_: {}))
    found = {step["name"]: difference for step, _, difference in played if difference}
    assert "the empty document in 2020-07-01" in found
    assert "no Metadata header" not in found
    assert "an empty list" not in found


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, {"etag": '"1"'}, b"{}"), ""),
        ((201, {"etag": '"1"'}, b"{}"), "status 201, expected 200"),
        ((200, {}, b"{}"), 'etag: , expected "1"'),
        ((200, {"etag": '"1"'}, b"{} "), "b'{} ', expected b'{}'"),
    ],
    ids=["same", "status", "header", "body"],
)
def test_status_headers_and_bytes_are_compared(answer: Answer, said: str) -> None:
    assert differs({"status": 200, "headers": {"etag": '"1"'}, "exact": True, "body": "{}"}, answer) == said


@pytest.mark.parametrize(("body", "is_same"), [(b'{"error":"x"}', True), (b"", False), (b"[]", False)], ids=str)
def test_of_an_error_in_our_own_words_only_the_form_is_compared(body: bytes, is_same: bool) -> None:
    """R65."""
    expected = {"status": 400, "headers": {}, "exact": False, "body": '{ "error": "..." }'}
    assert (differs(expected, (400, {}, body)) == "") is is_same


def test_the_example_names_each_exchange_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    with wrong_endpoint() as url:
        status = main(url, "Vm-1", str(FOLDER / "instance.jsonl"))
    said = capsys.readouterr().out.splitlines()
    assert status == 1
    assert said[0].startswith("differs: the VM's name as text: content-type: text/plain, expected text/plain; charset")
    assert "same: an api-version that never existed" in said


# Writing the answers anew


def _rewritten(service: Running, name: str) -> str:
    vm = service.vm()
    variables = {"vm": vm.name}
    lines = read_golden_transcript(name)
    exchanges = iter(list(play(lines, variables, ask_as(service, vm), doer(service, vm))))
    steps: list[Any] = [json.loads(line) for line in lines]
    for step in steps:
        if "request" in step:
            _, answer, _ = next(exchanges)
            step["answer"] = _shown(answer, variables, is_exact=step["answer"]["exact"])
    return "".join(json.dumps(step) + "\n" for step in steps)


def _shown(answer: Answer, variables: dict[str, str], *, is_exact: bool) -> dict[str, Any]:
    status, headers, body = answer
    text = body.decode()
    for name, value in variables.items():
        text = text.replace(value, f"${{{name}}}")
    without = "content-length" if body else "content-type"  # neither the length nor the type of nothing is compared
    kept = {name: headers[name] for name in HEADERS if name in headers and name != without}
    return {"status": status, "headers": kept, "exact": is_exact, "body": text}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as files, running(Path(files)) as started:
        for each in TRANSCRIPTS:
            (FOLDER / f"{each}.jsonl").write_text(_rewritten(started, each))
