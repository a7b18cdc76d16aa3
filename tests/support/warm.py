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
from pathlib import Path

__all__ = ["run_warm"]

_SERVER = """
import contextlib, io, json, os, sys, tempfile
from forewarn.cli.main import main

# Commands import most of what they need when they run. This one reaches nobody.
sys.argv = ["forewarn", "vm", "list", "--control-url", "http://127.0.0.1:1"]
with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
    main()

def command(asked, text, out, err):
    os.dup2(text, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = ["forewarn", *asked["arguments"]]
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), encoding="utf-8", write_through=True)
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0

for line in sys.stdin:
    asked = json.loads(line)
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        text.write(asked["text"].encode())
        text.seek(0)
        if (pid := os.fork()) == 0:
            status = 1
            try:
                status = command(asked, text.fileno(), out.fileno(), err.fileno())
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


def run_warm(
    arguments: Sequence[str], environment: Mapping[str, str], *, text: str = "", folder: Path | None = None
) -> tuple[int, str, str]:
    """Run a command, one at a time: its exit status, and what it printed to stdout and stderr.

    Args:
        arguments: After the name of the program.
        environment: All of it.
        text: Its standard input.
        folder: Where it runs; None: where the tests do.
    """
    asked = {"arguments": list(arguments), "environment": dict(environment), "text": text}
    with _lock:
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked | {"folder": str(folder or Path.cwd())}) + "\n")
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
