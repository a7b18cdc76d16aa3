"""Facts about the machine that the benchmark runs on."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
import timeit
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.process import ROOT, find_tool

__all__ = ["describe", "load_average"]


def describe() -> dict[str, str]:
    """Return facts by name, as listed below the table of results."""
    memory_kib = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": _said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{int(memory_kib[1]) / (1 << 20):.0f} GiB" if memory_kib else "unknown",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "speed at the time": f"{_loop_s():.2f} s for a loop of ten million additions in Python; best of 3",
        "uvloop": version("uvloop"),
        "uvicorn": version("uvicorn"),
        "SQLite": sqlite3.sqlite_version,
        "nginx": _version("nginx", "-v"),
        "HAProxy": _version("haproxy", "-v"),
        "Go": _version("go", "version"),
        "wrk": _version("wrk", "-v"),
        "etcd": _version("etcd", "--version"),
        "h2load": _version("h2load", "--version"),
    }


def load_average() -> float:
    """Return the load average: runnable processes during the last minute."""
    return os.getloadavg()[0]


def _loop_s() -> float:
    """Measure the current speed. Other users share the hardware, so it may be half as fast an hour later."""
    return min(timeit.repeat("for number in range(10_000_000): total += number", "total = 0", number=1, repeat=3))


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return found[1].strip() if found else platform.machine()


def _version(tool: str, flag: str) -> str:
    found = re.search(r"\d+\.[\w.+-]+", _said(tool, flag))
    return found[0] if found else "unknown"


def _said(tool: str, *arguments: str) -> str:
    program = find_tool(tool)
    if program is None:
        return "unknown"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip() or "unknown"
