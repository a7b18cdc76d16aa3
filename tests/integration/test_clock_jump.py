"""A clock that has jumped shows everywhere, and is confirmed by an operator."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import structlog

from forewarn.core.access import Role
from forewarn.core.clock_jump import ClockJump
from tests.support.access import client_of, token_of
from tests.support.control import error
from tests.support.pages import Browser, text_of
from tests.support.service import eventually, running

JUMP = ClockJump(by=timedelta(minutes=20), at=datetime.fromisoformat("2030-01-01T00:20:00Z"))


def test_it_shows_until_an_operator_confirms_it(tmp_path: Path) -> None:
    with running(tmp_path) as service, service.operator() as api, Browser(service) as browser:
        guard = service.service.engine.clock.guard
        browser.send_form("/login", token=service.service.tokens.operator_token, next="/")
        assert "clock jumped" not in text_of(browser.get("/"))
        guard.jump, guard.jumps = JUMP, 1
        with structlog.testing.capture_logs():
            answer = api.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert answer.json()["clock"] == "the clock jumped 20m ahead, to 2030-01-01 00:20:00Z"
        assert api.get("/v1/clock").json()["jump_s"] == 1200
        metrics = api.get("/metrics").text
        assert "forewarn_clock_jump_seconds 1200.0" in metrics
        assert "forewarn_clock_jumps_total 1.0" in metrics
        assert "The clock jumped 20m ahead" in text_of(browser.get("/"))
        with client_of(service, token_of(service, Role.TENANT)) as tenant:
            error(tenant.post("/v1/clock/confirm"), 403, "forbidden")
        assert api.post("/v1/clock/confirm", json={"reason": "NTP was off"}).json()["jump_s"] is None
        error(api.post("/v1/clock/confirm"), 409, "conflict")
        assert api.get("/readyz").json() == {"status": "ready"}
        entries = api.get("/v1/audit-log", params={"kind": "clock-confirmed"}).json()["items"]
        assert [(e["actor"], e["reason"]) for e in entries] == [("operator:local", "NTP was off")]
        assert eventually(lambda: "clock jumped" not in text_of(browser.get("/")))
