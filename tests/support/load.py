"""A load on a real service over HTTP that remembers what it was told, for the service to be held to after a crash."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.spans import GUARD_S

__all__ = ["Load", "Remembered", "inventory", "tenant"]

TENANTS = 60
_OPERATORS = 4
_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
_GONE = (OSError, http.client.HTTPException)
_POLL_EVERY_S = 0.05
"""Pause after each round of polls: without one, the load would use a whole core, and the service the other."""


def _name(number: int) -> str:
    return f"vm-{number}"


def _address(number: int) -> str:
    return f"127.0.7.{number + 1}"


def tenant(number: int) -> list[str]:
    """The two VMs of a tenant's maintenance; each is an audience of its own."""
    return [_name(2 * number), _name(2 * number + 1)]


def inventory() -> str:
    """Each VM on a host of its own."""
    numbers = range(2 * TENANTS)
    return json.dumps(
        {
            "hosts": [{"name": f"host-{n}"} for n in numbers],
            "vms": [{"name": _name(n), "host": f"host-{n}", "addresses": [_address(n)]} for n in numbers],
        }
    )


@dataclass
class Remembered:
    """What clients were told.

    Attributes:
        contents: What a VM was shown, by its name and the incarnation.
        latest: The newest incarnation that each VM was shown.
        approved: When the 200 came, by event id.
        numbers: For new Idempotency-Keys.
        keys: What was asked under each Idempotency-Key, and the id that the 201 told; None when no answer came.
        faults: Contradictions, found while the load ran.
    """

    contents: dict[tuple[str, int], str] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    approved: dict[str, float] = field(default_factory=dict)
    keys: dict[str, tuple[dict[str, Any], str | None]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    faults: list[str] = field(default_factory=list)


class Load:
    """Threads that behave as VMs and operators until `stop`.

    Args:
        remembered: Where everything is written down; outlives the service.
        notices_s: An operator draws one of them for each maintenance.

    Attributes:
        gone: Why threads have ended before `stop`: the service was killed, or has closed a connection.
    """

    def __init__(
        self,
        metadata_url: str,
        control_url: str,
        token: str,
        remembered: Remembered,
        seed: int,
        notices_s: Sequence[float] = (0, 0.2, 0.5),
    ) -> None:
        self._metadata = urlsplit(metadata_url).netloc
        self._control = urlsplit(control_url).netloc
        self._token = token
        self._told = remembered
        self._notices_s = notices_s
        self.gone: list[str] = []
        self._stop = threading.Event()
        self._rng = random.Random(seed)
        self._tenants = itertools.cycle(self._rng.sample(range(TENANTS), TENANTS))
        shares = [range(start, 2 * TENANTS, 3) for start in range(3)]
        self._threads = [threading.Thread(target=self._watch, args=(share,)) for share in shares]
        self._threads += [threading.Thread(target=self._operate, args=(number,)) for number in range(_OPERATORS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    # VMs

    def _watch(self, share: range) -> None:
        connections: dict[int, http.client.HTTPConnection] = {}
        try:
            while not self._stop.is_set():
                for number in share:
                    if number not in connections:
                        connections[number] = http.client.HTTPConnection(
                            self._metadata, timeout=GUARD_S, source_address=(_address(number), 0)
                        )
                    self._poll(connections[number], number)
                    if self._stop.is_set():
                        return
                time.sleep(_POLL_EVERY_S)
        except _GONE as error:
            self.gone.append(repr(error))
        finally:
            for connection in connections.values():
                connection.close()

    def _poll(self, connection: http.client.HTTPConnection, number: int) -> None:
        connection.request("GET", _PATH, headers={"Metadata": "true"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != http.HTTPStatus.OK:
            self._told.faults.append(f"GET: {answer.status} {body!r}")
            return
        document = json.loads(body)
        self._look(_name(number), document)
        # An odd VM is slow to approve, so that some start at NotBefore.
        ids = [e["EventId"] for e in document["Events"] if e["EventStatus"] == "Scheduled" and number % 5]
        if ids:
            wanted = json.dumps({"StartRequests": [{"EventId": id_} for id_ in ids]})
            connection.request("POST", _PATH, body=wanted, headers={"Metadata": "true"})
            answer = connection.getresponse()
            answer.read()
            if answer.status == http.HTTPStatus.OK:
                now_s = time.time()  # noqa: TID251 - the process runs on real time
                self._told.approved.update(dict.fromkeys(ids, now_s))
            else:
                self._told.faults.append(f"POST: {answer.status}")

    def _look(self, name: str, document: dict[str, Any]) -> None:
        incarnation = document["DocumentIncarnation"]
        content = json.dumps(document["Events"])
        if self._told.contents.setdefault((name, incarnation), content) != content:
            self._told.faults.append(f"{name} saw two contents of incarnation {incarnation}")
        if incarnation < self._told.latest.get(name, 0):
            self._told.faults.append(f"{name} went back from {self._told.latest[name]} to {incarnation}")
        self._told.latest[name] = incarnation

    # Operators

    def _operate(self, number: int) -> None:
        connection = http.client.HTTPConnection(self._control, timeout=GUARD_S)
        try:
            self._repeat_unanswered(connection, number)
            while not self._stop.is_set():
                key = f"key-{next(self._told.numbers)}"
                wanted = {
                    "vms": tenant(next(self._tenants)),
                    "cause": "live-migration",
                    "description": key,
                    "notice_s": self._rng.choice(self._notices_s),
                    "force": True,
                    "reason": "drill",
                }
                self._told.keys[key] = (wanted, None)
                self._schedule(connection, key)
                time.sleep(0.02)
        except _GONE as error:
            self.gone.append(repr(error))
        finally:
            connection.close()

    def _repeat_unanswered(self, connection: http.client.HTTPConnection, number: int) -> None:
        """Each operator has a share of what got no answer before the service was killed."""
        unanswered = [key for key, (_, id_) in list(self._told.keys.items()) if id_ is None]
        for key in unanswered:
            if int(key.removeprefix("key-")) % _OPERATORS == number:
                self._schedule(connection, key)

    def _schedule(self, connection: http.client.HTTPConnection, key: str) -> None:
        wanted, _ = self._told.keys[key]
        headers = {"Authorization": f"Bearer {self._token}", "Idempotency-Key": key, "Content-Type": "application/json"}
        connection.request("POST", "/v1/maintenance", body=json.dumps(wanted), headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status == http.HTTPStatus.CREATED:
            (made,) = json.loads(body)["items"]
            self._told.keys[key] = (wanted, made["id"])
        else:
            self._told.faults.append(f"schedule: {answer.status} {body!r}")
