"""The receiver of the how-to page: a real mail server and a real chat hook hear of what happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiosmtpd.controller import Controller

from forewarn.notifications.message_headers import sign_headers
from tests.support.documents import ROOT
from tests.support.ports import reserve_port
from tests.support.receiver import receiver
from tests.support.service import Running, Vm, eventually
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "examples/notify_apprise.py"


class Mails:
    """Keeps every mail."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802, ANN401 - aiosmtpd's
        self.got.append(message_from_bytes(envelope.content))
        return "250 OK"


@contextmanager
def mail_server() -> Iterator[tuple[Mails, int]]:
    mails = Mails()
    controller = Controller(mails, hostname="127.0.0.1", port=reserve_port())  # it looks for itself at this very port
    controller.start()
    try:
        yield mails, controller.port
    finally:
        controller.stop()


@contextmanager
def handing_over(secret: str, *targets: str, port: int = 0) -> Iterator[str]:
    """The example, as a process; hands back its URL."""
    command = [sys.executable, str(EXAMPLE), f"127.0.0.1:{port}", *targets]
    environment = os.environ | {"FOREWARN_SECRET": secret}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as it:
        try:
            assert it.stdout is not None
            yield f"http://{it.stdout.readline().removeprefix('listening on ').strip()}/"
        finally:
            it.terminate()


def test_mail_and_chat_are_told(service: Running, api: httpx.Client, vm: Vm) -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}/"
    made = api.post("/v1/subscriptions", json={"name": "people", "url": url, "vms": [vm.name]}).json()
    with mail_server() as (mails, mail_port), receiver(lambda _got: 200) as chat:
        targets = [
            f"mailto://127.0.0.1:{mail_port}/?from=forewarn@cloud.example&to=ops@cloud.example",
            f"json://127.0.0.1:{chat.port}/hook",
        ]
        with handing_over(made["secret"], *targets, port=port):
            assert api.post("/v1/subscriptions/people/test").json()["delivered"]
            service.schedule(vm)
            assert eventually(lambda: len(mails.got) == 2 and len(chat.got) == 2)
    assert [mail["To"] for mail in mails.got] == ["ops@cloud.example"] * 2
    assert f"Freeze of {vm.name}: scheduled" in str(mails.got[1]["Subject"])
    assert f"Freeze of {vm.name}: scheduled" in json.loads(chat.got[1].body)["title"]
    api.delete("/v1/subscriptions/people")


def test_a_repetition_is_passed_on_once_and_a_stranger_never() -> None:
    secret = "whsec_c2VjcmV0"
    with receiver(lambda _got: 200) as chat, handing_over(secret, f"json://127.0.0.1:{chat.port}/hook") as url:
        _post_signed(url, secret)
        assert len(chat.got) == 1


def _post_signed(url: str, secret: str) -> None:
    """As Forewarn would; twice, and once by somebody who does not know the secret."""
    event = {
        "id": "7-E",
        "type": "dev.forewarn.event.scheduled.v1",
        "subject": "E",
        "time": "2026-11-21T10:00:00Z",
        "data": {
            "event": {"type": "Freeze", "resources": ["db"], "not_before": "2026-11-21T10:15:00Z"},
            "maintenance": {"description": "Host server is undergoing maintenance."},
            "reason": None,
        },
    }
    body = json.dumps(event).encode()
    headers = sign_headers([secret], "7-E", datetime.now(UTC), body)  # noqa: TID251 - what it is sent to reads the machine's clock
    with httpx.Client(trust_env=False, timeout=GUARD_S) as client:
        assert [client.post(url, content=body, headers=headers).status_code for _ in range(2)] == [204, 204]
        foreign = sign_headers(["whsec_Zm9yZWlnbg=="], "7-E", datetime.now(UTC), body)  # noqa: TID251 - what it is sent to reads the machine's clock
        assert client.post(url, content=body, headers=foreign).status_code == 401


def test_a_notification_that_cannot_be_passed_on_is_answered_500(tmp_path: Path) -> None:
    secret = "whsec_c2VjcmV0"
    with receiver(lambda _got: 500) as chat, handing_over(secret, f"json://127.0.0.1:{chat.port}/hook") as url:
        event = {"id": "p", "type": "dev.forewarn.ping.v1", "subject": "chat", "time": "", "data": {}}
        body = json.dumps(event).encode()
        headers = sign_headers([secret], "p", datetime.now(UTC), body)  # noqa: TID251 - what it is sent to reads the machine's clock
        answer = httpx.post(url, content=body, headers=headers, timeout=GUARD_S)
        assert answer.status_code == 500
