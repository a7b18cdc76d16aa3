"""What a guest runs: Debian's busybox and the scripts of `inside`, as an initramfs.

Everything is written here, byte for byte, so that it takes neither root nor another program.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.guests.kernel import Kernel
from tests.support.spans import GUARD_S

__all__ = ["BUSYBOX", "build"]

BUSYBOX = shutil.which("busybox") or ""
"""Debian's; empty: there is none."""

_INSIDE = Path(__file__).parent / "inside"
_FOLDERS = ("dev", "proc", "sys", "bin", "modules", "etc/acpi/PWRF")
_TRAILER = "TRAILER!!!"


def build(kernel: Kernel) -> bytes:
    """An initramfs for that kernel: ``/init`` is `inside/init`, every other script of that folder lies in ``/bin``."""
    files = {"bin/busybox": Path(BUSYBOX)}
    files |= {str(library).lstrip("/"): library for library in _libraries()}
    files |= {f"modules/{number:02}-{path.name}": path for number, path in enumerate(kernel.modules)}
    files |= {f"bin/{path.name}": path for path in _INSIDE.iterdir()}
    files["init"] = files.pop("bin/init")
    files["etc/acpi/PWRF/00000080"] = files.pop("bin/power-button")
    folders = {str(parent) for name in (*_FOLDERS, *files) for parent in Path(name, "x").parents} - {".", *files}
    entries = [_entry(name, stat.S_IFDIR | 0o755) for name in sorted(folders)]
    entries += [_entry(name, stat.S_IFREG | 0o755, path.read_bytes()) for name, path in files.items()]
    return b"".join([*entries, _entry(_TRAILER, 0)])


def _libraries() -> Iterator[Path]:
    """What busybox is linked with; nothing where it is linked statically."""
    said = subprocess.run(["ldd", BUSYBOX], check=False, capture_output=True, text=True, timeout=GUARD_S).stdout
    for line in said.splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found is not None:
            yield Path(found[1])


def _entry(name: str, mode: int, content: bytes = b"") -> bytes:
    """One file of a cpio archive of the kind ``newc``: a header of 110 bytes, the name, the content."""
    inode = mtime = uid = gid = devices = checksum = 0
    size = len(name) + 1  # of the name, with its end
    fields = (inode, mode, uid, gid, 1, mtime, len(content), *[devices] * 4, size, checksum)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + name.encode() + b"\0") + _padded(content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
