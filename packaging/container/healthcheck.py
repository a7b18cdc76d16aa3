#!/usr/bin/env python3
"""Asks the service of this container whether it answers: exit status 0, or 1 with the reason.

It reads what the CLI reads: FOREWARN_CONTROL_URL, and the token in FOREWARN_STATE_DIR, which `/healthz` wants where the
control API listens beyond loopback. It uses nothing but the standard library, for it runs every few seconds.
"""

import os
import sys
import urllib.request
from pathlib import Path

_URL = "http://127.0.0.1:8170"
_TIMEOUT_S = 4.0


def main() -> None:
    """Ask once.

    Raises:
        OSError: There is no token, nobody answers, or the answer is not 200.
    """
    url = os.environ.get("FOREWARN_CONTROL_URL", _URL).rstrip("/")
    token = Path(os.environ["FOREWARN_STATE_DIR"], "operator.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/healthz", headers=headers)  # noqa: S310 - whoever runs the container says it
    # A proxy of the environment is not meant for this container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=_TIMEOUT_S).close()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"not healthy: {error}")
