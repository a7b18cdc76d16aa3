"""Garbage collection is paused while modules are imported, and goes on as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from forewarn.util.garbage import pause_collections


@pytest.fixture(autouse=True)
def enabled_as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


def test_collections_are_paused_inside_the_block() -> None:
    gc.enable()
    with pause_collections():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_they_go_on_after_an_error() -> None:
    gc.enable()
    with pytest.raises(ImportError), pause_collections():
        raise ImportError
    assert gc.isenabled()


def test_they_stay_off_if_they_were_off() -> None:
    gc.disable()
    with pause_collections():
        pass
    assert not gc.isenabled()
