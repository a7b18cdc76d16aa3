"""A whole handler for scheduled events, with nothing but the standard library.

    python3 examples/handler.py [http://169.254.169.254] [--once]

It waits for changes, prepares when an event is announced, approves when prepared, and recovers when the event is gone.
With --once it ends after the first event that it has seen to its end.
"""

import json
import sys
import time
import urllib.error
import urllib.request

PATH = "/metadata/scheduledevents?api-version=2020-07-01"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


def ask(url: str, incarnation: int | None) -> dict | None:
    """The document when it is another than the one of `incarnation`; waits for that up to a minute. None: unchanged."""
    headers = {"Metadata": "true"}
    if incarnation is not None:
        headers |= {"If-None-Match": f'"{incarnation}"', "Prefer": "wait=60"}
    try:
        with OPENER.open(urllib.request.Request(url, headers=headers), timeout=130) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 304:
            return None
        raise


def approve(url: str, event_id: str) -> None:
    """Tell the platform that it need not wait for this VM any longer."""
    body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
    OPENER.open(urllib.request.Request(url, data=body, headers={"Metadata": "true"}), timeout=10).close()


def main(base: str = "http://169.254.169.254", *options: str) -> None:
    """Follow the document until interrupted."""
    url, incarnation, known = base + PATH, None, {}
    while True:
        try:
            document = ask(url, incarnation)
        except OSError as error:
            print(f"the endpoint does not answer, trying again: {error}", flush=True)
            time.sleep(1)
            continue
        if document is None:
            continue
        incarnation = document["DocumentIncarnation"]
        current = {event["EventId"]: event for event in document["Events"]}
        for event_id in known.keys() - current.keys():
            print(f"recover: {known[event_id]['EventType']} is over", flush=True)
        for event_id in current.keys() - known.keys():
            event = current[event_id]
            print(f"prepare: {event['EventType']} of {', '.join(event['Resources'])}", flush=True)
            if event["EventStatus"] == "Scheduled":
                approve(url, event_id)
                print("approved", flush=True)
        if "--once" in options and known and not current:
            return
        known = current


if __name__ == "__main__":
    main(*sys.argv[1:])
