"""What the file of interfaces says, and what is wrong in it (R2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from forewarn.errors import ConfigError
from forewarn.host.interface_file import INTERFACES_FILE_BYTES_MAX, InterfaceFile, read_interface_file


def test_a_file_says_which_interface_is_whose(tmp_path: Path) -> None:
    """R2."""
    path = tmp_path / "interfaces.yaml"
    path.write_text("interfaces:\n  vnet0: web-0\n  vnet1: '1'\n")
    assert read_interface_file(path) == {"vnet0": "web-0", "vnet1": "1"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "1: expected a VM for each interface, as in 'interfaces: {vnet0: web-0}'"),
        ("vnet0: web-0", "1: unknown key 'vnet0'"),
        ("interfaces:\n  vnet0: web-0\n  vnet0: web-1\n", "3: duplicate key 'vnet0'"),
        ("interfaces:\n  vnet0: [web-0]\n", "2: interfaces.vnet0: input should be a valid string"),
        ("interfaces: {a-name-of-16-chr: web-0}", "1: interfaces.a-name-of-16-chr: string should have at most 15"),
        ("interfaces: ]", "1: not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "interfaces.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_interface_file(path)
    assert str(caught.value).startswith(f"{path}:{words}")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read .*none\.yaml: no such file or directory$"):
        read_interface_file(tmp_path / "none.yaml")


def test_a_file_that_is_too_large_is_named(tmp_path: Path) -> None:
    path = tmp_path / "interfaces.yaml"
    path.write_text("#" * INTERFACES_FILE_BYTES_MAX)
    with pytest.raises(ConfigError, match="expected a VM for each interface"):
        read_interface_file(path)
    path.write_text("#" * (INTERFACES_FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=r"^cannot read .*interfaces\.yaml: larger than 1048576 bytes$"):
        read_interface_file(path)


def test_while_the_file_is_wrong_its_last_valid_content_holds(tmp_path: Path) -> None:
    path = tmp_path / "interfaces.yaml"
    path.write_text("interfaces: {vnet0: web-0}")
    file = InterfaceFile(path)
    file.refresh()
    path.write_text("interfaces: ]")
    for _ in range(2):
        with pytest.raises(ConfigError):
            file.refresh()
        assert file.named_vms == {"vnet0": "web-0"}
    path.write_text("interfaces: {vnet1: web-0}")
    file.refresh()
    assert file.named_vms == {"vnet1": "web-0"}


def test_without_a_file_nothing_is_named() -> None:
    file = InterfaceFile(None)
    file.refresh()
    assert file.named_vms == {}
