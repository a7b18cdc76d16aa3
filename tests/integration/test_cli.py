"""The real command line, as processes, against the real service.

Those that are started for themselves import everything, as a user's do; `Cli.run` saves the import.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from tests.support.ports import reserve_address
from tests.support.processes import Served, served
from tests.support.spans import GUARD_S
from tests.support.warm import run_warm

FOREWARN = (sys.executable, "-m", "forewarn")
ANY_PORT = ("--metadata-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0")
INVENTORY = """\
hosts: [{name: host-1}, {name: host-2}]
scopes:
  - {name: web, kind: availability-set}
  - {name: pool, kind: scale-set, terminate_notification: {enable: true}}
vms:
  - {name: WestNO_0, host: host-1, scope: web, update_domain: 0, addresses: [127.0.0.11]}
  - {name: WestNO_1, host: host-1, scope: web, update_domain: 1, addresses: [127.0.0.12]}
  - {name: db, host: host-2, addresses: [127.0.0.13]}
  - {name: pool_0, host: host-2, scope: pool, addresses: [127.0.0.14]}
  - {name: spot, host: host-2, priority: Spot, addresses: [127.0.0.15]}
"""
ADDRESSES = [f"127.0.0.{n}" for n in range(11, 16)]
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
GUID = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}")


class Cli:
    """The command line as its user has it."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def run(
        self, *arguments: str, status: int = 0, text: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that is to end with that status."""
        ran = run_warm(arguments, self.environment | variables, text=text, folder=self.folder)
        done = subprocess.CompletedProcess(arguments, *ran)
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - what the command printed
        """What the command prints as JSON; nothing else may come."""
        done = self.run(*arguments, "--json")
        assert done.stderr == ""
        return json.loads(done.stdout)

    def fails(self, *arguments: str, status: int = 1, **variables: str) -> str:
        """The one line that a command ends with."""
        done = self.run(*arguments, status=status, **variables)
        assert done.stdout == ""
        assert done.stderr.startswith("forewarn: ")
        assert done.stderr.endswith("\n")
        assert done.stderr.count("\n") == 1
        return done.stderr


def enable(url: str) -> None:
    """Let every VM ask once."""
    for address in ADDRESSES:
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(transport=transport, trust_env=False) as vm:
            assert vm.get(url + EVENTS, headers={"Metadata": "true"}).status_code == 200


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "inventory.yaml").write_text(INVENTORY)
    with served(folder, "--clock", "virtual", "--inventory", str(folder / "inventory.yaml")) as running:
        enable(running.metadata_url)
        yield running


@pytest.fixture(scope="module")
def cli(service: Served, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(service.environment, tmp_path_factory.mktemp("user"))


@pytest.fixture
def alone(tmp_path: Path) -> Cli:
    """A user without a service."""
    variables = {"FOREWARN_STATE_DIR": str(tmp_path / "state"), "NO_COLOR": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")}
    return Cli(kept | variables, tmp_path)


# Commands


@pytest.mark.slow
def test_vms_hosts_and_the_inventory_are_listed(cli: Cli) -> None:
    assert [vm["name"] for vm in cli.json("vm", "list")] == ["WestNO_0", "WestNO_1", "db", "pool_0", "spot"]
    assert [host["name"] for host in cli.json("host", "list")] == ["host-1", "host-2"]
    lines = cli.run("vm", "list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "HOST", "SCOPE", "FD", "UD", "POWER", "ENABLED", "ADDRESSES"]
    assert lines[3].split() == ["db", "host-2", "-", "0", "0", "running", "yes", "127.0.0.13"]
    assert "host-1  -       2    WestNO_0, WestNO_1" in cli.run("host", "list").stdout
    assert "enabled    yes, incarnation" in cli.run("vm", "show", "WestNO_0").stdout
    assert cli.json("vm", "show", "db")["scope_kind"] == "standalone"
    assert [vm["name"] for vm in cli.json("vm", "list", "--host", "host-1")] == ["WestNO_0", "WestNO_1"]
    assert [vm["name"] for vm in cli.json("vm", "list", "--scope", "web", "--prefix", "WestNO_1")] == ["WestNO_1"]
    shown = cli.run("vm", "list", "--limit", "2")
    assert (len(shown.stdout.splitlines()), shown.stderr) == (3, "there are more VMs: use --limit 20\n")
    assert cli.run("vm", "list", "--prefix", "nothing").stderr == "no such VMs\n"
    assert cli.run("vm", "list", "--csv").stdout.splitlines()[3].startswith("db,host-2,,standalone,0,0,127.0.0.13,")
    assert [host["name"] for host in cli.json("host", "list", "--prefix", "host-2")] == ["host-2"]
    assert cli.run("host", "list", "--csv", "--limit", "1").stdout.splitlines()[1:] == [
        'host-1,"WestNO_0, WestNO_1",,,'
    ]


@pytest.mark.slow
def test_an_inventory_that_was_shown_can_be_applied_again(cli: Cli) -> None:
    shown = cli.run("inventory", "show").stdout
    shown_hosts = cli.json("inventory", "show")["hosts"]
    assert shown_hosts == [{"name": "host-1", "labels": {}}, {"name": "host-2", "labels": {}}]
    again = cli.run("inventory", "apply", "-", text=shown).stdout
    assert again.startswith("inventory applied: 0 added, 0 changed, 0 removed")
    (cli.folder / "same.yaml").write_text(INVENTORY)
    assert cli.json("inventory", "apply", "same.yaml")["changed"] == 0


def _end_everything(cli: Cli) -> None:
    """Tests share a service and come in any order: what one left behind would hold up the VMs of the next."""
    for word, states in (("cancel", ("queued", "scheduled")), ("complete", ("started",))):
        for state in states:
            for maintenance in cli.json("maintenance", "list", "--state", state):
                cli.run("maintenance", word, maintenance["id"])


def test_a_maintenance_goes_from_schedule_to_complete(cli: Cli) -> None:
    _end_everything(cli)
    said = cli.run("maintenance", "schedule", "--vm", "WestNO_0,WestNO_1", "--type", "freeze", "--notice", "20m").stdout
    event_ids = GUID.findall(said)
    assert len(event_ids) == 2
    assert "(in 20m)" in said
    listed = cli.run("event", "list").stdout
    assert all(event_id in listed for event_id in event_ids)

    approved = cli.run("event", "approve", *event_ids).stdout
    assert approved.count("is approved") == 2
    assert [item["outcome"] for item in cli.json("event", "approve", event_ids[0])] == ["unchanged"]

    [started] = [m for m in cli.json("maintenance", "list", "--state", "started") if "WestNO_0" in m["vms"]]
    impacted = cli.run("maintenance", "impact", started["id"], "--duration", "2s").stdout
    assert impacted == f"maintenance {started['id']} is started\n"
    assert cli.json("maintenance", "complete", started["id"])["state"] == "completed"

    shown = cli.run("maintenance", "show", started["id"]).stdout
    assert all(event_id in shown for event_id in event_ids)
    happened = shown.partition("History\n")[2]
    order = [re.split(r" {2,}", line)[1] for line in happened.splitlines()]
    assert order == ["scheduled", "approved", "approved", "started", "impacted", "completed"]
    assert cli.json("maintenance", "show", started["id"])["events"][0]["approved_by"] == "operator:local"
    assert started["id"] in cli.run("maintenance", "list").stdout
    assert "only a started one can be completed" in cli.fails("maintenance", "complete", started["id"])


@pytest.mark.slow
def test_a_maintenance_is_deferred_and_extended_within_bounds(cli: Cli) -> None:
    (made,) = cli.json("maintenance", "schedule", "--vm", "db", "--type", "Reboot", "--latest-start", "1d")
    id_ = made["id"]
    assert cli.json("maintenance", "defer", id_, "--by", "2h", "--reason", "not now")["deferrals"] == 1
    line = cli.run("maintenance", "defer", id_, "--until", "5h").stdout
    assert line.startswith(f"maintenance {id_} is scheduled, not before ")
    assert "(in 5h)" in line
    assert "latest start" in cli.fails("maintenance", "defer", id_, "--by", "2d")
    assert "give one of them" in cli.fails("maintenance", "defer", id_, status=2)
    assert "not both" in cli.fails("maintenance", "defer", id_, "--by", "1h", "--until", "2h", status=2)
    assert "grants no extension" in cli.fails("maintenance", "extend", id_, "--by", "5m")
    shown = cli.run("maintenance", "show", id_).stdout
    assert "postponed" in shown
    assert "deferred 2 times" in shown
    assert ": not now)" in shown
    cli.run("maintenance", "cancel", id_)
    (plain,) = cli.json("maintenance", "schedule", "--vm", "db", "--type", "Reboot")
    assert "without a latest start" in cli.fails("maintenance", "defer", plain["id"], "--by", "1h")
    cli.run("maintenance", "cancel", plain["id"])


def test_a_maintenance_can_be_canceled_or_started_with_a_reason(cli: Cli) -> None:
    soon = ["--not-before", "1h", "--duration", "unknown", "--description", "new disk", "--impact", "Freeze"]
    [made] = cli.json("maintenance", "schedule", "--vm", "db", "--type", "Reboot", *soon)
    assert (made["duration_s"], made["notice_s"], made["impact"]) == (-1, 3600, "Freeze")
    assert cli.run("maintenance", "cancel", made["id"]).stdout == f"maintenance {made['id']} is canceled\n"
    [made] = cli.json("maintenance", "schedule", "--host", "host-2", "--cause", "host-maintenance")
    assert cli.json("maintenance", "start", made["id"], "--reason", "agreed")["state"] == "started"
    assert "(agreed)" in cli.run("maintenance", "show", made["id"]).stdout
    cli.run("maintenance", "complete", made["id"])


def test_a_short_notice_wants_force_and_a_reason_and_stands_in_the_audit_log(cli: Cli) -> None:
    short = ("maintenance", "schedule", "--vm", "db", "--type", "Freeze", "--notice", "10s")
    assert "at least 15m" in cli.fails(*short)
    [made] = cli.json(*short, "--force", "--reason", "the roof is leaking")
    entries = cli.json("audit-log", "--maintenance", made["id"])
    assert [entry["reason"] for entry in entries if entry["kind"] == "scheduled"] == ["the roof is leaking"]
    assert '"the roof is leaking"' in cli.run("audit-log", "--maintenance", made["id"]).stdout
    cli.run("maintenance", "cancel", made["id"])


@pytest.mark.parametrize(
    ("verb", "vm", "event_type"),
    [
        ("restart", "db", "Reboot"),
        ("redeploy", "db", "Redeploy"),
        ("evict", "spot", "Preempt"),
        ("delete", "pool_0", "Terminate"),
        ("reimage", "WestNO_0", "Reboot"),
    ],
)
def test_an_operation_on_a_vm_is_announced(cli: Cli, verb: str, vm: str, event_type: str) -> None:
    flags = [] if verb in {"restart", "redeploy"} else ["--yes"]
    [made] = cli.json("vm", verb, vm, *flags)
    assert (made["type"], made["vms"]) == (event_type, [vm])
    if made["state"] in {"queued", "scheduled"}:
        cli.run("maintenance", "cancel", made["id"])


@pytest.mark.parametrize(
    "command",
    [
        "vm restart db",
        "vm redeploy db",
        "vm reimage db --yes",
        "vm evict spot --yes",
        "vm delete pool_0 --yes",
        "maintenance schedule --vm db --type Freeze",
        "host predict-failure host-2 --in 9d",
        "host fail host-2 --yes",
    ],
)
def test_a_reason_is_recorded_without_force_as_well(tmp_path: Path, command: str) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    with served(tmp_path, "--clock", "virtual", "--inventory", str(tmp_path / "inventory.yaml")) as running:
        fresh = Cli(running.environment, tmp_path)
        made = fresh.json(*command.split(), "--reason", "the fan is loud")
        for each in made:
            first = fresh.json("audit-log", "--maintenance", each["id"])[0]
            assert first["kind"] in {"queued", "scheduled", "started"}
            assert first["reason"] == "the fan is loud"
        if command.startswith("host fail"):
            fresh.json("host", "recover", "host-2", "--reason", "a new fan")
            assert fresh.json("audit-log", "--kind", "host-recovered")[0]["reason"] == "host host-2: a new fan"


@pytest.mark.parametrize(("verb", "more"), [("cancel", []), ("start", []), ("defer", ["--by", "1h"])])
def test_the_reason_of_a_change_is_recorded(cli: Cli, verb: str, more: list[str]) -> None:
    [made] = cli.json("maintenance", "schedule", "--vm", "db", "--type", "Freeze", "--latest-start", "2d")
    cli.json("maintenance", verb, made["id"], *more, "--reason", "the fan is loud")
    assert cli.json("audit-log", "--maintenance", made["id"])[-1]["reason"].endswith("the fan is loud")
    if verb != "cancel":
        cli.run("maintenance", *(("cancel",) if verb == "defer" else ("complete",)), made["id"])


def test_only_a_spot_vm_is_evicted(cli: Cli) -> None:
    """R90."""
    words = "only a Spot VM can be evicted, and db is not declared with 'priority: Spot' in the inventory"
    assert words in cli.fails("vm", "evict", "db", "--yes")
    assert words in cli.fails("maintenance", "schedule", "--vm", "spot,db", "--type", "Preempt")


def test_a_vm_follows_its_scale_set_s_latest_model(cli: Cli) -> None:
    assert cli.run("vm", "update-model", "pool_0").stdout == "vm pool_0 follows the latest model of pool\n"


@pytest.mark.slow
def test_a_host_fails_or_is_going_to(cli: Cli) -> None:
    predicted = cli.json("host", "predict-failure", "host-2", "--in", "3d")
    assert {m["notice_s"] for m in predicted} == {3 * 86400}
    for m in predicted:
        cli.run("maintenance", "cancel", m["id"])
    [failed] = cli.json("host", "fail", "host-1", "--reason", "smoke", "--yes")
    assert failed["state"] == "started"
    cli.run("maintenance", "complete", failed["id"])
    assert cli.json("host", "show", "host-1")["failure_reason"] == "smoke"
    assert cli.run("host", "recover", "host-1").stdout == "host host-1 has recovered\n"
    assert [host["failed_at"] for host in cli.json("host", "list")] == [None, None]


def test_the_virtual_clock_moves_when_told(cli: Cli) -> None:
    before = cli.json("clock", "show")
    assert before["clock"] == "virtual"
    assert cli.run("clock", "show").stdout.endswith("Z (virtual)\n")
    cli.run("clock", "advance", "90s")
    assert cli.json("clock", "show")["now"] > before["now"]


@pytest.mark.slow
def test_what_needs_no_service_works_without_one(alone: Cli) -> None:
    assert alone.json("version")["version"]
    settings = {setting["name"]: setting for setting in alone.json("config", "show")}
    assert settings["state_dir"]["value"] == str(alone.folder / "state")
    assert "notice_max = 90d  (default, s, m, h or d)" in alone.run("config", "show").stdout
    assert "/v1/maintenance" in json.loads(alone.run("openapi").stdout)["paths"]


# Errors


def test_a_service_that_cannot_be_reached_is_status_3(alone: Cli) -> None:
    line = alone.fails("vm", "list", "--control-url", "http://127.0.0.1:1", status=3)
    assert "http://127.0.0.1:1" in line
    assert "forewarn serve" in line
    alone.fails("audit-log", "--follow", status=3, FOREWARN_CONTROL_URL="http://127.0.0.1:1")


def test_what_is_not_there_is_status_1(cli: Cli) -> None:
    assert "vm 'nope' does not exist" in cli.fails("vm", "show", "nope")
    assert "forewarn maintenance list" in cli.fails("maintenance", "show", "nope")
    assert "no event with the id NOPE" in cli.fails("event", "approve", "nope")
    assert "cannot read the inventory nowhere.yaml" in cli.fails("inventory", "apply", "nowhere.yaml")
    (cli.folder / "bad.yaml").write_text("vms: [{name: a, host: b}]")
    assert "host 'b' is not declared" in cli.fails("inventory", "apply", "bad.yaml")


def test_a_token_that_is_wrong_or_missing_says_what_to_pass(cli: Cli) -> None:
    assert "--token-file" in cli.fails("vm", "list", FOREWARN_TOKEN="wrong")
    assert "operator.token" in cli.fails("vm", "list", FOREWARN_STATE_DIR=str(cli.folder / "elsewhere"))
    assert "cannot read the token file" in cli.fails("vm", "list", "--token-file", "nowhere")


def test_the_metadata_address_is_not_taken_for_the_control_address(cli: Cli, service: Served) -> None:
    assert "is not a control API" in cli.fails("vm", "list", "--control-url", service.metadata_url)


def test_a_reader_that_leaves_early_is_no_error(cli: Cli) -> None:
    script = f"{FOREWARN[0]} -m forewarn audit-log --all | head -n 1; exit ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True, timeout=GUARD_S, env=cli.environment
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_output_that_cannot_be_written_is_one_line(cli: Cli) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*FOREWARN, "vm", "list"],
            check=False, stdout=full, stderr=subprocess.PIPE, text=True, timeout=GUARD_S, env=cli.environment,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "forewarn: cannot write the output: No space left on device\n"


def test_colours_are_for_terminals_only(cli: Cli) -> None:
    assert "\x1b" not in cli.run("vm", "list", NO_COLOR="", FORCE_COLOR="").stdout


# What the client imports


def test_the_client_part_imports_no_library_of_the_server(alone: Cli) -> None:
    heavy = "{'uvicorn', 'fastapi', 'starlette', 'sqlalchemy', 'structlog', 'alembic', 'uvloop', 'prometheus_client'}"
    script = (
        "import sys; from forewarn.cli.main import run_command_line; "
        "run_command_line(['vm', 'list', '--control-url', 'http://127.0.0.1:1']); "
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True, capture_output=True, text=True, timeout=GUARD_S, env=alone.environment,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_a_request_imports_nothing_that_only_draws(alone: Cli) -> None:
    """httpx would import its own command line, and that rich and pygments: half of what a short command takes.

    A command imports no module of another noun either.
    """
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "forewarn", "vm", "list", "--control-url", "http://127.0.0.1:1"],
        check=False, capture_output=True, text=True, timeout=GUARD_S, env=alone.environment,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "httpx" in imported
    assert not {"rich", "pygments"} & imported
    assert not {"forewarn.cli.event", "forewarn.cli.maintenance", "forewarn.core.fault", "yaml"} & imported


def test_without_the_server_s_libraries_serve_says_what_to_install(alone: Cli) -> None:
    script = (
        "import sys; sys.modules['uvicorn'] = sys.modules['sqlalchemy'] = None; sys.modules['fastapi'] = None; "
        "from forewarn.cli.main import run_command_line; raise SystemExit(run_command_line([sys.argv[1]]))"
    )
    for command in ("serve", "openapi"):
        done = subprocess.run(
            [sys.executable, "-c", script, command],
            check=False, capture_output=True, text=True, timeout=GUARD_S, env=alone.environment, cwd=alone.folder,
        )  # fmt: skip
        assert done.returncode == 1
        assert "pip install 'forewarn[server]'" in done.stderr
        assert done.stderr.count("\n") == 1


# Following the audit log


@contextmanager
def started(alone: Cli, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the command line that is ended with the block."""
    process = subprocess.Popen(
        [*FOREWARN, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=alone.folder, env=alone.environment,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=GUARD_S)


def line_of(file: IO[str] | None) -> str:
    """The next line; the test's own timeout is the limit."""
    assert file is not None
    return file.readline()


def ready(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Where a service answers: metadata and control."""
    line = line_of(process.stdout)
    match = re.fullmatch(r"forewarn is ready: metadata (\S+), control (\S+) \(1 VM on 1 host\)\n", line)
    assert match is not None, line or process.communicate(timeout=GUARD_S)[1]
    return match[1], match[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_following_the_audit_log_outlives_a_restart_and_misses_nothing(alone: Cli) -> None:
    with ExitStack() as stack:
        serve = ("serve", "--control-listen", reserve_address(), "--metadata-listen", "127.0.0.1:0")
        first = stack.enter_context(started(alone, *serve))
        metadata, control = ready(first)
        alone.environment["FOREWARN_CONTROL_URL"] = control
        follower = stack.enter_context(started(alone, "audit-log", "--follow", "--json"))
        assert json.loads(line_of(follower.stdout))["kind"] == "inventory-applied"
        shown = httpx.get(metadata + EVENTS, headers={"Metadata": "true"}, trust_env=False, timeout=GUARD_S)
        assert shown.status_code == 200
        assert json.loads(line_of(follower.stdout))["kind"] == "enabled"
        [made] = alone.json("vm", "restart", "vm-1")
        assert json.loads(line_of(follower.stdout))["maintenance_id"] == made["id"]

        first.send_signal(signal.SIGTERM)
        assert first.wait(GUARD_S) == 0
        assert "; retrying" in line_of(follower.stderr)
        ready(stack.enter_context(started(alone, *serve)))
        alone.json("maintenance", "cancel", made["id"])
        entry = json.loads(line_of(follower.stdout))
        assert (entry["kind"], entry["maintenance_id"]) == ("canceled", made["id"])
        assert line_of(follower.stderr) == "reconnected\n"

        follower.send_signal(signal.SIGINT)
        assert follower.wait(GUARD_S) == 130
        assert follower.communicate(timeout=GUARD_S) == ("", "")


# Starting and stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_serve_within_5_s_with_status_0(alone: Cli, number: signal.Signals) -> None:
    with started(alone, "serve", *ANY_PORT) as process:
        _, control = ready(process)
        token = (alone.folder / "state/operator.token").read_text().strip()
        client = httpx.Client(
            base_url=control, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=GUARD_S
        )
        with client, client.stream("GET", "/v1/watch") as watching:
            assert watching.status_code == 200
            process.send_signal(number)
            assert process.wait(GUARD_S) == 0
        assert process.communicate(timeout=GUARD_S) == ("", "")


@pytest.mark.slow
def test_a_database_that_is_served_already_is_refused(alone: Cli) -> None:
    with started(alone, "serve", *ANY_PORT) as process:
        ready(process)
        assert "is in use by another forewarn" in alone.fails("serve", *ANY_PORT)


def test_a_port_in_use_is_named(alone: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = alone.fails("serve", "--metadata-listen", "127.0.0.1:0", "--control-listen", address)
        assert f"cannot listen on {address}" in line
        line = alone.fails("serve", "--metadata-listen", address, "--control-listen", "127.0.0.1:0")
        assert f"cannot listen on {address}" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--state-dir", "/dev/null/state"], "choose another folder with --state-dir"),
        (["--database-url", "sqlite:////dev/null/forewarn.db"], "choose another folder with --database-url"),
        (["--database-url", "sqlite:///text.db"], "is damaged or not a Forewarn database"),
        (["--inventory", "broken.yaml"], "broken.yaml:2: "),
        (["--inventory", "wrong.yaml"], "vms[0] (a)"),
        (["--control-listen", "0.0.0.0:0"], "use --insecure"),
        (["--tls-key", "text.db", "--tls-certificate", "text.db"], "cannot use certificate text.db"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_bad_start_is_one_line_and_status_1(alone: Cli, arguments: list[str], said: str) -> None:
    (alone.folder / "text.db").write_text("this is no database\n")
    (alone.folder / "broken.yaml").write_text("vms: [\n")
    (alone.folder / "wrong.yaml").write_text("vms: [{name: a}]\n")
    assert said in alone.fails("serve", *ANY_PORT, *arguments)


@pytest.mark.slow
def test_a_certificate_makes_the_control_api_https(alone: Cli) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "certificate.pem",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, cwd=alone.folder, timeout=GUARD_S,
    )  # fmt: skip
    with started(alone, "serve", *ANY_PORT, "--tls-certificate", "certificate.pem", "--tls-key", "key.pem") as process:
        _, control = ready(process)
        assert control.startswith("https://")
        assert "SSL_CERT_FILE" in alone.fails("vm", "list", status=3, FOREWARN_CONTROL_URL=control)
        trusted = {
            "SSL_CERT_FILE": "certificate.pem",
            "FOREWARN_CONTROL_URL": control,
            "HTTPS_PROXY": "http://127.0.0.1:1",
        }
        alone.environment |= trusted
        assert "vm-1" in alone.run("vm", "list").stdout


def test_settings_come_from_flag_then_variable_then_file(alone: Cli) -> None:
    (alone.folder / "forewarn.toml").write_text('notice_max = "7d"\nstart_delay = "2s"\n')
    settings = alone.run("config", "show", "--config", "forewarn.toml", FOREWARN_NOTICE_MAX="8d").stdout
    assert "notice_max = 8d  (from the environment, default: 90d" in settings
    assert "start_delay = 2s  (from the file, default: 0s" in settings


@pytest.mark.slow
def test_serve_takes_settings_by_flag_and_by_name(alone: Cli) -> None:
    arguments = ("--clock", "virtual", "--set", "clock_start=2031-05-06", "--set", "simulate_complete_after=none")
    with started(alone, "serve", *ANY_PORT, *arguments) as process:
        metadata, control = ready(process)
        alone.environment["FOREWARN_CONTROL_URL"] = control
        assert alone.run("clock", "show").stdout == "2031-05-06 00:00:00Z (virtual)\n"
        headers = {"Metadata": "true"}
        assert httpx.get(metadata + EVENTS, headers=headers, trust_env=False, timeout=GUARD_S).status_code == 200
        alone.json("maintenance", "schedule", "--vm", "vm-1", "--type", "Freeze")
        alone.run("clock", "advance", "30d")
        assert [m["state"] for m in alone.json("maintenance", "list")] == ["started"], "completion is by hand here"


def test_a_dry_run_shows_what_would_be_announced_and_announces_nothing(cli: Cli) -> None:
    _end_everything(cli)
    done = cli.run("maintenance", "schedule", "--vm", "WestNO_0", "--type", "freeze", "--dry-run")
    first, second, *_ = done.stdout.splitlines()
    assert first == "dry run: nothing is announced"
    assert second.startswith("would be scheduled: Freeze of WestNO_0")
    assert "maintenance" not in done.stdout, "nothing is there that an id could be given to"
    (planned,) = cli.json("maintenance", "schedule", "--vm", "WestNO_0", "--type", "freeze", "--dry-run")
    assert (planned["dry_run"], planned["state"], "id" in planned) == (True, "planned", False)
    assert cli.json("maintenance", "list", "--active") == []
