"""What is said where a command needs more than the base installation has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
for name in ("alembic", "fastapi", "httptools", "sqlalchemy", "starlette", "structlog", "uvicorn", "uvloop"):
    sys.modules[name] = None
from forewarn.cli.main import main
sys.argv = ["forewarn", *{words!r}]
main()
"""


@pytest.mark.parametrize(
    "words",
    [
        ["serve"],
        ["openapi"],
        ["config", "show"],
        ["inventory", "apply", "no-such-file"],
        ["fault", "kinds"],
        ["scenario", "list"],
        ["scenario", "show", "cancellation"],
        ["scenario", "play", "cancellation"],
        ["try", "--", "true"],
        ["replay", "no-such-file"],
        ["scenario", "from-transcript", "no-such-file"],
        ["conformance", "http://127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_it_says_what_to_install_or_does_without(words: list[str]) -> None:
    code = WITHOUT.format(words=words)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    if ran.returncode != 0:
        assert "pip install 'forewarn[" in ran.stderr or "no-such-file" in ran.stderr or "127.0.0.1:1" in ran.stderr


PLUGIN = """
import sys
for name in ("httptools", "starlette", "structlog", "uvicorn"):
    sys.modules[name] = None
import pytest
sys.exit(pytest.main([sys.argv[1], "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]))
"""


def test_the_pytest_plugin_is_in_nobodys_way(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text("def test_other():\n    pass\n\n\ndef test_it(scheduled_events):\n    pass\n")
    ran = subprocess.run(
        [sys.executable, "-c", PLUGIN, str(file)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert "1 passed, 1 error" in ran.stdout
    assert "pip install 'forewarn[testing]'" in ran.stdout
