"""What holds secrets can be read by its owner only, whatever the umask is and whatever the mode was before."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forewarn.agent.state import AgentState, StateFile
from forewarn.core.inventory import Inventory
from forewarn.errors import StoreUnavailable
from forewarn.host.remote_authority import read_state
from forewarn.store import SqlStore
from forewarn.util.files import replace_file, sync_folder
from forewarn.util.secrets import load_or_create_token, make_private_folder, open_private, restrict_to_owner


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    make_private_folder(made)
    return made


def test_all_files_of_a_database_are_closed_to_others(folder: Path) -> None:
    store = SqlStore(url_of(folder / "forewarn.db"))
    with store.write() as tx:
        tx.replace_inventory(Inventory(), "one")
    names = ["forewarn.db", "forewarn.db-shm", "forewarn.db-wal", "forewarn.db.lock"]
    assert modes(folder) == dict.fromkeys(names, 0o600)
    store.close()


def test_a_database_that_others_could_read_is_closed_to_them(folder: Path) -> None:
    store = SqlStore(url_of(folder / "forewarn.db"))
    with store.write() as tx:
        tx.replace_inventory(Inventory(), "one")
    for name in modes(folder):
        (folder / name).chmod(0o644)
    (folder / "forewarn.db-journal").touch()
    (folder / "forewarn.db-journal").chmod(0o666)
    store.close()
    store = SqlStore(url_of(folder / "forewarn.db"))
    with store.read() as reader:
        assert reader.get_inventory_fingerprint() == "one"
    assert set(modes(folder).values()) == {0o600}
    store.close()


def test_the_state_of_an_agent_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "state.json"
    state = StateFile(path)
    state.acquire()
    state.save(AgentState())
    assert modes(path.parent) == {"state.json": 0o600, "state.json.lock": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    state.release()
    path.chmod(0o644)
    state.acquire()
    assert modes(path.parent)["state.json"] == 0o600
    state.release()


def test_the_state_of_an_endpoint_is_closed_to_others_when_it_is_read(folder: Path) -> None:
    path = folder / "endpoint.json"
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    path.chmod(0o644)
    read_state(path, "host-1")
    assert modes(folder) == {"endpoint.json": 0o600}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_a_replaced_file_has_the_requested_mode_and_nothing_is_left_beside_it(folder: Path, mode: int) -> None:
    path = folder / "file"
    for content in (b"one", b"two"):
        replace_file(path, content, mode=mode)
        assert modes(folder) == {"file": mode}
        assert path.read_bytes() == content


def test_a_file_that_cannot_be_replaced_stays_as_it_was(folder: Path) -> None:
    (folder / "file").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        replace_file(folder / "file", b"new")
    assert [each.name for each in folder.iterdir()] == ["file"]


def test_a_scratch_file_left_open_to_others_is_closed_before_it_is_written(folder: Path) -> None:
    path = folder / "scratch"
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    path.chmod(0o666)
    os.close(open_private(path, os.O_WRONLY | os.O_TRUNC))
    assert modes(folder) == {"scratch": 0o600}


def test_tightening_says_whether_it_changed_something(folder: Path) -> None:
    path = folder / "file"
    assert not restrict_to_owner(path)
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
    assert not restrict_to_owner(path)
    path.chmod(0o750)
    assert restrict_to_owner(path)
    assert modes(folder) == {"file": 0o700}


def test_a_second_store_is_refused_when_the_lock_file_was_removed(folder: Path) -> None:
    store = SqlStore(url_of(folder / "forewarn.db"))
    (folder / "forewarn.db.lock").unlink()
    with pytest.raises(StoreUnavailable, match="in use by another forewarn"):
        SqlStore(url_of(folder / "forewarn.db"))
    store.close()
    SqlStore(url_of(folder / "forewarn.db")).close()


def test_a_second_store_is_refused_when_the_file_was_replaced(folder: Path) -> None:
    """The first one still writes to the former file."""
    store = SqlStore(url_of(folder / "forewarn.db"))
    (folder / "forewarn.db").unlink()
    with pytest.raises(StoreUnavailable, match="in use by another forewarn"):
        SqlStore(url_of(folder / "forewarn.db"))
    store.close()


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_second_store_is_refused_by_any_name_of_the_file(link: object, folder: Path) -> None:
    store = SqlStore(url_of(folder / "forewarn.db"))
    other = folder / "other.db"
    assert callable(link)
    link(folder / "forewarn.db", other)
    with pytest.raises(StoreUnavailable, match="in use by another forewarn"):
        SqlStore(url_of(other))
    with store.write() as tx:
        tx.replace_inventory(Inventory(), "still ours")
    store.close()


def test_a_store_that_was_refused_takes_no_lock_of_the_first_one_away(folder: Path) -> None:
    store = SqlStore(url_of(folder / "forewarn.db"))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            SqlStore(url_of(folder / "forewarn.db"))
    with store.write() as tx:
        tx.replace_inventory(Inventory(), "one")
    store.close()


def failing(number: int) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_token_is_created_where_there_are_no_hard_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    path = folder / "new" / "operator.token"
    token = load_or_create_token(path)
    assert load_or_create_token(path) == token
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_of_two_processes_that_create_a_token_both_get_that_of_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "operator.token"
    link, first = os.link, "0123456789abcdef" * 4

    def link_late(*arguments: Path) -> None:
        path.write_text(first)
        path.chmod(0o600)
        link(*arguments)

    monkeypatch.setattr(os, "link", link_late)
    assert load_or_create_token(path) == first


def test_a_file_system_that_cannot_synchronise_folders_can_be_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    sync_folder(folder)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(folder)
