"""What an operator does: lets the control plane know the host, and runs the endpoint there."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.guests.host import Host
from tests.support.processes import FOREWARN, Served

__all__ = ["HOST", "declare", "endpoint"]

HOST = "host-1"

_TIMEOUT_S = 60


def declare(host: Host, service: Served) -> None:
    """Have the control plane know the host and its guests, from libvirt."""
    forewarn = shlex.join(FOREWARN)
    script = f"{forewarn} inventory from-libvirt '{host.uri}' --host {HOST} | {forewarn} inventory apply -"
    _run(service, "bash", "-o", "pipefail", "-c", script)


@contextmanager
def endpoint(service: Served, folder: Path) -> Iterator[None]:
    """`forewarn endpoint` on the host, at 169.254.169.254:80, which tells guests apart by their taps."""
    token = folder / "host.token"
    token.write_text(_run(service, *FOREWARN, "host", "create-token", HOST))
    words = ["--host", HOST, "--token-file", str(token), "--control-url", service.control_url]
    words += ["--identify", "interface", "--interface-macs", "--listen", "127.0.0.1:0"]
    words += ["--state-file", str(folder / "endpoint.json")]
    with (folder / "endpoint.log").open("w") as log:
        process = subprocess.Popen(
            [*service.prefix, *FOREWARN, "endpoint", *words], stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert "is ready" in ready, (folder / "endpoint.log").read_text()
        yield
    finally:
        process.terminate()
        assert process.wait(_TIMEOUT_S) == 0
        if process.stdout is not None:
            process.stdout.close()


def _run(service: Served, *command: str) -> str:
    done = subprocess.run(
        [*service.prefix, *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env=service.environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
