"""Build a release into dist/, check it, and use it as a new user would.

    python tools/build_release.py [--out dist]

The steps; if one fails, the build stops:

1. build the sdist and the wheel, with the tested versions of the build tools;
2. check their metadata, the version in `CHANGELOG.md`, and that the wheel contains all licence texts;
3. write a requirements file with the hash of every file that an installation may download;
4. install the wheel with these requirements into an empty environment, and write the environment's SBOM;
5. run the README's commands in this environment, and write the checksums of all files.

Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.documents import examples, files_in  # noqa: E402 - the root has to be on the path before

_CONSTRAINTS = ROOT / "constraints.txt"
_EXTRAS = ("server", "testing", "postgresql", "oidc", "tracing")
_LICENCES = (
    "LICENSE",
    "htmx.LICENSE.txt",
    "vis-timeline.LICENSE.txt",
    "swagger-ui.LICENSE.txt",
    "swagger-ui.NOTICE.txt",
    "swagger-ui-bundle.js.LICENSE.txt",
)
_READY_S = 60.0


class ReleaseError(Exception):
    """The release must not be published."""


def main() -> None:
    """Build the release and print its files."""
    parser = argparse.ArgumentParser(description="Build, check and try a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder to write into; its content is replaced")
    out: Path = parser.parse_args().out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        _step("building the sdist and the wheel")
        wheel, sdist = build_distributions(out)
        version = wheel.name.split("-")[1]
        _step("checking metadata, changelog and licences")
        check_distributions(wheel, sdist, version)
        _step("resolving requirements with hashes")
        requirements = write_requirements(out / f"forewarn-{version}-requirements.txt")
        with tempfile.TemporaryDirectory(prefix="forewarn-release-") as folder:
            _step("installing into an empty environment")
            binaries = install_release(Path(folder), wheel, requirements)
            _step("writing the SBOM")
            write_sbom(binaries, version, out / f"forewarn-{version}-sbom.cdx.json")
            _step("running the README's commands")
            try_readme(Path(folder), binaries)
        write_checksums(out)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.exit(f"no release: {error}")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size / 1e6:8.2f} MB  {file}")


def build_distributions(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; return the wheel and the sdist."""
    _run_python("-m", "build", "--outdir", str(out), str(ROOT))
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def check_distributions(wheel: Path, sdist: Path, version: str) -> None:
    """Check metadata, content and licence texts of the wheel, and the changelog.

    Raises:
        ReleaseError: A licence text is missing, the changelog lacks the version, or the wheel has stray files.
    """
    _run_python("-m", "twine", "check", "--strict", str(wheel), str(sdist))
    names = zipfile.ZipFile(wheel).namelist()
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    if missing := set(_LICENCES) - licences:
        raise ReleaseError(f"{wheel.name} lacks the licence texts {', '.join(sorted(missing))}")
    if strays := [name for name in names if not name.startswith(("forewarn/", f"forewarn-{version}.dist-info/"))]:
        raise ReleaseError(f"{wheel.name} would install files outside of the package: {', '.join(strays[:5])}")
    with tarfile.open(sdist) as archive:
        if f"forewarn-{version}/CHANGELOG.md" not in archive.getnames():
            raise ReleaseError(f"{sdist.name} lacks CHANGELOG.md")
    newest = re.search(r"^## \[(?P<version>\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest is None or newest["version"] != version:
        msg = f"the newest version in CHANGELOG.md is {newest and newest['version']}, that of the package {version}"
        raise ReleaseError(msg)


def write_requirements(file: Path) -> Path:
    """Write the tested versions of all requirements, with the hashes of their files, and return the file.

    Raises:
        ReleaseError: The file contains the address of a package index.
    """
    extras = [word for extra in _EXTRAS for word in ("--extra", extra)]
    quiet = ("--quiet", "--no-header", "--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links")
    options = (*quiet, "--no-annotate", "--strip-extras", "--generate-hashes", "--constraint", str(_CONSTRAINTS))
    _run_python("-m", "piptools", "compile", *options, *extras, "--output-file", str(file), "pyproject.toml")
    if "://" in file.read_text():
        raise ReleaseError(f"{file.name} holds the address of an index")
    return file


def install_release(folder: Path, wheel: Path, requirements: Path) -> Path:
    """Install the wheel and its requirements, by hash, into a new environment; return the folder of its commands."""
    # Without pip, which is not part of the release: the SBOM lists all packages in the environment.
    _run_python("-m", "venv", "--without-pip", str(folder / "venv"))
    binaries = folder / "venv" / "bin"
    _install(binaries, "--require-hashes", "--requirement", str(requirements))
    _install(binaries, "--no-deps", "--no-index", str(wheel))
    said = subprocess.run([binaries / "forewarn", "version"], check=True, capture_output=True, text=True).stdout
    expected = wheel.name.split("-")[1]
    if expected not in said:
        raise ReleaseError(f"forewarn version says {said.strip()!r}, not {expected}")
    return binaries


def try_readme(folder: Path, binaries: Path) -> None:
    """Run the commands of the README with the installed wheel, and with a separate service.

    Raises:
        ReleaseError: A command failed.
    """
    # The README's pytest example needs pytest, which Forewarn does not install.
    _install(binaries, "--constraint", str(_CONSTRAINTS), "pytest")
    readme = ROOT / "README.md"
    work = folder / "work"
    shutil.copytree(ROOT / "examples" / "handlers", work)
    for name, text in files_in(readme).items():
        (work / name).write_text(text)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREWARN_", "PYTHON"))}
    environment |= {
        "PATH": f"{binaries}:{environment['PATH']}",
        "HOME": str(folder),
        "FOREWARN_STATE_DIR": str(folder / "state"),
        "FOREWARN_DATABASE_URL": f"sqlite:///{folder}/forewarn.db",
    }
    serve = [str(binaries / "forewarn"), "serve", "--metadata-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as service:
        try:
            metadata, control = _read_addresses(service)
            environment["FOREWARN_CONTROL_URL"] = control
            blocks = [example for example in examples() if example.page == readme]
            for block in blocks:
                print(f"    {block.name}")
                script = block.script.replace("http://127.0.0.1:8169", metadata)
                done = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", script],
                    check=False,
                    cwd=work,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=_READY_S,
                )
                if done.returncode:
                    raise ReleaseError(f"README, {block.name}: status {done.returncode}\n{done.stdout}{done.stderr}")
            if not blocks:
                raise ReleaseError("the README has no commands to run")
        finally:
            service.terminate()


def _read_addresses(service: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the URLs of metadata and control API from the line that `serve` prints when it is ready."""
    assert service.stdout is not None
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and (line := service.stdout.readline()):
        if urls := re.findall(r"https?://[^\s,]+", line):
            return urls[0], urls[-1]
    raise ReleaseError("forewarn serve did not become ready")


def write_sbom(binaries: Path, version: str, file: Path) -> None:
    """Write a CycloneDX document of everything that is installed in the environment.

    Raises:
        ReleaseError: The document lacks a dependency of Forewarn.
    """
    _run_python(
        *("-m", "cyclonedx_py", "environment", str(binaries / "python")),
        *("--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-file", str(file)),
    )
    document = json.loads(file.read_text())
    # In pyproject.toml the version is dynamic, so the tool does not know it.
    document["metadata"]["component"]["version"] = version
    file.write_text(json.dumps(document, indent=2) + "\n")
    listed = {_normalize(component["name"]) for component in document["components"]}
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in (re.split(r"[\[>=;]", each)[0] for each in wanted if "sys_platform" not in each):
        if _normalize(name) not in listed:
            raise ReleaseError(f"{file.name} does not list {name}")


def _normalize(name: str) -> str:
    """Return the normalised name of a distribution, which is the same for all spellings."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write_checksums(out: Path) -> None:
    """Write `SHA256SUMS` of all files, in the form that ``sha256sum --check`` reads."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines))


def _step(text: str) -> None:
    print(f"+ {text}", flush=True)


def _install(binaries: Path, *arguments: str) -> None:
    _run_python("-m", "pip", "--python", str(binaries / "python"), "install", "--quiet", "--no-compile", *arguments)


def _run_python(*arguments: str) -> None:
    _run(sys.executable, *arguments)


def _run(*command: str) -> None:
    """Run a command in the checkout; its output is shown only if it fails."""
    pip = {
        "PIP_CONSTRAINT": str(_CONSTRAINTS),
        "PIP_BUILD_CONSTRAINT": str(_CONSTRAINTS),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        env=os.environ | pip,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}")


if __name__ == "__main__":
    main()
