"""A disk that loses power: what was not synchronised may be gone, be there in part, or be there as a whole.

It promises no more than POSIX does. `fsync` of a file makes its content durable, and not its name; `fsync` of a folder
makes the names in it durable, and not what they name. Changes to the names of one folder reach the disk in their order.
Changes to the content of a file reach it in any order, the last of them perhaps in part.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import PurePosixPath

__all__ = ["Disk", "Node"]

_SECTOR = 512
_FOLDER_MODE = stat.S_IFDIR | 0o755


@dataclass(slots=True, eq=False)
class Node:
    """A file or a folder.

    Attributes:
        content: Content of a file, as processes see it.
        names: Names in a folder, as processes see them.
        synced: Content that is durable.
        synced_names: Names that are durable.
        changes: Changes of the content since then: offset and data, or a length and None.
        renames: Changes of the names since then: a name, and what it names from then on; None for nothing.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    content: bytearray = field(default_factory=bytearray)
    names: dict[str, Node] = field(default_factory=dict)
    synced: bytes = b""
    synced_names: dict[str, Node] = field(default_factory=dict)
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    renames: list[list[tuple[str, Node | None]]] = field(default_factory=list)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def write(self, offset: int, data: bytes) -> None:
        """Write to a file."""
        self.changes.append((offset, data))
        _apply(self.content, offset, data)

    def truncate(self, length: int) -> None:
        """Give a file that length."""
        self.changes.append((length, None))
        _apply(self.content, length, None)

    def change_names(self, *pairs: tuple[str, Node | None]) -> None:
        """Change names of a folder, all at once."""
        self.renames.append(list(pairs))
        _rename(self.names, pairs)

    def sync(self) -> None:
        """Make the content of a file durable, or the names in a folder."""
        self.synced = bytes(self.content)
        self.synced_names = dict(self.names)
        self.changes.clear()
        self.renames.clear()

    def cut(self, rng: random.Random, share: float) -> None:
        """Lose what was not synchronised, but for a share of it."""
        content = bytearray(self.synced)
        kept = [change for change in self.changes if rng.random() < share]
        for number, (offset, data) in enumerate(kept):
            if data and number == len(kept) - 1 and 0 < share < 1:  # torn
                data = data[: rng.choice([*range(0, len(data), _SECTOR), len(data)])]  # noqa: PLW2901 - a part of it
            _apply(content, offset, data)
        names = dict(self.synced_names)
        count = len(self.renames)
        for pairs in self.renames[: count if share == 1 else rng.randint(0, count) if share else 0]:
            _rename(names, pairs)
        self.content, self.names = content, names
        self.sync()


class Disk:
    """A tree of files and folders, by path."""

    def __init__(self) -> None:
        self.root = Node(_FOLDER_MODE)

    def find(self, path: str) -> Node:
        """Return what a path names.

        Raises:
            OSError: Nothing.
        """
        node = self.root
        for name in PurePosixPath(path).parts[1:]:
            if name not in node.names:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            node = node.names[name]
        return node

    def find_place(self, path: str) -> tuple[Node, str]:
        """Return the folder of a path, and the name in it."""
        pure = PurePosixPath(path)
        return self.find(str(pure.parent)), pure.name

    def add(self, path: str, node: Node) -> None:
        """Give something a name."""
        folder, name = self.find_place(path)
        folder.change_names((name, node))

    def remove(self, path: str) -> None:
        """Take a name away."""
        folder, name = self.find_place(path)
        folder.change_names((name, None))

    def rename(self, old: str, new: str) -> None:
        """Give something another name, in place of whatever had it."""
        node = self.find(old)
        (left, old_name), (right, new_name) = self.find_place(old), self.find_place(new)
        if left is right:
            left.change_names((new_name, node), (old_name, None))
        else:
            right.change_names((new_name, node))
            left.change_names((old_name, None))

    def cut(self, rng: random.Random) -> None:
        """Lose power: all that was not synchronised is lost, or none of it, or some."""
        share = rng.choice([0.0, 0.0, 0.5, 0.9, 1.0])
        todo = [self.root]
        while todo:
            node = todo.pop()
            node.cut(rng, share)
            todo += node.names.values()


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    end = offset if data is None else offset + len(data)
    if len(content) < (offset if data is None else end):
        content.extend(bytes((offset if data is None else end) - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset:end] = data


def _rename(names: dict[str, Node], pairs: list[tuple[str, Node | None]] | tuple[tuple[str, Node | None], ...]) -> None:
    for name, node in pairs:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
