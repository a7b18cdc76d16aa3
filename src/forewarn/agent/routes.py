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
from forewarn.agent.codec import encode_json
from forewarn.agent.listener import ListenerReply, ListenerRequest
from forewarn.agent.metrics import get_display_state
from forewarn.agent.record import EventRecord
from forewarn.errors import ForewarnError, InvalidRequest, NotFound, Unauthorized

__all__ = ["AgentRoutes", "describe_agent"]

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"


class AgentRoutes:
    """The routes.

    Args:
        agent: Agent to serve.
        token: Token that operators must send.
    """

    def __init__(self, agent: Agent, token: str) -> None:
        self._agent = agent
        self._token = token
        self._public_routes: dict[str, Callable[[], ListenerReply]] = {
            "/healthz": lambda: _build_text_reply("ok"),
            "/readyz": self._report_readiness,
            "/drainz": self._report_drain_state,
            "/metrics": self._report_metrics,
        }
        self._command_routes: dict[str, Callable[[str | None], list[str]]] = {
            "/approve": agent.approve_by_hand,
            "/recover": agent.retry_recovery,
            "/retry": agent.retry_failed_steps,
        }

    async def answer_request(self, incoming: ListenerRequest) -> ListenerReply:
        """Answer one request."""
        try:
            return self._route_request(incoming)
        except ForewarnError as error:
            content = {"error": {"code": error.code, "message": error.message}}
            return ListenerReply(status=error.status, body=encode_json(content), content_type=_JSON)

    def _route_request(self, incoming: ListenerRequest) -> ListenerReply:
        path = incoming.path.rstrip("/") or "/"
        if path in self._public_routes:
            return self._public_routes[path]() if incoming.method in {"GET", "HEAD"} else _refuse_method("GET, HEAD")
        if path == "/status":
            self._authorize(incoming)
            return _build_json_reply(describe_agent(self._agent)) if incoming.method == "GET" else _refuse_method("GET")
        if path in self._command_routes:
            self._authorize(incoming)
            if incoming.method != "POST":
                return _refuse_method("POST")
            return _build_json_reply({"event_ids": self._command_routes[path](_parse_event_id(incoming.body))})
        msg = f"no such path: expected one of {', '.join([*self._public_routes, '/status', *self._command_routes])}"
        raise NotFound(msg)

    def _authorize(self, incoming: ListenerRequest) -> None:
        scheme, _, token = incoming.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise Unauthorized("the agent's token is required: run the command as the user that the agent runs as")

    def _report_readiness(self) -> ListenerReply:
        agent = self._agent
        if agent.is_ready and agent.vm:
            return _build_text_reply("ready")
        reason = agent.last_error or ("the VM's name is not known yet" if agent.is_ready else "no answer yet")
        return _build_text_reply(f"not ready: {reason}", HTTPStatus.SERVICE_UNAVAILABLE)

    def _report_metrics(self) -> ListenerReply:
        # Prometheus's library loads a web server, two megabytes that an agent without scrapes can save.
        from forewarn.agent.exposition import render_metrics

        return ListenerReply(body=render_metrics(self._agent.metrics), content_type=_METRICS_TYPE)

    def _report_drain_state(self) -> ListenerReply:
        draining = [record.event for record in self._agent.records if record.rule.drains_vm]
        if not draining:
            return _build_text_reply("in service")
        types = ", ".join(f"{event.type} {event.id}" for event in draining)
        # Load balancers take every 5xx for "send no more work".
        return _build_text_reply(f"out of service: {types}", HTTPStatus.SERVICE_UNAVAILABLE)


def describe_agent(agent: Agent) -> dict[str, Any]:
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
        "waits_for_restart": agent.restart_keys,
        "now": agent.now(),
        "events": [_describe_record(record, agent) for record in agent.records],
        "finished": [msgspec.to_builtins(item) for item in reversed(agent.finished)],
    }


def _describe_record(record: EventRecord, agent: Agent) -> dict[str, Any]:
    return {
        "event": record.event,
        "affects_this_vm": record.event.affects(agent.vm),
        "rule": record.rule.name,
        "state": get_display_state(record),
        "why": agent.get_wait_reason(record.event.id),
        "seen_at": record.seen_at,
        "prepared_at": record.prepared_at if record.rule.has_preparation else None,
        "approved_at": record.approved_at,
        "started_at": record.started_at,
        "gone_at": record.gone_at,
        "notice_left_s": _compute_notice_left_s(record, agent.now()),
        "steps": {step.value: run for step, run in record.runs.items()},
    }


def _compute_notice_left_s(record: EventRecord, now: datetime) -> float | None:
    not_before = record.event.not_before
    return None if not_before is None or record.started_at is not None else (not_before - now).total_seconds()


def _parse_event_id(body: bytes) -> str | None:
    """Return the id of the event that an operator means; None for all."""
    if not body.strip():
        return None
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        content = None
    # An empty id is rejected below, like a body of any other form.
    event_id = content.get("event_id") if isinstance(content, dict) else ""
    if event_id is not None and not (isinstance(event_id, str) and event_id):
        raise InvalidRequest('expected an empty body or {"event_id": "..."}')
    return event_id


def _build_json_reply(content: object) -> ListenerReply:
    return ListenerReply(body=encode_json(content), content_type=_JSON)


def _build_text_reply(text: str, status: int = HTTPStatus.OK) -> ListenerReply:
    return ListenerReply(status=status, body=f"{text}\n".encode())


def _refuse_method(methods: str) -> ListenerReply:
    return ListenerReply(status=HTTPStatus.METHOD_NOT_ALLOWED, body=b"method not allowed\n", headers={"allow": methods})
