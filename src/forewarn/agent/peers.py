"""Exchange between the agents of one event's VMs: each asks the others, and trusts only answers to its own questions.

While there is an event that names this VM and others, each of the others is asked every second, all in parallel, so
that a peer that hangs delays no one. A question also shows if its sender has news; then the sender is asked back at
once. Without such an event, nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

import msgspec

from forewarn.agent.codec import decode, encode
from forewarn.agent.listener import Incoming, Listener, Reply
from forewarn.agent.peer import Peer
from forewarn.agent.record import Approval, Record
from forewarn.agent.seal import SIGNATURE, BrokenSeal, Question, Response, Seal
from forewarn.agent.together import PeerState, Report, Together
from forewarn.client.exchange import Request
from forewarn.client.transport import AsyncHttp, AsyncTransport
from forewarn.errors import ConfigError, EndpointUnreachable

__all__ = ["PATH", "Peers", "Speaker", "read_secret"]

_log = logging.getLogger("forewarn.agent")

PATH = "/v1/standing"
"""Path of questions."""

_ASK_EVERY_S = 1.0
_ASK_GAP_S = 0.05
"""Minimum pause between two questions to the same peer, however often it announces news."""

_CONNECT_S = 1.0
_ANSWER_S = 1.0
_REFUSAL_S = 0.2
"""Delay of a refusal to a sender without the secret, so that it cannot keep this agent busy."""

_COMPLAIN_EVERY_S = 60.0
_SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 4096
_OTHERS_MAY = 0o077


class Speaker(Protocol):
    """The agent, as far as its peers are concerned."""

    listeners: list[Callable[[], None]]

    @property
    def vm(self) -> str:
        """This VM's name; empty until it is known."""
        ...

    @property
    def records(self) -> Sequence[Record]:
        """Events on which work is left."""
        ...

    def now(self) -> datetime:
        """Return the current time."""
        ...

    def standings(self) -> dict[str, PeerState]:
        """Return the states that this VM reports to its peers, by event."""
        ...

    def wake(self) -> None:
        """Request a new round of judging."""
        ...


