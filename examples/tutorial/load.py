"""A load generator: it sends requests until Ctrl-C or SIGTERM, then prints how many were answered and lost.

    python3 load.py

It also prints by how much the counters have grown in total. This must be the number of answered requests.
"""

import collections
import http.client
import signal
import threading
import time
import urllib.request

BALANCER = "10.9.0.1:8080"
COUNTERS = ("10.9.0.11:8080", "10.9.0.12:8080")
CLIENTS = 8
PAUSE_S = 0.02
PATIENCE_S = 15
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy


class Load:
    """Requests of several clients, and their results."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.answers = 0
        self.losses: collections.Counter[str] = collections.Counter()
        self.longest_s = 0.0

    def send_until_ended(self) -> None:
        """Send the requests of one client."""
        while not self.ended.is_set():
            began = time.monotonic()
            loss = self.send()
            with self.lock:
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                if loss:
                    self.losses[loss] += 1
                else:
                    self.answers += 1
            time.sleep(PAUSE_S)

    def send(self) -> str:
        """Send one request, and return why it was lost; empty if it was answered."""
        connection = http.client.HTTPConnection(BALANCER, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()
        return "" if answer.status == 200 else str(answer.status)


def counted() -> int:
    """Return the sum of the counters."""
    total = 0
    for counter in COUNTERS:
        with OPENER.open(f"http://{counter}/", timeout=PATIENCE_S) as answer:
            total += int(answer.read())
    return total


def main() -> None:
    load = Load()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: load.ended.set())
    before = counted()
    clients = [threading.Thread(target=load.send_until_ended) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    load.ended.wait()
    for client in clients:
        client.join()
    lost = load.losses.total()
    reasons = "".join(f", {count} of them {reason}" for reason, count in load.losses.most_common())
    print(
        f"sent {load.answers + lost}, answered {load.answers}, counted {counted() - before}, "
        f"lost {lost}{reasons}, longest wait {load.longest_s:.1f} s"
    )


if __name__ == "__main__":
    main()
