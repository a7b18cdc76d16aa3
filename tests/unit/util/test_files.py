"""Files are read up to a limit. That replacing one is atomic is shown by tests/integration/test_power_cut.py."""

from __future__ import annotations

import io

import pytest

from forewarn.util.files import read_limited


def test_a_file_is_read_whole_up_to_its_limit() -> None:
    assert read_limited(io.BytesIO(b"123"), 3) == b"123"
    with pytest.raises(OSError, match="larger than 2 bytes") as caught:
        read_limited(io.BytesIO(b"123"), 2)
    assert caught.value.strerror == "larger than 2 bytes"


def test_of_a_file_without_end_only_its_beginning_is_read() -> None:
    class Endless(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert size > 0, "all of it"
            return b"x" * size

    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_limited(Endless(), 1000)
