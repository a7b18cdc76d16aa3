"""HTTP routes of the agent's own address: health, metrics, status, and commands of operators.

Health, drain state and metrics need no token. All other routes need the token that is kept beside the state file,
readable by its owner only.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any

import msgspec

from forewarn.agent.agent import Agent
from forewarn.agent.codec import encode
from forewarn.agent.listener import Incoming, Reply
from forewarn.agent.metrics import phase
from forewarn.agent.record import Record
from forewarn.errors import ForewarnError, InvalidRequest, NotFound, Unauthorized

__all__ = ["Web", "describe"]

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


class Web:
    """The routes.

    Args:
        agent: Agent to serve.
        token: Token that operators must send.
    """

    def __init__(self, agent: Agent, token: str) -> None:
        self._agent = agent
        self._token = token
        self._open: dict[str, Callable[[], Reply]] = {
            "/healthz": lambda: _text("ok"),
            "/readyz": self._ready,
            "/drainz": self._drain,
            "/metrics": lambda: Reply(body=agent.metrics.render(), content_type=_METRICS_TYPE),
        }
        self._told: dict[str, Callable[[str | None], list[str]]] = {
            "/approve": agent.approve_by_hand,
            "/recover": agent.recover_again,
            "/retry": agent.retry,
        }

    async def answer(self, incoming: Incoming) -> Reply:
        """Answer one request."""
        try:
            return self._answer(incoming)
        except ForewarnError as error:
            content = {"error": {"code": error.code, "message": error.message}}
            return Reply(status=error.status, body=encode(content), content_type=_JSON)

    def _answer(self, incoming: Incoming) -> Reply:
        path = incoming.path.rstrip("/") or "/"
        if path in self._open:
            return self._open[path]() if incoming.method in {"GET", "HEAD"} else _not_allowed("GET, HEAD")
        if path == "/status":
            self._authorize(incoming)
            return _json(describe(self._agent)) if incoming.method == "GET" else _not_allowed("GET")
        if path in self._told:
            self._authorize(incoming)
            if incoming.method != "POST":
                return _not_allowed("POST")
            return _json({"event_ids": self._told[path](_event_id(incoming.body))})
        msg = f"no such path: {', '.join([*self._open, '/status', *self._told])}"
        raise NotFound(msg)

    def _authorize(self, incoming: Incoming) -> None:
        scheme, _, token = incoming.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            msg = "the agent's token is needed: run the command as the user who runs the agent"
            raise Unauthorized(msg)

    def _ready(self) -> Reply:
        agent = self._agent
        if agent.is_ready and agent.vm:
            return _text("ready")
        reason = agent.last_error or ("the VM's name is not known yet" if agent.is_ready else "no answer yet")
        return _text(f"not ready: {reason}", HTTPStatus.SERVICE_UNAVAILABLE)

    def _drain(self) -> Reply:
        draining = [record.event for record in self._agent.records if record.rule.drains]
        if not draining:
            return _text("in service")
        types = ", ".join(f"{event.type} {event.id}" for event in draining)
        return _text(f"out of service: {types}", HTTPStatus.SERVICE_UNAVAILABLE)


def describe(agent: Agent) -> dict[str, Any]:
    """Return the full status of the agent, as `forewarn agent status --json` prints it."""
    return {
        "vm": agent.vm,
        "endpoint": agent.configuration.endpoint,
        "ready": agent.is_ready,
        "drained": agent.is_drained,
        "dry_run": agent.configuration.dry_run,
        "last_answer_at": agent.last_answer_at,
        "last_error": agent.last_error or None,
        "config_error": agent.config_error or None,
        "waits_for_restart": agent.waiting_keys,
        "now": agent.now(),
        "events": [_describe_record(record, agent) for record in agent.records],
        "finished": [msgspec.to_builtins(item) for item in reversed(agent.finished)],
    }


def _describe_record(record: Record, agent: Agent) -> dict[str, Any]:
    return {
        "event": record.event,
        "affects_this_vm": record.event.affects(agent.vm),
        "rule": record.rule.name,
        "state": phase(record),
        "why": agent.why(record.event.id),
        "seen_at": record.seen_at,
        "prepared_at": record.ready_at if record.rule.has_preparation else None,
        "approved_at": record.approved_at,
        "started_at": record.started_at,
        "gone_at": record.gone_at,
        "notice_left_s": _notice_left_s(record, agent.now()),
        "steps": {step.value: run for step, run in record.runs.items()},
    }


def _notice_left_s(record: Record, now: datetime) -> float | None:
    not_before = record.event.not_before
    return None if not_before is None or record.started_at is not None else (not_before - now).total_seconds()


def _event_id(body: bytes) -> str | None:
    """Return the id of the event that an operator means; None for all."""
    if not body.strip():
        return None
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = None
    event_id = content.get("event_id") if isinstance(content, dict) else ""
    if event_id is not None and not (isinstance(event_id, str) and event_id):
        msg = 'the body is expected to be empty or {"event_id": "..."}'
        raise InvalidRequest(msg)
    return event_id


def _json(content: object) -> Reply:
    return Reply(body=encode(content), content_type=_JSON)


def _text(text: str, status: int = HTTPStatus.OK) -> Reply:
    return Reply(status=status, body=f"{text}\n".encode())


def _not_allowed(methods: str) -> Reply:
    return Reply(status=HTTPStatus.METHOD_NOT_ALLOWED, body=b"method not allowed\n", headers={"allow": methods})
