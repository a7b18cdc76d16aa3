"""A folder on a disk that loses power; needs root and FUSE."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.documents import ROOT
from tests.support.processes import wait_for

__all__ = ["PowerMount", "powered"]


class PowerMount:
    """A folder on such a disk.

    Attributes:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder = folder
        self._image = image
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def mount(self) -> None:
        """Mount what is on the disk."""
        command = [sys.executable, "-m", "tests.support.power_file_system", str(self.folder), str(self._image)]
        self._process = subprocess.Popen(command, cwd=ROOT)
        wait_for(lambda: self.folder.is_mount() or self._process.poll() is not None)
        assert self.folder.is_mount(), "it was not mounted"

    def cut(self, seed: int) -> None:
        """Cut the power: from now on, nothing reaches the disk."""
        self._request(signal.SIGUSR1, "seed", seed)

    @contextmanager
    def failing(self, number: int) -> Iterator[None]:
        """Have writes fail with the error of that number until the block ends."""
        self._request(signal.SIGUSR2, "failure", number)
        try:
            yield
        finally:
            self._request(signal.SIGUSR2, "failure", 0)

    def _request(self, number: signal.Signals, name: str, value: int) -> None:
        assert self._process is not None
        self._image.with_suffix(f".{name}").write_text(str(value))
        self._process.send_signal(number)
        done = self._image.with_suffix(".done")
        wait_for(done.exists)
        done.unlink()

    def unmount(self) -> None:
        """Take it away, whoever uses it."""
        if self._process is not None:
            subprocess.run(["fusermount3", "-u", "-z", str(self.folder)], check=False)
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def powered(folder: Path) -> Iterator[PowerMount]:
    """An empty disk, mounted until the block ends."""
    made = PowerMount(folder / "disk", folder / "disk.image")
    made.mount()
    try:
        yield made
    finally:
        made.unmount()
