"""The handler for files: touched or removed, and put back. It works on files, so these tests do too."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.configuration import parse_configuration
from forewarn.agent.handlers import FileHandler
from forewarn.errors import HookFailed
from tests.support.documents import ROOT, files_in
from tests.support.interrupted import Crash, Fragile, Fuse, crash_everywhere

pytestmark = pytest.mark.anyio

HOW_TO = ROOT / "docs/how-to/agent-health-file.md"


def handler_of(word: str, path: Path) -> FileHandler:
    return FileHandler(touch=str(path)) if word == "touch" else FileHandler(remove=str(path))


@pytest.mark.parametrize("settings", [{}, {"touch": "/a", "remove": "/b"}])
def test_it_names_exactly_one_file(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of touch and remove"):
        FileHandler(**settings)


def test_it_says_what_it_does() -> None:
    assert FileHandler(touch="/run/drain").describe_actions() == ["create the file /run/drain"]
    assert FileHandler(remove="/run/ok").describe_actions() == ["remove the file /run/ok"]


async def test_a_file_is_made_with_its_folder_and_removed_again(tmp_path: Path) -> None:
    path = tmp_path / "health" / "drain"
    handler, occasion = FileHandler(touch=str(path)), Fragile()
    await handler.prepare(occasion)
    assert path.read_bytes() == b""
    await handler.undo(occasion)
    assert not path.exists()


async def test_a_file_that_was_there_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "drain"
    path.write_bytes(b"by hand")
    handler, occasion = FileHandler(touch=str(path)), Fragile()
    await handler.prepare(occasion)
    path.write_bytes(b"by hand, and more since")
    await handler.undo(occasion)
    assert path.read_bytes() == b"by hand, and more since"


@pytest.mark.parametrize("content", [b"", b"ok\r\n", bytes(range(256))])
async def test_a_removed_file_comes_back_with_what_it_held(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ok"
    path.write_bytes(content)
    path.chmod(0o640)
    handler, occasion = FileHandler(remove=str(path)), Fragile()
    await handler.prepare(occasion)
    assert not path.exists()
    await handler.undo(occasion)
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


async def test_a_file_that_was_missing_before_stays_missing(tmp_path: Path) -> None:
    path = tmp_path / "ok"
    handler, occasion = FileHandler(remove=str(path)), Fragile()
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert not path.exists()


@pytest.mark.parametrize("word", ["touch", "remove"])
async def test_undo_without_memory_does_nothing(tmp_path: Path, word: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"held")
    await handler_of(word, path).undo(Fragile())
    assert path.read_bytes() == b"held"


@pytest.mark.parametrize("word", ["touch", "remove"])
@pytest.mark.parametrize("content", [None, b"held"])
async def test_a_crash_at_any_moment_is_made_up_for(tmp_path: Path, word: str, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    moments = await crash_everywhere(
        handler_of(word, path),
        Fragile,
        lambda: path.read_bytes() if path.exists() else None,
        lambda: path.exists() == (word == "touch"),
    )
    assert moments == 2


async def test_it_is_remembered_before_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "ok"
    path.write_bytes(b"held")
    with pytest.raises(Crash):
        await FileHandler(remove=str(path)).prepare(Fragile(Fuse(0)))
    assert path.exists()


async def test_a_file_too_large_to_be_put_back_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "ok"
    path.write_bytes(b"x" * ((64 << 10) + 1))
    with pytest.raises(HookFailed, match="to restore it later: larger than 65536 bytes"):
        await FileHandler(remove=str(path)).prepare(Fragile())
    assert path.exists()


async def test_what_the_system_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    below_a_file = str(tmp_path / "plain" / "drain")
    with pytest.raises(HookFailed, match=r"cannot read .*drain, to restore it later: Not a directory"):
        await FileHandler(touch=below_a_file).prepare(Fragile())
    with pytest.raises(HookFailed, match=r"cannot write .*drain: "):
        await FileHandler(remove=below_a_file).undo(Fragile(memory={"existed": True, "content": ""}))
    with pytest.raises(HookFailed, match=r"cannot remove .*drain: Not a directory"):
        await FileHandler(touch=below_a_file).undo(Fragile(memory={"existed": False}))
    with pytest.raises(HookFailed, match="Is a directory"):
        await FileHandler(remove=str(tmp_path)).prepare(Fragile())


def test_the_how_to_shows_a_configuration_that_is_one() -> None:
    (rule,) = parse_configuration(files_in(HOW_TO)["agent.toml"]).rules
    assert rule.handlers == (FileHandler(touch="/run/forewarn/drain"),)
