"""The dashboard's pages over HTTP, as a browser asks for them."""

from __future__ import annotations

import html
import re

import httpx

from tests.support.service import Running
from tests.support.spans import GUARD_S

__all__ = ["HTML", "Browser", "text_of"]

HTML = "text/html; charset=utf-8"


class Browser(httpx.Client):
    """What a browser does: keeps cookies, follows redirects, says where a form comes from."""

    def __init__(self, service: Running) -> None:
        self.origin = service.service.control_url
        super().__init__(base_url=self.origin, follow_redirects=True, trust_env=False, timeout=GUARD_S)

    def send_form(self, path: str, **fields: str) -> httpx.Response:
        return self.post(path, data=fields, headers={"origin": self.origin, "sec-fetch-site": "same-origin"})


def text_of(answer: httpx.Response) -> str:
    """The words of a page."""
    assert answer.headers["content-type"] == HTML, answer.text
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))
