"""A `Disk` as a file system, by FUSE: ``python -m tests.support.power_file_system FOLDER IMAGE``.

What the image holds when it begins is on the disk. SIGUSR1 cuts the power: what is left goes into the image, and from
then on no write succeeds. The seed of the cut is in a file beside the image. After SIGUSR2, writes fail with the error
whose number is in another file; with 0, they succeed again.
"""

from __future__ import annotations

import errno
import pickle
import random
import signal
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import mfusepy

from tests.support.power_disk import Disk, Node


class FileSystem(mfusepy.Operations):  # type: ignore[misc] # the library's types are partial
    """The disk, as the kernel asks for it; see `fuse_operations`."""

    use_ns = True

    def __init__(self, image: Path) -> None:
        self.disk: Disk = pickle.loads(image.read_bytes()) if image.exists() else Disk()  # noqa: S301 - our own
        self._image = image
        self._lock = threading.Lock()
        self.is_off = False
        self.failure = 0
        self._open: dict[int, Node] = {}
        self._number = 0

    def cut(self, seed: int) -> None:
        with self._lock:
            if not self.is_off:
                self.is_off = True
                self.disk.cut(random.Random(seed))
                self._image.write_bytes(pickle.dumps(self.disk))

    def _change(self) -> Disk:
        if failure := errno.EIO if self.is_off else self.failure:
            raise mfusepy.FuseOSError(failure)
        return self.disk

    def _find(self, path: str, handle: int | None = None) -> Node:
        if handle in self._open:
            return self._open[handle]
        try:
            return self.disk.find(path)
        except OSError as error:
            raise mfusepy.FuseOSError(error.errno) from None

    def _handle(self, node: Node) -> int:
        self._number += 1
        self._open[self._number] = node
        return self._number

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        node = self._find(path, fh)
        size = len(node.content)
        owner = {"st_uid": node.uid, "st_gid": node.gid}
        return {"st_mode": node.mode, "st_nlink": 1, "st_size": size, "st_blocks": -(-size // 512)} | owner

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._find(path, fh).names]

    def create(self, path: str, mode: int, fi: object = None) -> int:
        node = self._make(stat.S_IFREG | stat.S_IMODE(mode))
        with self._lock:
            self._change().add(path, node)
        return self._handle(node)

    def _make(self, mode: int) -> Node:
        uid, gid, _ = mfusepy.fuse_get_context()
        return Node(mode, uid=uid, gid=gid)

    def open(self, path: str, flags: int) -> int:
        return self._handle(self._find(path))

    opendir = lambda self, path: self.open(path, 0)  # noqa: E731 - the same

    def release(self, path: str, fh: int) -> int:
        self._open.pop(fh, None)
        return 0

    releasedir = release

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._find(path, fh).content[offset : offset + size])

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        with self._lock:
            self._change()
            self._find(path, fh).write(offset, data)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        with self._lock:
            self._change()
            self._find(path, fh).truncate(length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        with self._lock:
            self._change()
            self._find(path, fh).sync()
        return 0

    fsyncdir = fsync

    def mkdir(self, path: str, mode: int) -> int:
        with self._lock:
            self._change().add(path, self._make(stat.S_IFDIR | stat.S_IMODE(mode)))
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        with self._lock:
            self._change().add(path, self._make(mode))
        return 0

    def unlink(self, path: str) -> int:
        with self._lock:
            self._find(path)
            self._change().remove(path)
        return 0

    def rmdir(self, path: str) -> int:
        if self._find(path).names:
            raise mfusepy.FuseOSError(errno.ENOTEMPTY)
        return self.unlink(path)

    def rename(self, old: str, new: str) -> int:
        with self._lock:
            self._find(old)
            self._change().rename(old, new)
        return 0

    def link(self, target: str, source: str) -> int:
        with self._lock:
            self._change().add(target, self._find(source))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        node = self._find(path)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        node = self._find(path)
        node.uid, node.gid = (node.uid if uid < 0 else uid), (node.gid if gid < 0 else gid)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        return {"f_bsize": 4096, "f_frsize": 4096, "f_blocks": 1 << 20, "f_bfree": 1 << 19, "f_bavail": 1 << 19}


def main(folder: str, image_path: str) -> None:
    """Serve the file system until it is unmounted."""
    image = Path(image_path)
    system = FileSystem(image)

    def watch() -> None:
        while True:
            if signal.sigwait(signals) == signal.SIGUSR1:
                system.cut(int(image.with_suffix(".seed").read_text()))
            else:
                system.failure = int(image.with_suffix(".failure").read_text())
            image.with_suffix(".done").touch()

    signals = {signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    threading.Thread(target=watch, daemon=True).start()
    with suppress(RuntimeError):  # it was unmounted
        mfusepy.FUSE(system, folder, foreground=True, nothreads=True, allow_other=True, default_permissions=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
