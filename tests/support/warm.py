"""Commands of `forewarn` in processes of their own that have imported everything already.

Nearly all that a command takes is importing. One process per test run does that once, and forks for each command. What
tests of the commands themselves start, they start with `python -m forewarn`.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

__all__ = ["run_warm"]

_SERVER = """
import io, json, os, sys, tempfile
from forewarn.cli.main import main

def command(asked, out, err):
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["forewarn", *asked["arguments"]]
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), encoding="utf-8", write_through=True)
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0

for line in sys.stdin:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if (pid := os.fork()) == 0:
            status = 1
            try:
                status = command(json.loads(line), out.fileno(), err.fileno())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
    print(json.dumps([status, *said]), flush=True)
"""

_lock = threading.Lock()
_servers: list[subprocess.Popen[str]] = []


def run_warm(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command, one at a time: its exit status, and what it printed to stdout and stderr."""
    with _lock:
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps({"arguments": list(arguments), "environment": dict(environment)}) + "\n")
        server.stdin.flush()
        status, out, err = json.loads(server.stdout.readline())
    return int(status), str(out), str(err)


def _server() -> subprocess.Popen[str]:
    if not _servers:
        command = [sys.executable, "-c", _SERVER]
        _servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        atexit.register(_stop)
    return _servers[0]


def _stop() -> None:
    for server in _servers:
        if server.stdin is not None:
            server.stdin.close()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
    _servers.clear()
