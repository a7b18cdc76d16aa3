"""Posting to a real receiver: to the address that was looked at, and to no other."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from forewarn.net.outbound import OutboundClient, OutboundOptions, PostOutcome, Resolve
from tests.support.receiver import Receiver, receiver
from tests.support.world import NOW

pytestmark = pytest.mark.anyio


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def resolving(*answers: Sequence[str]) -> Resolve:
    """A name that leads elsewhere each time."""
    left = iter(answers)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return next(left)

    return resolve


async def post(poster: OutboundClient, url: str) -> PostOutcome:
    return await poster.post(url, b"{}", {"webhook-id": "1-E"}, NOW)


async def test_the_connection_is_made_to_the_address_that_was_looked_at(hook: Receiver) -> None:
    """No other look at the name is taken: it has no address at all."""
    poster = OutboundClient(
        OutboundOptions(), resolving(["127.0.0.1"], ["169.254.169.254"], ["::ffff:169.254.169.254"])
    )
    url = f"http://receiver.invalid:{hook.port}/hook"
    assert (await post(poster, url)).is_accepted
    for _ in range(2):
        answer = await post(poster, url)
        assert (answer.status, answer.error) == (
            None,
            "requests to receiver.invalid are not allowed: 169.254.169.254 is the address of a metadata service",
        )
    await poster.close()
    (got,) = hook.got
    assert got.headers["host"] == f"receiver.invalid:{hook.port}"


async def test_of_several_addresses_those_that_may_not_be_asked_are_left_out(hook: Receiver) -> None:
    poster = OutboundClient(OutboundOptions(), resolving(["169.254.169.254", "0.0.0.0", "127.0.0.1"]))
    assert (await post(poster, f"http://receiver.invalid:{hook.port}/hook")).is_accepted
    await poster.close()


async def test_the_next_address_is_tried_where_nobody_answers_at_one(hook: Receiver) -> None:
    poster = OutboundClient(OutboundOptions(), resolving(["127.0.0.2", "127.0.0.1"]))
    assert (await post(poster, f"http://receiver.invalid:{hook.port}/hook")).is_accepted
    await poster.close()


async def test_the_next_address_is_tried_in_time_where_one_takes_no_connections(hook: Receiver) -> None:
    with socket.create_server(("127.0.0.3", hook.port), backlog=0) as silent:
        waiting = []
        for _ in range(4):  # its queue is full from here on
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(silent.getsockname())
        poster = OutboundClient(OutboundOptions(deadline=timedelta(seconds=8)), resolving(["127.0.0.3", "127.0.0.1"]))
        answer = await post(poster, f"http://receiver.invalid:{hook.port}/hook")
        await poster.close()
        for each in waiting:
            each.close()
    assert answer.is_accepted


async def test_a_name_that_is_not_known_is_a_try_that_failed() -> None:
    poster = OutboundClient(OutboundOptions())
    answer = await post(poster, "https://receiver.invalid/")
    assert answer.error.startswith("cannot resolve receiver.invalid: ")
    await poster.close()


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe"])
async def test_an_address_written_in_another_way_is_the_same_address(host: str) -> None:
    poster = OutboundClient(OutboundOptions())
    assert "are not allowed" in (await post(poster, f"http://{host}/")).error
    await poster.close()


def certificate(folder: Path, name: str) -> Path:
    """One that a name may show, signed by itself; its key lies beside it."""
    path = folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(path.with_suffix(".key")), "-out", str(path), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*command, "-addext", f"subjectAltName=DNS:{name}"], check=True, capture_output=True)
    return path


async def test_the_certificate_has_to_be_that_of_the_name_though_an_address_is_asked(tmp_path: Path) -> None:
    shown = certificate(tmp_path, "receiver.invalid")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown, shown.with_suffix(".key"))
    with receiver(tls=context) as hook:
        for terms, name, words in (
            (OutboundOptions(ca_file=shown), "receiver.invalid", ""),
            (OutboundOptions(ca_file=shown), "another.invalid", "certificate verify failed: Hostname mismatch"),
            (OutboundOptions(), "receiver.invalid", "certificate verify failed: self-signed"),
        ):
            poster = OutboundClient(terms, resolving(["127.0.0.1"]))
            answer = await post(poster, f"https://{name}:{hook.port}/hook")
            assert (answer.is_accepted, words in answer.error) == (not words, True), answer.error
            await poster.close()
    assert len(hook.got) == 1
