"""A receiver that passes Forewarn's notifications to mail, chat or another service that Apprise supports.

    FOREWARN_SECRET=whsec_… python notify_apprise.py 127.0.0.1:8090 mailto://… slack://…

It verifies the signature of each notification, and passes each one on only once. If Apprise fails, it answers 500, and
Forewarn sends the notification again later. It needs: pip install apprise standardwebhooks
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from apprise import Apprise, NotifyType
from standardwebhooks import Webhook, WebhookVerificationError

SIZE_BYTES_MAX = 1 << 20
REMEMBERED = 10_000
ALARMS = {"failed", "late", "unseen", "paused"}


class Receiver(HTTPServer):
    """Receives one notification at a time."""

    def __init__(self, address: tuple[str, int], secret: str, targets: list[str]) -> None:
        super().__init__(address, Handler)
        self.webhook = Webhook(secret)
        self.told: OrderedDict[str, None] = OrderedDict()
        self.apprise = Apprise()
        for target in targets:
            if not self.apprise.add(target):
                sys.exit(f"notify_apprise: Apprise does not know what to do with {target.partition(':')[0]}:…")

    def tell(self, event: dict[str, Any]) -> bool:
        """Pass a notification on, unless this was done before; return False if Apprise fails."""
        if event["id"] in self.told:
            return True
        title, body = words_of(event)
        kind = NotifyType.WARNING if event["type"].split(".")[-2] in ALARMS else NotifyType.INFO
        if not self.apprise.notify(title=title, body=body, notify_type=kind):
            return False
        self.told[event["id"]] = None
        if len(self.told) > REMEMBERED:
            self.told.popitem(last=False)
        return True


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    server: Receiver

    def do_POST(self) -> None:
        """Check a notification, and pass it on."""
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > SIZE_BYTES_MAX:
            self.answer(413)
            return
        body = self.rfile.read(int(length))
        try:
            self.server.webhook.verify(body, dict(self.headers), json_parse=False)
        except (WebhookVerificationError, ValueError):
            self.answer(401)
            return
        self.answer(204 if self.server.tell(json.loads(body)) else 500)

    def answer(self, status: int) -> None:
        """Send an answer without a body."""
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def words_of(event: dict[str, Any]) -> tuple[str, str]:
    """Return a title and a text for human readers."""
    *_, noun, word, _ = event["type"].split(".")
    data = event["data"]
    if noun == "event":
        shown, facts = data["event"], data["maintenance"]
        title = f"{shown['type']} of {', '.join(shown['resources'])}: {word}"
        lines = [facts["description"], f"not before {shown['not_before']}" if word == "scheduled" else ""]
    elif noun == "maintenance":
        title = f"{data['maintenance']['type']} of {', '.join(data['vms'])}: {word}"
        lines = [data["maintenance"]["description"]]
    elif noun == "rollout":
        title, lines = f"rollout {data['name']}: {word}", []
    else:
        title, lines = "Forewarn says hello", [f"subscription {event['subject']} works"]
    lines += [data.get("reason") or "", f"at {event['time']}"]
    return title, "\n".join(line for line in lines if line)


def main() -> None:
    if len(sys.argv) < 3 or "FOREWARN_SECRET" not in os.environ:
        sys.exit("usage: FOREWARN_SECRET=whsec_… notify_apprise.py ADDRESS:PORT APPRISE_URL…")
    host, _, port = sys.argv[1].rpartition(":")
    with Receiver((host, int(port)), os.environ["FOREWARN_SECRET"], sys.argv[2:]) as receiver:
        print(f"listening on {host}:{receiver.server_address[1]}", flush=True)
        receiver.serve_forever()


if __name__ == "__main__":
    main()
