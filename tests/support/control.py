"""An operator's side of the control API."""

from __future__ import annotations

from typing import Any

import httpx

__all__ = ["entries", "error"]


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The one shape that every error has (checked), and what stands in it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    body: dict[str, Any] = response.json()["error"]
    assert set(body) == {"code", "message", "details"}
    assert body["code"] == code
    assert isinstance(body["message"], str)
    assert isinstance(body["details"], dict)
    assert "\n" not in body["message"]
    return body


def entries(api: httpx.Client) -> list[dict[str, Any]]:
    """Return the newest ten audit log entries, oldest first, but no refused calls: they are written later."""
    items: list[dict[str, Any]] = api.get("/v1/audit-log", params={"newest": True, "limit": 100}).json()["items"]
    return [entry for entry in items if entry["kind"] != "refused"][-10:]
