"""Check any endpoint of Scheduled Events against the golden transcripts, with only Python's standard library.

    python3 examples/hold_to_transcripts.py http://127.0.0.1:8169 vm-1 TRANSCRIPT...

A transcript is a file of requests and recorded answers; docs/reference/conformance.md describes its format. The program
sends each request and compares the answer. If it prints a line that begins with "do", carry out, in your service, the
step that the line describes. Then enter the resulting values as a JSON object on one line. Exit status 1: an answer
differs.
"""

import http.client
import json
import string
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Answer = tuple[int, Mapping[str, str], bytes]
Ask = Callable[[str, str, dict[str, str], bytes | None], Answer]
Do = Callable[[str, str, list[str]], dict[str, str]]


def play(lines: list[str], variables: dict[str, str], ask: Ask, do: Do) -> Iterator[tuple[dict[str, Any], Answer, str]]:
    """Play a transcript; yield each exchange of the file, the answer, and the difference (empty: none)."""
    head, *steps = map(json.loads, lines)
    if "conformance_transcript" not in head:
        message = "the first line describes no transcript"
        raise ValueError(message)
    for step in steps:
        if "do" in step:
            variables |= do(step["do"], fill(step["what"], variables), step["sets"])
            continue
        request = fill(step["request"], variables)
        body = None if request["body"] is None else request["body"].encode()
        answer = ask(request["method"], request["target"], request["headers"], body)
        yield step, answer, differs(fill(step["answer"], variables), answer)


def fill(value: Any, variables: dict[str, str]) -> Any:  # noqa: ANN401 - a JSON value
    """Insert the variables into all texts of a value."""
    if isinstance(value, dict):
        return {name: fill(each, variables) for name, each in value.items()}
    return string.Template(value).substitute(variables) if isinstance(value, str) else value


def differs(expected: dict[str, Any], answer: Answer) -> str:
    """Describe the difference between the expected and the actual answer; empty if there is none."""
    status, headers, body = answer
    if status != expected["status"]:
        return f"status {status}, expected {expected['status']}"
    for name, value in expected["headers"].items():
        if headers.get(name, "") != value:
            return f"{name}: {headers.get(name, '')}, expected {value}"
    if expected["exact"]:
        return "" if body == expected["body"].encode() else f"{body!r}, expected {expected['body'].encode()!r}"
    try:
        is_error = isinstance(json.loads(body)["error"], str)
    except (ValueError, TypeError, KeyError):
        is_error = False
    return "" if is_error else f"{body!r}, expected an object with a text 'error'"


def asker(url: str, source_address: str = "") -> Ask:
    """Return a function that sends requests to the URL, each on a new connection."""
    parts = urlsplit(url)

    def ask(method: str, target: str, headers: dict[str, str], body: bytes | None) -> Answer:
        source = (source_address, 0) if source_address else None
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60, source_address=source)
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    return ask


def prompt(name: str, what: str, sets: list[str]) -> dict[str, str]:
    """Ask the user to carry out a step, and return the values that the user enters."""
    print(f"do ({name}): {what}\nthen enter {', '.join(sets) or 'nothing'} as a JSON object: ", end="", flush=True)
    return {key: str(value) for key, value in json.loads(sys.stdin.readline() or "{}").items()}


def main(url: str, vm: str, *paths: str) -> int:
    """Play every file, and return the exit status."""
    count = 0
    for path in paths:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        for step, _, difference in play(lines, {"vm": vm}, asker(url), prompt):
            count += bool(difference)
            open_ = f" (the sources leave {step['open']} open)" if difference and step["open"] else ""
            print(f"{'differs' if difference else 'same'}: {step['name']}{open_}{': ' * bool(difference)}{difference}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
