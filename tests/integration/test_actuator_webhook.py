"""The actuator `webhook`: services that hang, drip, flood, send elsewhere, or answer nonsense."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from forewarn.actuators import Progress
from forewarn.actuators.payload import REASON_LENGTH_MAX, describe_maintenance
from forewarn.actuators.webhook import SIGNATURE, Webhook, sign_request
from forewarn.clock import RealClock
from forewarn.errors import ActuatorError, ConfigError
from tests.support.actuated import started
from tests.support.operator_service import DRIP, HANG, Asked, OperatorService, answer, operator_service

pytestmark = pytest.mark.anyio

NOW = RealClock().now()
SECRET = "a secret that nobody else has"
MAINTENANCE = started("web-0", "web-1")


@pytest.fixture
async def service() -> AsyncIterator[OperatorService]:
    async with operator_service() as running:
        yield running


@pytest.fixture
async def webhook(service: OperatorService) -> AsyncIterator[Webhook]:
    made = Webhook(service.url, SECRET, answer_size_bytes_max=1000)
    yield made
    await made.close()


def always(reply: bytes) -> Callable[[Asked], bytes | None]:
    return lambda _asked: reply


async def refusal(webhook: Webhook) -> str:
    """The one line in which it says, each time, what is wrong."""
    messages = set()
    for call in (webhook.execute, webhook.observe):
        with pytest.raises(ActuatorError) as caught:
            await call(MAINTENANCE, NOW)
        messages.add(caught.value.message.replace("GET", "POST"))
    (message,) = messages
    assert message.isprintable()
    assert message.startswith("the webhook at 127.0.0.1 ")
    assert SECRET not in message
    return message.removeprefix("the webhook at 127.0.0.1 ")


# What is sent


async def test_the_maintenance_is_posted_as_the_control_api_shows_it(
    webhook: Webhook, service: OperatorService
) -> None:
    await webhook.execute(MAINTENANCE, NOW)
    (asked,) = service.asked
    assert (asked.method, asked.target) == ("POST", "/maintenances")
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["idempotency-key"] == "k3m9"
    shown = json.loads(asked.body)
    assert shown == describe_maintenance(MAINTENANCE)
    assert (shown["id"], shown["type"], shown["vms"]) == ("k3m9", "Freeze", ["web-0", "web-1"])


async def test_every_request_is_signed_so_that_it_cannot_be_made_another(
    webhook: Webhook, service: OperatorService
) -> None:
    before_s = int(time.time())  # noqa: TID251 - before and after, not how long
    await webhook.execute(MAINTENANCE, NOW)
    await webhook.observe(MAINTENANCE, NOW)
    await webhook.abort(MAINTENANCE, NOW)
    signed = [asked.body or f"{asked.method} {asked.target}".encode() for asked in service.asked]
    assert signed[1:] == [b"GET /maintenances/k3m9", b"DELETE /maintenances/k3m9"]
    for asked, text in zip(service.asked, signed, strict=True):
        match = re.fullmatch(r"t=(\d+),v1=([0-9a-f]{64})", asked.headers[SIGNATURE.lower()])
        assert match is not None
        assert before_s <= int(match[1]) <= time.time()  # noqa: TID251 - as above
        expected = hmac.new(SECRET.encode(), f"{match[1]}.".encode() + text, hashlib.sha256).hexdigest()
        assert match[2] == expected


def test_a_signature_is_what_the_documentation_says() -> None:
    digest = hmac.new(b"key", b'1700000000.{"id": 1}', "sha256").hexdigest()
    assert sign_request(b"key", b'{"id": 1}', 1_700_000_000) == f"t=1700000000,v1={digest}"


@pytest.mark.parametrize(
    ("path", "id_", "target"),
    [
        ("/m", "k3m9", "/m/k3m9"),
        ("/m/", "k3m9", "/m/k3m9"),
        ("/m?tenant=a%20b", "k3m9", "/m/k3m9?tenant=a%20b"),
        ("", "k3m9", "/k3m9"),
        ("/m", "../a/b?c#d é%", "/m/..%2Fa%2Fb%3Fc%23d%20%C3%A9%25"),
    ],
)
async def test_an_id_becomes_a_part_of_the_path_and_nothing_else(
    service: OperatorService, path: str, id_: str, target: str
) -> None:
    webhook = Webhook(service.url.removesuffix("/maintenances") + path, SECRET)
    assert await webhook.observe(started("web-0", id=id_), NOW) is None
    await webhook.execute(started("web-0", id=id_), NOW)
    await webhook.close()
    assert service.asked[0].target == target
    assert service.asked[1].target == (path or "/")


async def test_no_proxy_of_the_environment_is_asked(
    webhook: Webhook, service: OperatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert not (await webhook.execute(MAINTENANCE, NOW)).is_complete
    assert len(service.asked) == 1


async def test_many_at_once_are_each_asked_about(service: OperatorService) -> None:
    webhook = Webhook(service.url, SECRET)  # with the deadline that it has by itself: a machine may be busy
    many = [started("web-0", id=f"m{number}") for number in range(100)]
    await asyncio.gather(*(webhook.execute(one, NOW) for one in many))
    await webhook.close()
    assert set(service.begun.values()) == {1}
    assert len(service.begun) == 100


# What is answered


ANSWERS: list[tuple[int, dict[str, Any] | None, Progress]] = [
    (202, None, Progress(check_at=NOW + timedelta(seconds=5))),
    (202, {"nonsense": True}, Progress(check_at=NOW + timedelta(seconds=5))),
    (200, {"state": "running"}, Progress(check_at=NOW + timedelta(seconds=5))),
    (200, {"state": "running", "check_after_s": 0}, Progress(check_at=NOW)),
    (
        201,
        {"state": "running", "check_after_s": 2.5, "impacted": True, "impact_s": 1},
        Progress(check_at=NOW + timedelta(seconds=2.5), is_impacted=True),
    ),
    (200, {"state": "running", "check_after_s": 1e300}, Progress(check_at=NOW + timedelta(days=1))),
    (200, {"state": "completed"}, Progress(is_impacted=True, is_complete=True)),
    (
        201,
        {"state": "completed", "impacted": True, "impact_s": 4.2, "reason": "", "else": [1, {}]},
        Progress(is_impacted=True, is_complete=True, impact_s=4.2),
    ),
    (200, {"state": "completed", "impacted": False}, Progress(is_complete=True)),
]


@pytest.mark.parametrize(("status", "body", "expected"), ANSWERS)
async def test_an_answer_means_what_was_agreed(
    webhook: Webhook, service: OperatorService, status: int, body: dict[str, Any] | None, expected: Progress
) -> None:
    service.script = always(answer(status, body))
    assert await webhook.execute(MAINTENANCE, NOW) == expected
    assert await webhook.observe(MAINTENANCE, NOW) == expected


async def test_404_says_that_nothing_was_begun_but_not_to_a_post(webhook: Webhook, service: OperatorService) -> None:
    service.script = always(answer(404))
    assert await webhook.observe(MAINTENANCE, NOW) is None
    with pytest.raises(ActuatorError, match="answered 404; expected 200, 201 or 202"):
        await webhook.execute(MAINTENANCE, NOW)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"state": "failed", "reason": "no capacity\non host-2"}, "failed: no capacity on host-2"),
        ({"state": "failed"}, "failed: no reason given"),
        ({"state": "failed", "reason": "\x1b[2J\u202e"}, "failed: [2J"),
        ({"state": "unknown", "reason": "asleep"}, "reports an unknown state: asleep"),
        ({"state": "unknown"}, "reports an unknown state: no reason given"),
    ],
)
async def test_a_failure_comes_with_its_reason_in_a_line(
    webhook: Webhook, service: OperatorService, body: dict[str, Any], reason: str
) -> None:
    service.script = always(answer(200, body))
    assert await refusal(webhook) == reason


async def test_a_long_reason_is_cut(webhook: Webhook, service: OperatorService) -> None:
    service.script = always(answer(200, {"state": "failed", "reason": "x" * 900}))
    assert await refusal(webhook) == f"failed: {'x' * (REASON_LENGTH_MAX - 1)}…"


NONSENSE = [
    (answer(200, b"<html>welcome</html>"), "with an invalid body"),
    (answer(200, b""), "with an invalid body"),
    (answer(200, b"\xff\xfe\x00"), "with an invalid body"),
    (answer(200, b"[" * 900), "with an invalid body"),
    (answer(200, [{"state": "completed"}]), "with an invalid body"),
    (answer(200, {"status": "completed"}), "with an invalid body: state: Field required"),
    (answer(200, {"state": "Completed"}), "with an invalid body: state"),
    (answer(200, {"state": "running", "check_after_s": "soon"}), "with an invalid body: check_after_s"),
    (answer(200, {"state": "running", "check_after_s": -1}), "with an invalid body: check_after_s"),
    (answer(200, b'{"state": "running", "check_after_s": NaN}'), "with an invalid body: check_after_s"),
    (answer(200, b'{"state": "completed", "impact_s": 1e999}'), "with an invalid body: impact_s"),
    (answer(200, {"state": "completed", "impacted": "yes"}), "with an invalid body: impacted"),
    (answer(200, {"state": "failed", "reason": ["a"]}), "with an invalid body: reason"),
    (answer(204), "answered 204; expected 200, 201 or 202"),
    (answer(302, headers="Location: /elsewhere\r\n"), "answered 302; expected"),
    (answer(307, headers="Location: /elsewhere\r\n"), "answered 307; expected"),
    (answer(401, {"state": "completed"}), "answered 401; expected"),
    (answer(503, b"x" * 900), "answered 503; expected"),
    (answer(200, b"x" * 1001), "answered with more than 1000 bytes"),
    (answer(500, b"x" * 5_000_000), "answered with more than 1000 bytes"),
    (answer(200, b"\x1f\x8b\x08\x00", headers="Content-Encoding: gzip\r\n"), "with an invalid body"),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b"x" * 1024 + b"\r\n",
        "answered with more",
    ),
    (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "did not answer"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n", "did not answer"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000 + b"\r\n\r\n", "did not answer"),
]


@pytest.mark.parametrize(("reply", "words"), NONSENSE, ids=[f"{n}: {w}" for n, (_, w) in enumerate(NONSENSE)])
async def test_anything_else_is_an_error_in_one_line(
    webhook: Webhook, service: OperatorService, reply: bytes, words: str
) -> None:
    service.script = always(reply)
    assert words in await refusal(webhook)
    assert {asked.target for asked in service.asked} <= {"/maintenances", "/maintenances/k3m9"}


@pytest.mark.parametrize(
    "part",
    [HANG, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", DRIP],
    ids=["hangs", "comes half", "comes drop by drop"],
)
async def test_an_answer_that_does_not_come_is_not_waited_for(service: OperatorService, part: bytes) -> None:
    webhook = Webhook(service.url, SECRET, deadline=timedelta(milliseconds=200))
    service.script = always(part)
    assert await refusal(webhook) == "did not fully answer POST within 0.2 s"
    await webhook.close()


async def test_nobody_there_is_said() -> None:
    webhook = Webhook("http://127.0.0.1:1", SECRET)
    assert (await refusal(webhook)).startswith("did not answer POST: ")
    await webhook.close()


async def test_a_service_that_comes_back_is_asked_again_over_a_new_connection(
    webhook: Webhook, service: OperatorService
) -> None:
    service.script = always(b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n")
    await refusal(webhook)
    service.script = None
    assert await webhook.observe(MAINTENANCE, NOW) is None
    await webhook.execute(MAINTENANCE, NOW)
    assert service.begun == {"k3m9": 1}


# Stopping


@pytest.mark.parametrize("status", [200, 202, 204, 404])
async def test_an_abort_is_a_delete(webhook: Webhook, service: OperatorService, status: int) -> None:
    service.script = always(answer(status))
    await webhook.abort(MAINTENANCE, NOW)
    assert [(asked.method, asked.target) for asked in service.asked] == [("DELETE", "/maintenances/k3m9")]


@pytest.mark.parametrize("status", [301, 405, 409, 500])
async def test_an_abort_that_is_refused_is_said(webhook: Webhook, service: OperatorService, status: int) -> None:
    service.script = always(answer(status))
    with pytest.raises(ActuatorError, match=f"answered {status} to DELETE"):
        await webhook.abort(MAINTENANCE, NOW)


# Checking and configuring


async def test_a_check_notices_a_wrong_secret(webhook: Webhook, service: OperatorService) -> None:
    await webhook.check()
    service.script = always(answer(401))
    with pytest.raises(ActuatorError, match="answered 401"):
        await webhook.check()


@pytest.mark.parametrize("url", ["", "example.org/hook", "ftp://example.org/", "http://", "http://[::1/", "file:///x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="webhook_url"):
        Webhook(url, SECRET)


def test_without_a_secret_nothing_is_signed_so_there_has_to_be_one() -> None:
    with pytest.raises(ConfigError, match="webhook_secret_file"):
        Webhook("https://example.org/", "")


def test_a_plan_tells_where_it_goes_but_no_password() -> None:
    (line,) = Webhook("https://me:password@example.org/hook?token=x", SECRET).plan(MAINTENANCE)
    assert line == "POST maintenance k3m9 of web-0, web-1 to https://example.org/hook"