def read_secret(path: Path) -> bytes:
    """Return the secret that all agents of a group share, without surrounding white space.

    Raises:
        ConfigError: It cannot be read, is readable by others on this machine, or has the wrong length.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(_SECRET_BYTES_MAX + 1).strip()
    except OSError as error:
        msg = f"cannot read the peers' secret {path}: {error.strerror}"
        raise ConfigError(msg) from error
    if sys.platform != "win32" and mode & _OTHERS_MAY:
        msg = f"the peers' secret {path} is open to others than its owner: run chmod 600 {path}"
        raise ConfigError(msg)
    if not _SECRET_BYTES_MIN <= len(secret) <= _SECRET_BYTES_MAX:
        msg = f"the peers' secret {path} has {len(secret)} bytes, expected {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX}"
        raise ConfigError(msg)
    return secret


@dataclass(slots=True)
class _Line:
    """Connection to one peer.

    Attributes:
        wake: Set when the peer should be asked at once.
        failures: Number of consecutive failures.
    """

    peer: Peer
    transport: AsyncTransport
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0


class Peers:
    """Exchange with the peers of one agent: asks them and answers them; the agent's `Reports`.

    Args:
        together: Settings with the addresses.
        secret: Secret that all agents share.
        is_mute: True to never report this VM's state, as in a dry run.
        connect: Function that returns the transport to the peer at a URL.
        draw: Function that returns a new nonce.

    Attributes:
        refused: Number of questions from senders without the secret.

    Raises:
        ConfigError: An address is invalid.
    """

    def __init__(
        self,
        together: Together,
        secret: bytes,
        *,
        is_mute: bool = False,
        connect: Callable[[str], AsyncTransport] = lambda url: AsyncHttp(url, connect_timeout_s=_CONNECT_S),
        draw: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self.refused = 0
        self._seal = Seal(secret)
        self._is_mute = is_mute
        self._draw = draw
        self._lines = {name: _Line(Peer(name), connect(url)) for name, url in together.peers.items()}
        self._listener = Listener(together.listen, self.answer)
        self._speaker: Speaker | None = None
        self._standings: dict[str, PeerState] | None = None
        self._version = ""
        self._strangers: set[tuple[str, str]] = set()
        self._complaints: dict[str, tuple[float, int]] = {}

    @property
    def url(self) -> str:
        """URL at which it answers, once open."""
        return self._listener.url

    def of(self, event_id: str) -> Mapping[str, Report]:
        """Return each peer's latest report on that event; `together.UNASKED` for a peer that has not been asked yet."""
        words = {name: line.peer.report(event_id) for name, line in self._lines.items() if name != self._vm}
        return {name: report for name, report in words.items() if report is not None}

    # Life cycle

    async def open(self, speaker: Speaker) -> None:
        """Begin to answer for that agent.

        Raises:
            ConfigError: The address cannot be used.
        """
        self._speaker = speaker
        speaker.listeners.append(self.look)
        await self._listener.open()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            for line in self._lines.values():
                group.create_task(self._keep_asking(line))

    async def close(self) -> None:
        """Stop answering, and close all connections."""
        await self._listener.close()
        for line in self._lines.values():
            await line.transport.close()

    def look(self) -> None:
        """Publish the agent's current states. They are saved already: no crash can take back what peers are sent."""
        assert self._speaker is not None  # noqa: S101 - open() was called
        standings = self._speaker.standings()
        if standings == self._standings:
            return
        self._standings = standings
        self._version = hashlib.sha256(encode(sorted(standings.items()))).hexdigest()[:16]
        self._warn_of_strangers()
        for line in self._lines.values():
            line.peer.forget_all_but(standings)
            line.wake.set()

    @property
    def _vm(self) -> str:
        return "" if self._speaker is None else self._speaker.vm

    def _warn_of_strangers(self) -> None:
        """Warn of VMs that cannot be asked, once for each event."""
        strangers = {
            (record.event.id, name)
            for record in self._open_records()
            for name in record.event.resources
            if name not in self._lines and name != self._vm
        }
        for event_id, name in sorted(strangers - self._strangers):
            _log.warning("event %s: %s is not among together.peers, and cannot be waited for", event_id, name)
        self._strangers = strangers

    def _open_records(self) -> list[Record]:
        """Return the events on which this VM reports to its peers."""
        records = () if self._speaker is None else self._speaker.records
        return [record for record in records if record.event.key in (self._standings or {})]

    # Asking

    async def _keep_asking(self, line: _Line) -> None:
        """Ask one peer for as long as there is something to ask."""
        while True:
            line.wake.clear()
            event_ids = line.peer.choose(self._open_events(line.peer.name))
            if event_ids:
                await self._ask(line, event_ids)
                await asyncio.sleep(_ASK_GAP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_EVERY_S if event_ids else None):
                    await line.wake.wait()

    def _open_events(self, name: str) -> list[str]:
        """Return the events that name that peer and for which its report may still matter."""
        return [
            record.event.key
            for record in self._open_records()
            if record.approval is not Approval.ACCEPTED and record.event.affects(name) and name != self._vm
        ]

    async def _ask(self, line: _Line, event_ids: tuple[str, ...]) -> None:
        """Ask once, and record the answer or its absence."""
        assert self._speaker is not None  # noqa: S101 - there are events
        changed: dict[str, PeerState] = {}
        try:
            response = await self._exchange(line, event_ids)
        except _Unheard as silence:
            self._note_silence(line, str(silence))
        except Exception as error:  # noqa: BLE001 - whatever a peer does, the others are asked, and the deadline holds
            _log.exception("peer %s: asking it broke", line.peer.name)
            self._note_silence(line, type(error).__name__)
        else:
            if line.failures:
                _log.info("peer %s answers again", line.peer.name)
                line.failures = 0
            changed = line.peer.take(event_ids, response, self._speaker.now())
        for event_id, state in changed.items():
            _log.info("event %s: peer %s says: %s", event_id, line.peer.name, state)
        if line.peer.note_asked(event_ids) or changed:
            self._speaker.wake()

    async def _exchange(self, line: _Line, event_ids: tuple[str, ...]) -> Response:
        """Send one question and return its answer.

        Raises:
            _Unheard: There was no answer that can be trusted.
        """
        question = Question(
            sender=self._vm, receiver=line.peer.name, nonce=self._draw(), version=self._version, events=event_ids
        )
        body, signature = self._seal.close(question)
        headers = {"Content-Type": "application/json", SIGNATURE: signature}
        request = Request(method="POST", path=PATH, headers=headers, body=body, timeout_s=_ANSWER_S)
        try:
            answer = await line.transport.send(request)
        except EndpointUnreachable as error:
            raise _Unheard(error.message.rpartition("does not answer: ")[2]) from error
        try:
            response = self._seal.open(answer.body, answer.headers.get(SIGNATURE.lower(), ""), Response)
        except BrokenSeal as error:
            msg = f"it answered {answer.status}, but {error}: is secret_file the same on both?"
            raise _Unheard(msg) from error
        if response.nonce != question.nonce:
            msg = "its answer is to another question"
            raise _Unheard(msg)
        if response.refusal:
            raise _Unheard(response.refusal)
        return response

    def _note_silence(self, line: _Line, reason: str) -> None:
        line.failures += 1
        if line.failures & (line.failures - 1) == 0:  # the first, second, fourth, eighth ... in a row
            _log.warning("peer %s does not say how far it is: %s (%d in a row)", line.peer.name, reason, line.failures)

    # Answering

    async def answer(self, incoming: Incoming) -> Reply:
        """Answer one request from any sender."""
        if incoming.path != PATH:
            return Reply(status=HTTPStatus.NOT_FOUND, body=b"no such path\n")
        if incoming.method != "POST":
            return Reply(status=HTTPStatus.METHOD_NOT_ALLOWED, body=b"method not allowed\n", headers={"allow": "POST"})
        try:
            question = self._seal.open(incoming.body, incoming.headers.get(SIGNATURE.lower(), ""), Question)
        except BrokenSeal as error:
            self._complain(incoming.body, str(error))
            await asyncio.sleep(_REFUSAL_S)
            return Reply(status=HTTPStatus.UNAUTHORIZED, body=f"{error}\n".encode(), headers={"connection": "close"})
        return self._respond(question)

    def _respond(self, question: Question) -> Reply:
        """Answer a sender that knows the secret."""
        status, refusal = self._objection(question)
        standings: dict[str, PeerState] = {}
        if not refusal:
            line = self._lines[question.sender]
            # A new version means that the sender has news: ask it back at once.
            if question.version != line.peer.version:
                line.wake.set()
            told = {} if self._is_mute or self._standings is None else self._standings
            standings = {event_id: told[event_id] for event_id in question.events if event_id in told}
        response = Response(nonce=question.nonce, version=self._version, standings=standings, refusal=refusal)
        body, signature = self._seal.close(response)
        return Reply(status=status, body=body, content_type="application/json", headers={SIGNATURE: signature})

    def _objection(self, question: Question) -> tuple[HTTPStatus, str]:
        """Return the status and the reason why a question is refused; the reason is empty if it is answered."""
        if not self._vm or self._standings is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, "it has only just started"
        if question.receiver != self._vm:
            return HTTPStatus.MISDIRECTED_REQUEST, f"it is {self._vm}, not {question.receiver}: see together.peers"
        if question.sender not in self._lines:
            return HTTPStatus.FORBIDDEN, f"{question.sender} is not among the together.peers of {self._vm}"
        return HTTPStatus.OK, ""

    def _complain(self, body: bytes, reason: str) -> None:
        """Log that a sender does not know the secret, at most once a minute for each claimed name."""
        self.refused += 1
        try:
            claimed = decode(body, Question).sender
        except (msgspec.DecodeError, ValueError):
            claimed = ""
        name = claimed if claimed in self._lines else "an unknown sender"
        now_s = asyncio.get_running_loop().time()
        again_s, unsaid = self._complaints.get(name, (0.0, 0))
        if now_s < again_s:
            self._complaints[name] = (again_s, unsaid + 1)
            return
        self._complaints[name] = (now_s + _COMPLAIN_EVERY_S, 0)
        _log.warning(
            "a question that claims to come from %s was refused: %s; is secret_file the same on both? (%d more before)",
            name,
            reason,
            unsaid,
        )


class _Unheard(Exception):
    """A peer did not report its state; the message is the reason."""
