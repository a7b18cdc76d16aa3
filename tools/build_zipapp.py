"""Build Forewarn's testing kit as one file that runs without an installation.

    python tools/build_zipapp.py [--out build/forewarn.pyz]

The file runs on the platform and the Python version that built it, since some libraries are compiled. On its first run
it unpacks itself into a virtual environment below ~/.cache/pex. ADR 2 says why pex builds it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CONSTRAINTS = ROOT / "constraints.txt"


def main() -> None:
    """Build the file and print where it is."""
    parser = argparse.ArgumentParser(description="Build Forewarn's testing kit as one file.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "forewarn.pyz", help="where to write it")
    out: Path = parser.parse_args().out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="forewarn-wheels-") as folder:
        _collect_wheels(Path(folder))
        _join_wheels(Path(folder), out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def _collect_wheels(folder: Path) -> None:
    """Put Forewarn and everything that its testing kit needs into a folder, in the tested versions."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-input"]
    # As in the Makefile: the variables are for what builds Forewarn, with older and newer pip.
    builders = {"PIP_CONSTRAINT": str(_CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(_CONSTRAINTS)}
    subprocess.run(
        [*pip, "-c", str(_CONSTRAINTS), "--wheel-dir", str(folder), f"{ROOT}[testing]"],
        check=True,
        env=os.environ | builders,
    )


def _join_wheels(folder: Path, out: Path) -> None:
    """Make one file of the wheels; nothing is downloaded any more."""
    major, minor = sys.version_info[:2]
    options = [
        *("--pre-resolved-dists", str(folder), "forewarn[testing]", "--script", "forewarn"),
        # A separate virtual environment: child processes find the libraries, and handlers see none of them.
        "--venv",
        # Found by /bin/sh, so a machine without `python3.11` under that very name says what is missing.
        *("--sh-boot", "--interpreter-constraint", f"CPython=={major}.{minor}.*"),
        *("--output-file", str(out)),
    ]
    subprocess.run([sys.executable, "-m", "pex", *options], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
