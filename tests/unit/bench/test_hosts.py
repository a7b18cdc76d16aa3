"""The hosts that watch one replica are divided among processes, and measured together."""

from __future__ import annotations

import resource

from bench.hosts import count_allowed, divide, merge_joined


def test_each_process_gets_about_the_same_number_of_hosts_and_no_host_is_lost() -> None:
    parts = divide(20_000, 5000)
    assert [len(part) for part in parts] == [5000] * 4
    uneven = divide(19_401, 5000)
    assert [number for part in uneven for number in part] == list(range(19_401))
    assert {len(part) for part in uneven} == {4850, 4851}


def test_few_hosts_need_one_process() -> None:
    assert divide(500, 5000) == [range(500)]
    assert divide(1, 5000) == [range(1)]


def test_the_last_host_of_all_processes_counts() -> None:
    found = merge_joined(
        [
            {"joined_s": 2.0, "took_s": [0.1, 0.5], "state_bytes": 300.0},
            {"joined_s": 3.0, "took_s": [0.2], "state_bytes": 600.0},
        ]
    )
    assert found == {"joined_s": 3.0, "took_s": [0.1, 0.2, 0.5], "state_bytes": 400.0}


def test_a_limit_of_open_files_leaves_room_for_the_replica() -> None:
    assert count_allowed(20_000, files=65_536) == 20_000
    assert count_allowed(20_000, files=20_600) == 20_000
    assert count_allowed(20_000, files=20_000) == 19_400
    assert count_allowed(500, files=20_000) == 500
    assert count_allowed(20_000, files=resource.RLIM_INFINITY) == 20_000
