"""The disk of the power cuts loses what it may, and keeps what it must."""

from __future__ import annotations

import random
import stat

import pytest

from tests.support.power_disk import Disk, Node

SEEDS = range(200)
PATH, NEW = "/state", "/state.new"


def a_disk(content: bytes = b"old") -> Disk:
    """A disk with one file, all of it synchronised."""
    disk = Disk()
    disk.add(PATH, a_file(content))
    disk.find(PATH).sync()
    disk.root.sync()
    return disk


def a_file(content: bytes) -> Node:
    made = Node(stat.S_IFREG | 0o600)
    made.write(0, content)
    return made


def contents(disk: Disk, seed: int) -> bytes | None:
    """What the file holds after a power cut; None if there is none."""
    disk.cut(random.Random(seed))
    try:
        return bytes(disk.find(PATH).content)
    except OSError:
        return None


def replaced(*, is_synced: bool, is_named: bool) -> Disk:
    """A disk whose file was replaced by another one."""
    disk = a_disk()
    disk.add(NEW, a_file(b"x" * 2000))
    if is_synced:
        disk.find(NEW).sync()
    disk.rename(NEW, PATH)
    if is_named:
        disk.root.sync()
    return disk


def test_what_was_synchronised_stays() -> None:
    found = {contents(replaced(is_synced=True, is_named=True), seed) for seed in SEEDS}
    assert found == {b"x" * 2000}


def test_a_name_that_was_not_synchronised_may_be_the_old_one() -> None:
    found = {contents(replaced(is_synced=True, is_named=False), seed) for seed in SEEDS}
    assert found == {b"old", b"x" * 2000}


def test_content_that_was_not_synchronised_may_be_gone_though_the_name_is_there() -> None:
    found = {contents(replaced(is_synced=False, is_named=True), seed) for seed in SEEDS}
    assert {b"", b"x" * 2000} < found
    assert any(content and len(content) < 2000 for content in found), "no write was torn"


def test_writes_that_were_not_synchronised_are_lost_in_any_combination() -> None:
    found = set()
    for seed in SEEDS:
        disk = a_disk(b"....")
        for offset in range(4):
            disk.find(PATH).write(offset, b"x")
        found.add(contents(disk, seed))
    assert {b"....", b"xxxx", b".x.x"} <= found


def test_a_file_can_be_made_shorter_and_longer() -> None:
    file = a_disk(b"12345").find(PATH)
    file.truncate(2)
    file.truncate(4)
    assert file.content == b"12\0\0"
    file.write(6, b"x")
    assert file.content == b"12\0\0\0\0x"


def test_a_removed_file_may_come_back() -> None:
    found = set()
    for seed in SEEDS:
        disk = a_disk()
        disk.remove(PATH)
        found.add(contents(disk, seed))
    assert found == {b"old", None}


def test_a_new_folder_is_gone_with_what_was_synchronised_in_it() -> None:
    disk = Disk()
    disk.add("/a", Node(stat.S_IFDIR | 0o755))
    disk.add("/a/b", a_file(b"x"))
    disk.find("/a").sync()
    disk.find("/a/b").sync()
    disk.root.cut(random.Random(0), 0.0)
    with pytest.raises(FileNotFoundError):
        disk.find("/a/b")
