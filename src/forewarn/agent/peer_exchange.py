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

from forewarn.agent.agreement import PeerReport, PeerState, TogetherSettings
from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.listener import Listener, ListenerReply, ListenerRequest
from forewarn.agent.peer import Peer
from forewarn.agent.record import ApprovalState, EventRecord
from forewarn.agent.signing import SIGNATURE, InvalidMessage, MessageSigner, PeerQuery, PeerResponse
from forewarn.client.exchange import HttpRequest
from forewarn.client.transport import AsyncHttpTransport, AsyncTransport
from forewarn.errors import ConfigError, EndpointUnreachable

__all__ = ["PATH", "LocalAgent", "PeerExchange", "read_secret"]

_log = logging.getLogger("forewarn.agent")

PATH = "/v1/standing"
"""Path of questions."""

_ASK_EVERY_S = 1.0
_ASK_GAP_S = 0.05
"""Minimum pause between two questions to the same peer, however often it announces news."""

# These two limits are together 2 s, the maximum age of an answer that is believed (ADR 11).
_CONNECT_S = 1.0
_ANSWER_S = 1.0
_REFUSAL_S = 0.2
"""Delay of a refusal to a sender without the secret, so that it cannot keep this agent busy."""

_COMPLAIN_EVERY_S = 60.0
_SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 4096
_OTHERS_MAY = 0o077


class LocalAgent(Protocol):
    """The agent, as far as its peers are concerned."""

    listeners: list[Callable[[], None]]

    @property
    def vm(self) -> str:
        """This VM's name; empty until it is known."""

    @property
    def records(self) -> Sequence[EventRecord]:
        """Events on which work is left."""

    def now(self) -> datetime:
        """Return the current time."""

    def get_reported_states(self) -> dict[str, PeerState]:
        """Return the states that this VM reports to its peers, by event."""

    def wake(self) -> None:
        """Request a new round of judging."""


def read_secret(path: Path) -> bytes:
    """Return the secret that all agents of a group share, without surrounding white space.

    Raises:
        ConfigError: It cannot be read, is readable by others on this machine, or has the wrong length.
    """
    try:
        with path.open("rb") as file:
            # The mode of the open file: the path may be replaced between a check and the reading.
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(_SECRET_BYTES_MAX + 1).strip()
    except OSError as error:
        raise ConfigError(f"cannot read the peers' secret {path}: {error.strerror}") from error
    if sys.platform != "win32" and mode & _OTHERS_MAY:
        raise ConfigError(f"the peers' secret {path} is accessible to other users: run chmod 600 {path}")
    if not _SECRET_BYTES_MIN <= len(secret) <= _SECRET_BYTES_MAX:
        msg = f"the peers' secret {path} has {len(secret)} bytes, expected {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX}"
        raise ConfigError(msg)
    return secret


@dataclass(slots=True)
class _PeerConnection:
    """Connection to one peer.

    Attributes:
        wake: Set when the peer should be asked at once.
        failures: Number of consecutive failures.
    """

    peer: Peer
    transport: AsyncTransport
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0


