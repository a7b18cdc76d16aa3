"""The C library is asked to map large blocks alone, if it can."""

from __future__ import annotations

from types import SimpleNamespace

from forewarn.util.large_blocks import map_large_blocks


def test_the_block_that_uvloop_reserves_for_tls_is_large() -> None:
    asked: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        asked.append((parameter, value))
        return 1

    assert map_large_blocks(SimpleNamespace(mallopt=mallopt))
    assert asked == [(-3, 256 * 1024)]  # M_MMAP_THRESHOLD of malloc.h; SSL_READ_MAX_SIZE of uvloop


def test_a_c_library_that_refuses_or_has_no_such_function_is_left_as_it_is() -> None:
    assert not map_large_blocks(SimpleNamespace(mallopt=lambda _parameter, _value: 0))
    assert not map_large_blocks(SimpleNamespace())
