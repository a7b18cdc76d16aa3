"""The servers that GETs are compared on, and the rows about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.compared_servers import SIDES, haproxy_settings, nginx_settings
from bench.get import MODES, summarise


def rounds() -> dict[str, list[dict[str, Any]]]:
    """Return a round in each mode, in which Forewarn is twice as fast as each other server, with half the CPU time."""
    slow = {"per_s": 1000.0, "per_cpu_s": 2000.0, "load_busy": 0.5, "kernel_share": 0.25}
    fast = {"per_s": 2000.0, "per_cpu_s": 4000.0, "load_busy": 0.5, "kernel_share": 0.25}
    return {mode: [{name: fast if name == "Forewarn" else slow for name in SIDES}] for mode in MODES}


def test_every_server_has_a_row_with_its_processor_time_for_each_kind_of_connection() -> None:
    rows = summarise(rounds(), 383).rows
    for mode in MODES:
        (own,) = (row for row in rows if row.what == f"{mode}, Forewarn")
        assert (own.value, own.unit) == (2000.0, "requests/s")
        assert own.note.startswith("250.0 µs of the server's CPU time for a request, 25% of it in the kernel;")
        others = [row for row in rows if row.what.startswith(f"{mode}, Forewarn to ")]
        assert [row.what.partition(" to ")[2] for row in others] == [name for name in SIDES if name != "Forewarn"]
        for row in others:
            assert (row.value, row.unit) == (2.0, "x")
            assert row.note == (
                "1,000 requests/s; 500.0 µs of the server's CPU time for a request, 25% of it in the kernel; "
                "2.00x per second of CPU time"
            )


def test_nginx_and_haproxy_are_among_the_servers() -> None:
    assert {"nginx", "nginx tuned", "HAProxy"} <= set(SIDES)


def test_nginx_keeps_the_file_open_only_if_it_is_tuned() -> None:
    plain, tuned = (nginx_settings(name, Path("/place"), Path("/folder"), 8080) for name in ("nginx", "nginx tuned"))
    assert "open_file_cache" not in plain
    assert "open_file_cache max=16" in tuned
    assert "worker_processes 1;" in plain
    assert "worker_processes 1;" in tuned


def test_haproxy_sends_the_file_with_one_thread_and_keeps_percent_signs() -> None:
    settings = haproxy_settings(8080, Path("/folder/document"), '"a%b"')
    assert "nbthread 1\n" in settings
    assert "file '/folder/document' hdr ETag '\"a%%b\"'\n" in settings