class PeerExchange:
    """Exchange with the peers of one agent: asks them and answers them; the agent's `PeerReports`.

    Args:
        together: Settings with the addresses.
        secret: Secret that all agents share.
        is_mute: True to never report this VM's state, as in a dry run.
        connect: Function that returns the transport to the peer at a URL.
        make_nonce: Function that returns a new nonce.

    Raises:
        ConfigError: An address is invalid.
    """

    def __init__(
        self,
        together: TogetherSettings,
        secret: bytes,
        *,
        is_mute: bool = False,
        connect: Callable[[str], AsyncTransport] = lambda url: AsyncHttpTransport(url, connect_timeout_s=_CONNECT_S),
        # 128 random bits never repeat, not even after a restart, so no recorded answer fits a later query (ADR 11).
        make_nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._signer = MessageSigner(secret)
        self._is_mute = is_mute
        self._make_nonce = make_nonce
        self._connections = {name: _PeerConnection(Peer(name), connect(url)) for name, url in together.peers.items()}
        self._listener = Listener(together.listen, self.answer_request)
        self._agent: LocalAgent | None = None
        self._states: dict[str, PeerState] | None = None
        self._version = ""
        self._unknown_vms: set[tuple[str, str]] = set()
        self._log_limits: dict[str, tuple[float, int]] = {}

    @property
    def url(self) -> str:
        """URL at which it answers, once open."""
        return self._listener.url

    def get_reports(self, event_id: str) -> Mapping[str, PeerReport]:
        """Return each peer's latest report on that event; `agreement.UNASKED` for one that has not been asked yet."""
        # All VMs may use the same file, in which `peers` includes this VM.
        words = {name: line.peer.get_report(event_id) for name, line in self._connections.items() if name != self._vm}
        return {name: report for name, report in words.items() if report is not None}

    # Life cycle

    async def open(self, agent: LocalAgent) -> None:
        """Begin to answer for that agent.

        Raises:
            ConfigError: The address cannot be used.
        """
        self._agent = agent
        agent.listeners.append(self.publish_states)
        await self._listener.open()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            for line in self._connections.values():
                group.create_task(self._keep_querying(line))

    async def close(self) -> None:
        """Stop answering, and close all connections."""
        await self._listener.close()
        for line in self._connections.values():
            await line.transport.close()

    def publish_states(self) -> None:
        """Publish the agent's current states. They are saved already: no crash can take back what peers are sent."""
        assert self._agent is not None  # noqa: S101 - open() was called
        standings = self._agent.get_reported_states()
        # This runs after each judging, most of which change nothing.
        if standings == self._states:
            return
        self._states = standings
        # A hash rather than a counter: it needs no storage, and after a restart equal states have the same version.
        self._version = hashlib.sha256(encode_json(sorted(standings.items()))).hexdigest()[:16]
        self._warn_of_unknown_vms()
        for line in self._connections.values():
            line.peer.forget_all_but(standings)
            # A query also announces news: it carries our version, and a peer that sees a new one asks back.
            line.wake.set()

    @property
    def _vm(self) -> str:
        return "" if self._agent is None else self._agent.vm

    def _warn_of_unknown_vms(self) -> None:
        """Warn of VMs that cannot be asked, once for each event."""
        strangers = {
            (record.event.id, name)
            for record in self._list_open_records()
            for name in record.event.resources
            if name not in self._connections and name != self._vm
        }
        for event_id, name in sorted(strangers - self._unknown_vms):
            _log.warning("event %s: %s is not in together.peers and cannot be asked", event_id, name)
        self._unknown_vms = strangers

    def _list_open_records(self) -> list[EventRecord]:
        """Return the events on which this VM reports to its peers."""
        records = () if self._agent is None else self._agent.records
        return [record for record in records if record.event.key in (self._states or {})]

    # Asking

    async def _keep_querying(self, connection: _PeerConnection) -> None:
        """Ask one peer for as long as there is something to ask."""
        while True:
            # Cleared before the events are chosen, so that news in between cause another round.
            connection.wake.clear()
            event_ids = connection.peer.choose_events(self._list_open_event_ids(connection.peer.name))
            if event_ids:
                await self._query_peer(connection, event_ids)
                await asyncio.sleep(_ASK_GAP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_EVERY_S if event_ids else None):
                    await connection.wake.wait()

    def _list_open_event_ids(self, name: str) -> list[str]:
        """Return the events that name that peer and for which its report may still matter."""
        return [
            record.event.key
            for record in self._list_open_records()
            if record.approval is not ApprovalState.ACCEPTED and record.event.affects(name) and name != self._vm
        ]

    async def _query_peer(self, connection: _PeerConnection, event_ids: tuple[str, ...]) -> None:
        """Ask once, and record the answer or its absence."""
        assert self._agent is not None  # noqa: S101 - there are events
        changed: dict[str, PeerState] = {}
        try:
            response = await self._send_query(connection, event_ids)
        except _NoAnswer as silence:
            self._record_silence(connection, str(silence))
        except Exception as error:  # noqa: BLE001 - whatever a peer does, the others are asked, and the deadline holds
            _log.exception("peer %s: query failed unexpectedly", connection.peer.name)
            self._record_silence(connection, type(error).__name__)
        else:
            if connection.failures:
                _log.info("peer %s answers again", connection.peer.name)
                connection.failures = 0
            changed = connection.peer.record_answer(event_ids, response, self._agent.now())
        for event_id, state in changed.items():
            _log.info("event %s: peer %s reports: %s", event_id, connection.peer.name, state)
        # Even a failed first query ends the state UNASKED, which may allow the approval.
        if connection.peer.record_query(event_ids) or changed:
            self._agent.wake()

    async def _send_query(self, connection: _PeerConnection, event_ids: tuple[str, ...]) -> PeerResponse:
        """Send one question and return its answer.

        Raises:
            _NoAnswer: There was no answer that can be trusted.
        """
        question = PeerQuery(
            sender=self._vm,
            receiver=connection.peer.name,
            nonce=self._make_nonce(),
            version=self._version,
            events=event_ids,
        )
        body, signature = self._signer.sign_message(question)
        headers = {"Content-Type": "application/json", SIGNATURE: signature}
        request = HttpRequest(method="POST", path=PATH, headers=headers, body=body, timeout_s=_ANSWER_S)
        try:
            answer = await connection.transport.send(request)
        except EndpointUnreachable as error:
            # The rest of the message calls the peer a metadata endpoint.
            raise _NoAnswer(error.message.rpartition("does not answer: ")[2]) from error
        try:
            # Whatever the status is: refusals are signed too, and an unsigned answer says nothing about the peer.
            response = self._signer.verify_message(answer.body, answer.headers.get(SIGNATURE.lower(), ""), PeerResponse)
        except InvalidMessage as error:
            msg = f"it answered {answer.status}, but {error}; check that both use the same secret_file"
            raise _NoAnswer(msg) from error
        # A recorded answer to an earlier query also has a valid signature.
        if response.nonce != question.nonce:
            raise _NoAnswer("its answer belongs to another query")
        if response.refusal:
            raise _NoAnswer(response.refusal)
        return response

    def _record_silence(self, connection: _PeerConnection, reason: str) -> None:
        # The peer's latest report stays valid: silence is not a change of mind (ADR 11).
        connection.failures += 1
        if connection.failures & (connection.failures - 1) == 0:  # the first, second, fourth, eighth ... in a row
            _log.warning("no state from peer %s: %s (%d in a row)", connection.peer.name, reason, connection.failures)

    # Answering

    async def answer_request(self, incoming: ListenerRequest) -> ListenerReply:
        """Answer one request from any sender."""
        if incoming.path != PATH:
            return ListenerReply(status=HTTPStatus.NOT_FOUND, body=b"no such path\n")
        if incoming.method != "POST":
            return ListenerReply(
                status=HTTPStatus.METHOD_NOT_ALLOWED, body=b"method not allowed\n", headers={"allow": "POST"}
            )
        try:
            question = self._signer.verify_message(
                incoming.body, incoming.headers.get(SIGNATURE.lower(), ""), PeerQuery
            )
        except InvalidMessage as error:
            self._log_refusal(incoming.body, str(error))
            await asyncio.sleep(_REFUSAL_S)
            return ListenerReply(
                status=HTTPStatus.UNAUTHORIZED, body=f"{error}\n".encode(), headers={"connection": "close"}
            )
        return self._answer_query(question)

    def _answer_query(self, question: PeerQuery) -> ListenerReply:
        """Answer a sender that knows the secret."""
        status, refusal = self._find_refusal(question)
        standings: dict[str, PeerState] = {}
        if not refusal:
            line = self._connections[question.sender]
            # A new version means that the sender has news: ask it back at once.
            # A query that was recorded and sent again can cause no more than this, at most every `_ASK_GAP_S`.
            if question.version != line.peer.version:
                line.wake.set()
            # In a dry run nothing is prepared, so this VM must not report that it is.
            states = {} if self._is_mute or self._states is None else self._states
            standings = {event_id: states[event_id] for event_id in question.events if event_id in states}
        response = PeerResponse(nonce=question.nonce, version=self._version, standings=standings, refusal=refusal)
        body, signature = self._signer.sign_message(response)
        return ListenerReply(status=status, body=body, content_type="application/json", headers={SIGNATURE: signature})

    def _find_refusal(self, question: PeerQuery) -> tuple[HTTPStatus, str]:
        """Return the status and the reason why a question is refused; the reason is empty if it is answered."""
        if not self._vm or self._states is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, "it has only just started"
        # The query may have been redirected, and another VM's state must not pass for the state of the VM asked.
        if question.receiver != self._vm:
            return HTTPStatus.MISDIRECTED_REQUEST, f"it is {self._vm}, not {question.receiver}; check together.peers"
        if question.sender not in self._connections:
            return HTTPStatus.FORBIDDEN, f"{question.sender} is not in together.peers of {self._vm}"
        return HTTPStatus.OK, ""

    def _log_refusal(self, body: bytes, reason: str) -> None:
        """Log that a sender does not know the secret, at most once a minute for each claimed name."""
        try:
            claimed = decode_json(body, PeerQuery).sender
        except (msgspec.DecodeError, ValueError):
            claimed = ""
        # Not verified, so it only selects a log limit. Unknown names share one, or they would fill the memory.
        name = claimed if claimed in self._connections else "an unknown sender"
        now_s = asyncio.get_running_loop().time()
        again_s, unsaid = self._log_limits.get(name, (0.0, 0))
        if now_s < again_s:
            self._log_limits[name] = (again_s, unsaid + 1)
            return
        self._log_limits[name] = (now_s + _COMPLAIN_EVERY_S, 0)
        _log.warning(
            "refused a query that claims to come from %s: %s; check that both use the same secret_file (%d suppressed)",
            name,
            reason,
            unsaid,
        )


class _NoAnswer(Exception):
    """A peer did not report its state; the message is the reason."""
