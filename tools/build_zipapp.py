"""Build Forewarn's testing kit as one file that runs without an installation.

    python tools/build_zipapp.py [--out build/forewarn.pyz]

The file runs only on the platform and Python version that built it, because some libraries are compiled. On its first
run, it unpacks itself into a virtual environment below ~/.cache/pex. ADR 2 gives the reasons for pex.
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
    """Build wheels of Forewarn and of its testing kit's libraries into a folder, in the tested versions."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-input"]
    # As in the Makefile: older and newer pip read these variables for Forewarn's build tools.
    builders = {"PIP_CONSTRAINT": str(_CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(_CONSTRAINTS)}
    subprocess.run(
        [*pip, "-c", str(_CONSTRAINTS), "--wheel-dir", str(folder), f"{ROOT}[testing]"],
        check=True,
        env=os.environ | builders,
    )


def _join_wheels(folder: Path, out: Path) -> None:
    """Build one file from the wheels, without downloads."""
    major, minor = sys.version_info[:2]
    options = [
        *("--pre-resolved-dists", str(folder), "forewarn[testing]", "--script", "forewarn"),
        # With a virtual environment, Forewarn's child processes find the libraries, but handlers do not see them.
        "--venv",
        # /bin/sh starts the interpreter, so on a machine without `python3.11` the error message names what is missing.
        *("--sh-boot", "--interpreter-constraint", f"CPython=={major}.{minor}.*"),
        *("--output-file", str(out)),
    ]
    subprocess.run([sys.executable, "-m", "pex", *options], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
