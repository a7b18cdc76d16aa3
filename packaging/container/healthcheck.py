#!/usr/bin/env python3
"""Check that the service in this container answers: exit status 0, or 1 with the reason.

It reads the same variables as the CLI: FOREWARN_CONTROL_URL, and FOREWARN_STATE_DIR for the token, which `/healthz`
requires if the control API does not listen on loopback. It uses only the standard library, because it runs often and
so must start fast.
"""

import os
import sys
import urllib.request
from pathlib import Path

_URL = "http://127.0.0.1:8170"
_TIMEOUT_S = 4.0


def main() -> None:
    """Send one request.

    Raises:
        OSError: There is no token, no answer, or an answer other than 200.
    """
    url = os.environ.get("FOREWARN_CONTROL_URL", _URL).rstrip("/")
    token = Path(os.environ["FOREWARN_STATE_DIR"], "operator.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/healthz", headers=headers)  # noqa: S310 - the operator sets the URL
    # The proxy in the environment is not meant for requests within the container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=_TIMEOUT_S).close()


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"not healthy: {error}")
