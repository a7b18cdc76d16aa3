"""A client of the control API, which changes documents as an operator."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Operator"]


class Operator:
    """Sends changes to the control API, over one connection."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        token = (folder / "operator.token").read_text(encoding="utf-8").strip()
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)

    def again(self) -> Operator:
        """Return a copy with a separate connection, for another thread."""
        return Operator(self._url, self._folder)

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send one change, and return the answer."""
        self._connection.request("POST", path, json.dumps(content), self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status in {200, 201}, body
        found: dict[str, Any] = json.loads(body)
        return found
