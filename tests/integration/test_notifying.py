"""Subscriptions of a real service: what a receiver gets, whatever it answers, and what the control API tells of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from forewarn.core.access import Role
from tests.support.access import client_of, token_of
from tests.support.receiver import Got, Receiver, receiver
from tests.support.service import Running, Vm, eventually, running

SETTINGS: dict[str, Any] = {
    "notify_retry": "100ms",
    "notify_retry_max": "1s",
    "notify_deadline": "60s",
    "notify_dead_max": 3,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One whose receivers are tried again soon."""
    with running(tmp_path_factory.mktemp("notifying"), **SETTINGS) as started:
        yield started


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    with service.operator() as operator:
        yield operator
        for each in operator.get("/v1/subscriptions").json()["items"]:
            operator.delete(f"/v1/subscriptions/{each['name']}")


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def subscribe(api: httpx.Client, hook: Receiver, vm: Vm | None = None, **wanted: Any) -> dict[str, Any]:  # noqa: ANN401
    """To one VM's events, so that other tests' are not told."""
    body = {"name": "chat", "url": hook.url, "vms": [vm.name] if vm else []} | wanted
    answer = api.post("/v1/subscriptions", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def shown(api: httpx.Client, name: str = "chat") -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/v1/subscriptions/{name}").json()
    return found


def live(service: Running, vm: Vm) -> None:
    """A whole event: scheduled, approved by the operator, started, completed."""
    made = service.schedule(vm)
    with service.operator() as operator:
        event = operator.get(f"/v1/maintenance/{made.id}").json()["events"][0]["id"]
        operator.post("/v1/events/approve", json={"event_ids": [event]})
    service.complete(vm)


LIFE = ["event.scheduled", "event.approved", "event.started", "event.completed"]


def test_a_receiver_is_told_of_a_whole_life_in_order_and_can_verify_it(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm
) -> None:
    made = subscribe(api, hook, vm)
    live(service, vm)
    assert eventually(lambda: len(hook.taken) == 4)
    assert hook.kinds == LIFE
    assert len(set(hook.ids)) == 4
    for got in hook.taken:
        got.verify(made["secret"])
        assert got.headers["webhook-id"] == got.id
        assert got.headers["content-type"].startswith("application/cloudevents+json")
        assert got.path == "/hook?key=1"
    with pytest.raises(WebhookVerificationError):
        Webhook(made["secret"]).verify(hook.taken[0].body + b" ", hook.taken[0].headers)
    assert "secret" in made
    assert shown(api)["secret"] is None
    assert made["secret"] not in api.get("/v1/audit-log", params={"newest": True}).text


def test_two_tenants_are_told_of_their_own_events_only(service: Running, api: httpx.Client, hook: Receiver) -> None:
    mine, others = service.vm(), service.vm()
    service.enable(mine)
    service.enable(others)
    subscribe(api, hook, mine)
    with receiver() as second:
        subscribe(api, second, others, name="other")
        live(service, mine)
        live(service, others)
        assert eventually(lambda: len(hook.taken) == len(second.taken) == 4)
        for ours, foreign in ((hook, others), (second, mine)):
            assert not any(f'"{foreign.name}"'.encode() in got.body for got in ours.got)


@pytest.mark.parametrize("answer", [500, 404, "redirect", "cut"])
def test_what_fails_is_tried_again_under_the_same_id(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm, answer: int | str
) -> None:
    failures = iter([answer] * 5)
    hook.script = lambda _got: next(failures, 204)
    subscribe(api, hook, vm)
    live(service, vm)
    assert eventually(lambda: len(hook.taken) >= 4)
    assert hook.kinds == LIFE
    assert len(hook.got) >= 9
    assert {got.id for got in hook.got} == set(hook.ids)
    assert eventually(lambda: shown(api)["failing_since"] is None and shown(api)["waiting"] == 0)


def test_a_receiver_that_was_killed_gets_all_when_it_is_back(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm
) -> None:
    subscribe(api, hook, vm)
    hook.stop()
    live(service, vm)
    live(service, vm)
    assert eventually(lambda: shown(api)["failing_since"] is not None)
    hook.start()
    assert eventually(lambda: len(hook.taken) == 8)
    assert list(hook.stories.values()) == [LIFE, LIFE]


@pytest.mark.slow
def test_a_receiver_that_hangs_holds_up_nobody_else(tmp_path: Path, hook: Receiver) -> None:
    with (
        running(tmp_path, **SETTINGS | {"notify_deadline": "2s"}) as service,
        service.operator() as api,
        receiver(lambda _got: "hang") as stuck,
    ):
        vm = service.vm()
        service.enable(vm)
        subscribe(api, stuck, vm, name="stuck")
        subscribe(api, hook, vm)
        live(service, vm)
        assert eventually(lambda: len(hook.taken) == 4)
        assert stuck.taken == []
        assert eventually(lambda: shown(api, "stuck")["failing_since"] is not None)
        page = api.get("/v1/subscriptions/stuck/deliveries", params={"state": "waiting"}).json()["items"]
        assert page[0]["last_error"] == "no answer within 2 s"


def test_a_huge_answer_is_an_answer(service: Running, api: httpx.Client, hook: Receiver, vm: Vm) -> None:
    hook.script = lambda _got: "huge"
    subscribe(api, hook, vm)
    live(service, vm)
    assert eventually(lambda: len(hook.taken) == 4)
    assert len(hook.got) == 4


def test_one_that_is_never_taken_does_not_hold_up_what_is_of_other_events(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm
) -> None:
    bad: list[str] = []

    def script(got: Got) -> int:
        bad.extend([got.event["subject"]] if not bad else [])
        return 422 if got.event["subject"] == bad[0] else 204

    hook.script = script
    subscribe(api, hook, vm)
    for _ in range(3):
        live(service, vm)
    assert eventually(lambda: len(hook.taken) == 8)
    assert list(hook.stories.values()) == [LIFE, LIFE]
    assert eventually(lambda: shown(api)["waiting"] == 4)
    page = api.get("/v1/subscriptions/chat/deliveries", params={"state": "waiting"}).json()["items"]
    assert {each["subject"] for each in page} == set(bad)
    assert page[0]["last_error"] == "answered 422"


def test_410_pauses_a_subscription_and_it_goes_on_where_it_was(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm
) -> None:
    hook.script = lambda _got: 410
    subscribe(api, hook, vm)
    live(service, vm)
    assert eventually(lambda: shown(api)["state"] == "paused")
    found = shown(api)
    assert (found["given_up"], found["reason"]) == (True, "the receiver answered 410 Gone")
    assert len(hook.got) == 1
    hook.script = lambda _got: 204
    assert api.post("/v1/subscriptions/chat/resume").json()["state"] == "active"
    assert eventually(lambda: len(hook.taken) == 4)
    assert hook.kinds == LIFE
    assert 'forewarn_subscriptions{state="given-up"} 0.0' in api.get("/metrics").text


def test_a_paused_subscription_is_told_later_and_may_skip(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm
) -> None:
    subscribe(api, hook, vm)
    api.post("/v1/subscriptions/chat/pause", json={"reason": "moving"})
    live(service, vm)
    assert shown(api)["reason"] == "moving"
    api.post("/v1/subscriptions/chat/resume")
    assert eventually(lambda: len(hook.taken) == 4)
    api.post("/v1/subscriptions/chat/pause")
    live(service, vm)
    api.post("/v1/subscriptions/chat/resume", json={"skip": True})
    service.schedule(vm)
    assert eventually(lambda: len(hook.taken) == 5)
    assert hook.kinds == [*LIFE, "event.scheduled"]


def test_a_new_secret_signs_beside_the_former_one(service: Running, api: httpx.Client, hook: Receiver, vm: Vm) -> None:
    former = subscribe(api, hook, vm)["secret"]
    new = api.post("/v1/subscriptions/chat/rotate-secret").json()["secret"]
    live(service, vm)
    assert eventually(lambda: len(hook.taken) == 4)
    for secret in (former, new):
        hook.taken[0].verify(secret)
    assert former != new


def test_a_secret_that_others_know_signs_nothing_more(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm
) -> None:
    leaked = subscribe(api, hook, vm)["secret"]
    api.post("/v1/subscriptions/chat/rotate-secret")
    again = api.post("/v1/subscriptions/chat/rotate-secret")
    assert again.status_code == 409
    assert "still signs: wait, or use --at-once" in again.json()["error"]["message"]
    rotated = api.post("/v1/subscriptions/chat/rotate-secret", json={"at_once": True}).json()
    assert rotated["former_secret_until"] is None
    service.schedule(vm)
    assert eventually(lambda: len(hook.taken) == 1)
    hook.taken[0].verify(rotated["secret"])
    with pytest.raises(WebhookVerificationError):
        hook.taken[0].verify(leaked)


def test_a_secret_is_shown_once_and_never_again(
    service: Running, api: httpx.Client, hook: Receiver, vm: Vm, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secrets = [subscribe(api, hook, vm)["secret"]]
    secrets.append(api.post("/v1/subscriptions/chat/rotate-secret").json()["secret"])
    api.post("/v1/subscriptions/chat/test")
    live(service, vm)
    assert eventually(lambda: len(hook.taken) == 5)
    paths = ["subscriptions", "subscriptions/chat", "subscriptions/chat/deliveries", "audit-log?newest=true"]
    shown_now = [api.get(f"/v1/{path}").text for path in paths] + [api.get("/metrics").text, caplog.text]
    shown_now.append(api.post("/v1/subscriptions/chat/pause").text)
    shown_now += [got.body.decode() for got in hook.got]
    assert not [text for text in shown_now for secret in secrets if secret in text]


def test_who_may_only_read_sees_where_a_url_leads_and_not_its_key(
    service: Running, api: httpx.Client, hook: Receiver
) -> None:
    subscribe(api, hook)
    with client_of(service, token_of(service, Role.READ_ONLY)) as reader:
        found = [reader.get("/v1/subscriptions").json()["items"][0], reader.get("/v1/subscriptions/chat").json()]
        assert {each["url"] for each in found} == {f"http://127.0.0.1:{hook.port}/…"}
        assert reader.post("/v1/subscriptions", json={"name": "x", "url": hook.url}).status_code == 403
        assert reader.post("/v1/subscriptions/chat/test").status_code == 403
    with client_of(service, token_of(service, Role.TENANT)) as tenant:
        assert tenant.get("/v1/subscriptions").status_code == 403


def test_a_ping_says_what_the_receiver_answered(api: httpx.Client, hook: Receiver) -> None:
    made = subscribe(api, hook)
    assert api.post("/v1/subscriptions/chat/test").json() | {"took_s": 0} == {
        "delivered": True,
        "status": 204,
        "error": "",
        "took_s": 0,
    }
    (ping,) = [got for got in hook.got if got.kind == "ping"]
    ping.verify(made["secret"])
    hook.script = lambda _got: "redirect"
    answer = api.post("/v1/subscriptions/chat/test").json()
    assert (answer["delivered"], answer["status"]) == (False, 307)
    assert "redirects are not followed" in answer["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"url": "http://169.254.169.254/metadata"}, 400, "is the address of a metadata service"),
        ({"url": "gopher://x"}, 400, "expected to begin with https:// or http://"),
        ({"scopes": ["nobody"]}, 404, "scope 'nobody' does not exist"),
        ({"vms": ["nobody"]}, 404, "vm 'nobody' does not exist"),
        ({"vms": ["Web_0"]}, 400, "name the scope"),
        ({"kinds": ["everything"]}, 422, "kinds"),
        ({"name": "a b"}, 422, "name"),
        ({"secret": "x"}, 422, "secret"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(
    api: httpx.Client, body: dict[str, Any], status: int, words: str
) -> None:
    answer = api.post("/v1/subscriptions", json={"name": "bad", "url": "https://receiver.example/"} | body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


def test_a_name_is_taken_once_and_what_is_not_there_is_said(api: httpx.Client, hook: Receiver) -> None:
    subscribe(api, hook)
    assert api.post("/v1/subscriptions", json={"name": "chat", "url": hook.url}).status_code == 409
    assert api.get("/v1/subscriptions/nobody").status_code == 404
    redelivered = api.post("/v1/subscriptions/chat/deliveries/redeliver", json={"ids": ["1-x"]})
    assert "no dead delivery 1-x" in redelivered.json()["error"]["message"]
    assert api.get("/v1/subscriptions/chat/deliveries", params={"after": "x"}).status_code == 400


def test_a_name_that_leads_to_a_forbidden_address_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is looked at after the name was resolved."""
    with running(tmp_path, notify_private_addresses=False) as service, service.operator() as api, receiver() as hook:
        made = api.post("/v1/subscriptions", json={"name": "x", "url": f"http://localhost:{hook.port}/"})
        assert made.status_code == 201
        answer = api.post("/v1/subscriptions/x/test").json()
        assert (answer["delivered"], answer["status"]) == (False, None)
        assert "requests to localhost are not allowed" in answer["error"]
        assert hook.got == []


def test_what_is_too_old_is_given_up_and_can_be_sent_again(tmp_path: Path) -> None:
    """On a virtual clock: what is due is tried when time has come there."""
    settings: dict[str, Any] = {"clock": "virtual", "notify_age_max": "10m", "notify_dead_max": 2}
    with running(tmp_path, **settings) as service, service.operator() as api, receiver() as hook:
        hook.script = lambda _got: "later"
        vm = service.vm()
        service.enable(vm)
        subscribe(api, hook, vm)
        service.schedule(vm)
        assert eventually(lambda: shown(api)["waiting"] == 1)
        assert len(hook.got) == 1
        _advance(api, 3590)  # an hour was asked for
        assert len(hook.got) == 1
        _advance(api, 20)
        assert eventually(lambda: shown(api)["dead"] >= 1)
        (dead, *_) = api.get("/v1/subscriptions/chat/deliveries").json()["items"]
        assert (dead["state"], dead["kind"], dead["last_error"], dead["next_at"]) == (
            "dead",
            "scheduled",
            "answered 503",
            None,
        )
        assert 'forewarn_dead_letters{subscription="chat"}' in api.get("/metrics").text
        hook.script = lambda _got: 204
        api.post("/v1/subscriptions/chat/resume")
        again = api.post("/v1/subscriptions/chat/deliveries/redeliver", json={"ids": [dead["id"]]})
        assert again.json() == {"count": 1}
        assert eventually(lambda: dead["id"] in hook.ids)
        assert eventually(lambda: dead["id"] not in api.get("/v1/subscriptions/chat/deliveries").text)


def _advance(api: httpx.Client, by_s: float) -> None:
    answer = api.post("/v1/clock/advance", json={"by_s": by_s})
    assert answer.status_code == 200, answer.text
