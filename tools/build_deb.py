"""Build Forewarn's Debian package with Debian's own tools.

    python tools/build_deb.py [--out build/deb]

It needs `apt-get install dpkg-dev debhelper dh-virtualenv python3-venv`, on the Debian release that the package is for.
The package holds the service, the agent and the testing kit with all their libraries. docs/how-to/install.md says how
to install it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_DEBIAN = ROOT / "packaging" / "debian"
_UNITS = (*sorted((ROOT / "packaging" / "systemd").glob("*.service")), ROOT / "packaging" / "forewarn-agent.service")
_FILES = ("pyproject.toml", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md")

# The agent's unit names the first interpreter. Only the second one finds the package's libraries.
_SYSTEM_PYTHON = "ExecStart=/usr/bin/python3 "
_PACKAGED_PYTHON = "ExecStart=/usr/lib/forewarn/bin/python "

# Variables with this user's settings for pip and proxies, so that pip can reach the package index.
_PIP_VARIABLES = re.compile(r"PIP_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(https?|all|no)_proxy", re.IGNORECASE)


def main() -> None:
    """Build the package and print where it is."""
    parser = argparse.ArgumentParser(description="Build Forewarn's Debian package.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "deb", help="folder to write into")
    out: Path = parser.parse_args().out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if shutil.which("dpkg-buildpackage") is None or shutil.which("dh_virtualenv") is None:
        packages = "dpkg-dev debhelper dh-virtualenv python3-venv"
        sys.exit(f"dpkg-buildpackage or dh_virtualenv is missing: apt-get install {packages}")
    check_versions()
    with tempfile.TemporaryDirectory(prefix="forewarn-deb-") as folder:
        source = Path(folder) / "forewarn"
        copy_source(source)
        command = ["dpkg-buildpackage", "--build=binary", "--unsigned-changes", "--unsigned-buildinfo"]
        done = subprocess.run(
            command,
            check=False,
            cwd=source,
            env=build_environment(folder),
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
    """Exit with an error if the package's changelog and the library have different versions."""
    ours = re.search(r'__version__ = "(.+)"', (ROOT / "src/forewarn/__init__.py").read_text())
    theirs = re.match(r"forewarn \((.+?)\)", (_DEBIAN / "changelog").read_text())
    if ours is None or theirs is None or ours[1] != theirs[1]:
        sys.exit(f"{_DEBIAN / 'changelog'} is for version {theirs and theirs[1]}, the library has {ours and ours[1]}")


def build_environment(home: str) -> dict[str, str]:
    """Return the environment of the build: only the system's tools, with this user's configuration of pip."""
    environment = {name: value for name, value in os.environ.items() if _PIP_VARIABLES.fullmatch(name)}
    configuration = Path("~/.config/pip/pip.conf").expanduser()
    if configuration.exists():
        # debhelper changes HOME, so pip would not find its configuration.
        environment.setdefault("PIP_CONFIG_FILE", str(configuration))
    # Without a virtual environment on the PATH, the build finds the system's Python.
    return environment | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LC_ALL": "C.UTF-8"}


def copy_source(target: Path) -> None:
    """Copy the sources of the package, with `debian/` in the folder that Debian's tools expect."""
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, target / name)
    shutil.copytree(_DEBIAN, target / "debian")
    for unit in _UNITS:
        text = unit.read_text().replace(_SYSTEM_PYTHON, _PACKAGED_PYTHON)
        (target / "debian" / f"forewarn.{unit.name}").write_text(text)


if __name__ == "__main__":
    main()
