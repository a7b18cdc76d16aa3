"""The kernel of the guests: Debian's for clouds, fetched without being installed.

``python -m tests.guests.kernel`` puts it into `FOLDER`; nothing of it comes near the machine's own ``/boot``.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOLDER", "Kernel", "fetch", "find"]

FOLDER = Path(__file__).parents[2] / ".venv/guest-kernel"
"""Where it is kept: out of sight of git, and of ``make clean``."""

PACKAGE = "linux-image-cloud-amd64"
MODULES = ("virtio_pci", "virtio_net", "button", "evdev")
"""What the guests need: a network card, and the power button with the device that tells of it."""

_TIMEOUT_S = 300
_ORDER = "order"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that a machine can be started with.

    Attributes:
        image: What the firmware loads.
        modules: Files of modules, each after those that it needs.
    """

    image: Path
    modules: tuple[Path, ...]


def find(folder: Path = FOLDER) -> Kernel | None:
    """What was fetched; None: nothing was."""
    order = folder / _ORDER
    if not order.exists():
        return None
    return Kernel(folder / "vmlinuz", tuple(folder / name for name in order.read_text().split()))


def fetch(folder: Path = FOLDER) -> Kernel:
    """Fetch it from Debian with apt-get, unless it is there. Needs no root, and lists that ``apt-get update`` has made.

    Raises:
        RuntimeError: It could not be fetched; the message says why.
    """
    found = find(folder)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        _run("apt-get", "download", "--quiet=2", _image_package(), cwd=root)
        [package] = root.glob("*.deb")
        _run("dpkg-deb", "--extract", str(package), str(root))
        [image] = root.glob("boot/vmlinuz-*")
        shutil.copy(image, folder / "vmlinuz")
        needed = _needed({_name(path): path for path in root.glob("lib/modules/**/*.ko*")})
        for name, content in needed.items():
            (folder / name).write_bytes(content)
        (folder / _ORDER).write_text("\n".join(needed))  # last: with it, it is there
    made = find(folder)
    assert made is not None
    return made


def _image_package() -> str:
    """The package with the kernel itself, which the one with the lasting name stands for."""
    shown = _run("apt-cache", "show", "--no-all-versions", PACKAGE)
    found = re.search(r"^Depends: (linux-image-\S+)", shown, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{PACKAGE} is expected to depend on a kernel, and says: {shown[:200]}")
    return found[1]


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=cwd, env=environment
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"it takes Debian's {command[0]}: {error}") from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed; is 'apt-get update' needed? It says: {done.stderr.strip()}")
    return done.stdout


def _name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _needed(modules: dict[str, Path]) -> dict[str, bytes]:
    """The modules that are wanted and those that they need, unpacked, in the order in which they can be loaded."""
    taken: dict[str, bytes] = {}

    def take(name: str) -> None:
        path = modules.get(name)
        if path is None or f"{name}.ko" in taken:
            return  # where it is no module, the kernel has it built in
        content = path.read_bytes()
        if path.suffix == ".xz":
            content = lzma.decompress(content)
        found = re.search(rb"\0depends=([^\0]*)\0", content)
        for other in found[1].decode().split(",") if found else ():
            take(other.replace("-", "_"))
        taken[f"{name}.ko"] = content

    for name in MODULES:
        take(name)
    return taken


if __name__ == "__main__":
    try:
        fetch()
    except RuntimeError as error:
        sys.exit(f"the guests' kernel is missing: {error}")
