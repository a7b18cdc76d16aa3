"""Build Forewarn's Debian package with Debian's own tools.

    python tools/build_deb.py [--out build/deb]

It needs `apt-get install dpkg-dev debhelper dh-virtualenv python3-venv`, on the Debian release that the package is for.
The package holds the service, the agent and the testing kit with all their libraries. docs/how-to/install.md says how
to install it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_DEBIAN = ROOT / "packaging" / "debian"
_UNITS = (*sorted((ROOT / "packaging" / "systemd").glob("*.service")), ROOT / "packaging" / "forewarn-agent.service")


def main() -> None:
    """Build the package and print where it is."""
    parser = argparse.ArgumentParser(description="Build Forewarn's Debian package.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "deb", help="folder to write into")
    out: Path = parser.parse_args().out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if shutil.which("dpkg-buildpackage") is None or shutil.which("dh_virtualenv") is None:
        sys.exit("dpkg-buildpackage or dh_virtualenv is missing: apt-get install dpkg-dev debhelper dh-virtualenv")
    check_versions()
    with tempfile.TemporaryDirectory(prefix="forewarn-deb-") as folder:
        source = Path(folder) / "forewarn"
        copy_source(source)
        # The version of Python that builds is the system's: none of a virtual environment may be found before it.
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": folder, "LC_ALL": "C.UTF-8"}
        command = ["dpkg-buildpackage", "--build=binary", "--unsigned-changes", "--unsigned-buildinfo"]
        done = subprocess.run(
            command,
            check=False,
            cwd=source,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}\ndpkg-buildpackage failed; its output is above")
        for package in Path(folder).glob("*.deb"):
            target = out / package.name
            shutil.copy(package, target)
            print(f"{target}: {target.stat().st_size / 1e6:.1f} MB")


def check_versions() -> None:
    """End the program if the package's changelog has another version than the library."""
    ours = re.search(r'__version__ = "(.+)"', (ROOT / "src/forewarn/__init__.py").read_text())
    theirs = re.match(r"forewarn \((.+?)\)", (_DEBIAN / "changelog").read_text())
    if ours is None or theirs is None or ours[1] != theirs[1]:
        sys.exit(f"{_DEBIAN / 'changelog'} is for version {theirs and theirs[1]}, the library has {ours and ours[1]}")


def copy_source(target: Path) -> None:
    """Copy what the package is made of, with `debian/` at the place where Debian's tools want it."""
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, target / name)
    shutil.copytree(_DEBIAN, target / "debian")
    for unit in _UNITS:
        shutil.copy(unit, target / "debian" / f"forewarn.{unit.name}")


if __name__ == "__main__":
    main()
