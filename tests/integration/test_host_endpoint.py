"""`forewarn endpoint` beside `forewarn serve`, as real processes: filled, cut off, refused, started without it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.ports import reserve_address
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S
from tests.support.wire import Answer, Wire, approval, get, post

INVENTORY = """
hosts: [{name: host-1}, {name: host-2}]
scopes: [{name: web, kind: availability-set}]
vms:
  - {name: web-0, host: host-1, scope: web, fault_domain: 0, addresses: [127.0.0.11]}
  - {name: db-0, host: host-1, addresses: [127.0.0.12]}
  - {name: web-1, host: host-2, scope: web, fault_domain: 1, addresses: [127.0.0.13]}
"""
WEB_0, DB_0, WEB_1 = "127.0.0.11", "127.0.0.12", "127.0.0.13"
SCHEDULE = ("maintenance", "schedule", "--type", "Freeze", "--vm")


@dataclass
class Endpoint:
    """A `forewarn endpoint` that answers."""

    process: subprocess.Popen[str]
    address: tuple[str, int]
    url: str
    log: Path

    def ask(self, source: str) -> Answer:
        with Wire(self.address, source) as wire:
            return wire.ask(get())

    def document(self, source: str) -> Any:  # noqa: ANN401 - a document
        answer = self.ask(source)
        assert answer.status == 200, (answer.status, answer.body, self.log.read_text())
        return answer.json

    def approve(self, source: str, event_id: str) -> Answer:
        with Wire(self.address, source) as wire:
            return wire.ask(post(approval(event_id)))

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=GUARD_S).text
        return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    with served(tmp_path, "--inventory", str(tmp_path / "inventory.yaml")) as running:
        yield running


def token(service: Served, folder: Path, host: str = "host-1") -> Path:
    file = folder / f"{host}.token"
    file.write_text(service.forewarn("host", "create-token", host)["token"])
    return file


@contextmanager
def endpoint(
    service: Served,
    folder: Path,
    host: str = "host-1",
    token_file: Path | None = None,
    urls: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[Endpoint]:
    log = folder / f"{host}.log"
    words = ["--host", host, "--token-file", str(token_file or token(service, folder, host))]
    for url in urls or (service.control_url,):
        words += ["--control-url", url]
    words += [
        "--metadata-listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
        "--state-file",
        str(folder / f"{host}.json"),
        *more,
    ]
    with log.open("a") as err:
        command = [sys.executable, "-m", "forewarn", "endpoint", *words]
        environment = os.environ | dict(environment or {})
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        urls_told = re.findall(r"http://[^\s,]+", line)
        assert urls_told, log.read_text()
        parts = urlsplit(urls_told[0])
        yield Endpoint(process, (str(parts.hostname), int(parts.port or 0)), urls_told[1], log)
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(GUARD_S)
        if process.stdout is not None:
            process.stdout.close()


def test_a_host_shows_what_the_control_plane_says_and_passes_approvals_on(service: Served, tmp_path: Path) -> None:
    """R2, R49, R58, R67; invariants 5 and 8."""
    with endpoint(service, tmp_path) as host:
        wait_for(lambda: host.ask(WEB_0).status == 200)
        assert host.document(WEB_0) == {"DocumentIncarnation": 1, "Events": []}
        [made] = service.forewarn(*SCHEDULE, "web-0")
        wait_for(lambda: host.document(WEB_0)["Events"])
        assert host.document(DB_0)["Events"] == []
        assert host.ask(WEB_1).status == 404  # it runs elsewhere
        [event] = host.document(WEB_0)["Events"]
        assert (event["EventStatus"], event["Resources"], event["EventType"]) == ("Scheduled", ["web-0"], "Freeze")
        assert event["NotBefore"].endswith("GMT")
        assert host.approve(DB_0, event["EventId"]).status == 400  # it was never shown to it
        assert host.approve(WEB_0, event["EventId"]).status == 200
        wait_for(lambda: host.document(WEB_0)["Events"][0]["EventStatus"] == "Started")
        entries = service.forewarn("audit-log", "--maintenance", made["id"])
        [approved] = [entry for entry in entries if entry["kind"] == "approved"]
        assert (approved["actor"], approved["source_address"], approved["api_version"]) == (
            "vm:web-0",
            WEB_0,
            "2020-07-01",
        )


@pytest.mark.slow
def test_both_answer_with_the_same_bytes(service: Served, tmp_path: Path) -> None:
    parts = urlsplit(service.metadata_url)
    with endpoint(service, tmp_path) as host:
        wait_for(lambda: host.ask(WEB_0).status == 200)
        service.forewarn(*SCHEDULE, "web-0")
        wait_for(lambda: host.document(WEB_0)["Events"])
        for version in ("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-08-01", "2020-07-01"):
            with Wire((str(parts.hostname), int(parts.port or 0)), WEB_0) as wire:
                theirs = wire.ask(get(version)).lasting
            with Wire(host.address, WEB_0) as wire:
                assert wire.ask(get(version)).lasting == theirs


@pytest.mark.slow
def test_without_a_control_plane_documents_are_served_and_nothing_is_promised(tmp_path: Path) -> None:
    """Never a false 200; and a restart of the endpoint finds what was known on the disk."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    listen = ("--control-listen", reserve_address())
    with served(tmp_path, "--inventory", str(tmp_path / "inventory.yaml"), *listen) as service:
        file = token(service, tmp_path)
        with endpoint(service, tmp_path, token_file=file) as host:
            wait_for(lambda: host.ask(WEB_0).status == 200)
            service.forewarn(*SCHEDULE, "web-0")
            wait_for(lambda: host.document(WEB_0)["Events"])
            shown = host.document(WEB_0)
            state = tmp_path / "host-1.json"
            wait_for(lambda: state.exists() and shown["Events"][0]["EventId"] in state.read_text())
            service.process.send_signal(signal.SIGKILL)
            service.process.wait()
            assert host.document(WEB_0) == shown
            refused = host.approve(WEB_0, shown["Events"][0]["EventId"])
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            time.sleep(0.3)
            assert host.metric("forewarn_endpoint_age_seconds") > 0.3
        with endpoint(service, tmp_path, token_file=file) as again:
            assert again.document(WEB_0) == shown
            assert again.approve(WEB_0, shown["Events"][0]["EventId"]).status == 503
            with served(tmp_path, *listen):
                wait_for(lambda: again.approve(WEB_0, shown["Events"][0]["EventId"]).status == 200)
                wait_for(lambda: again.document(WEB_0)["Events"][0]["EventStatus"] == "Started")
            assert again.document(WEB_0)["DocumentIncarnation"] == 3


@pytest.mark.slow
def test_vms_come_and_go_with_the_inventory(service: Served, tmp_path: Path) -> None:
    with endpoint(service, tmp_path) as host:
        wait_for(lambda: host.ask(DB_0).status == 200)
        file = tmp_path / "other.yaml"
        file.write_text(INVENTORY.replace("name: db-0, host: host-1", "name: db-0, host: host-2"))
        service.forewarn("inventory", "apply", str(file))
        wait_for(lambda: host.ask(DB_0).status == 404)
        assert host.ask(WEB_0).status == 200


def test_a_token_sees_its_own_host_only_and_may_be_revoked(service: Served, tmp_path: Path) -> None:
    file = token(service, tmp_path)
    headers = {"authorization": f"Bearer {file.read_text()}"}
    with httpx.Client(base_url=service.control_url, headers=headers, timeout=GUARD_S) as client:
        others = [
            client.get("/v1/hosts/host-2/watch"),
            client.post("/v1/hosts/host-2/requests", json={"vms": {}}),
            client.post("/v1/hosts/host-2/approvals", json={"vm": "web-1", "event_ids": []}),
            client.post("/v1/hosts/host-1/approvals", json={"vm": "web-1", "event_ids": []}),
            client.post("/v1/hosts/host-1/requests", json={"vms": {"web-1": "2026-01-01T00:00:00Z"}}),
        ]
        assert [answer.status_code for answer in others] == [403] * 5
        operators = [client.get("/v1/vms"), client.post("/v1/hosts/host-1/tokens"), client.get("/v1/audit-log")]
        assert [answer.status_code for answer in operators] == [403] * 3
        assert client.post("/v1/hosts/host-1/requests", json={"vms": {}}).status_code == 200
        [known] = service.forewarn("host", "tokens", "host-1")
        assert "token" not in {name for name, value in known.items() if value is not None}
        service.forewarn("host", "revoke-token", "host-1", known["id"], "--yes")
        assert client.post("/v1/hosts/host-1/requests", json={"vms": {}}).status_code == 401
    kinds = [entry["kind"] for entry in service.forewarn("audit-log")]
    assert {"token-created", "token-revoked"} <= set(kinds)


@pytest.mark.slow
def test_an_endpoint_that_is_not_wanted_says_so(service: Served, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.token"
    wrong.write_text("not-a-token")
    with endpoint(service, tmp_path, token_file=wrong) as host:
        wait_for(lambda: "the control plane answered 401" in host.log.read_text())
        assert host.ask(WEB_0).status == 503
        ready = httpx.get(f"{host.url}/readyz", timeout=GUARD_S)
        assert (ready.status_code, ready.json()["status"]) == (503, "waiting for the control plane")


@pytest.mark.slow
def test_two_endpoints_for_one_host_show_the_same(service: Served, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with endpoint(service, tmp_path) as one, endpoint(service, other) as two:
        wait_for(lambda: one.ask(WEB_0).status == 200)
        service.forewarn(*SCHEDULE, "web-0")
        wait_for(lambda: one.document(WEB_0)["Events"])
        wait_for(lambda: two.document(WEB_0) == one.document(WEB_0))
        assert two.approve(WEB_0, one.document(WEB_0)["Events"][0]["EventId"]).status == 200
        wait_for(lambda: one.document(WEB_0)["Events"][0]["EventStatus"] == "Started")


def test_names_that_are_not_of_this_host_are_refused_on_both_listeners(service: Served, tmp_path: Path) -> None:
    """A page whose name was made to lead here (DNS rebinding) learns nothing."""
    with endpoint(service, tmp_path, more=("--metadata-host-name", "metadata.internal")) as host:
        wait_for(lambda: host.ask(WEB_0).status == 200)
        for name, status in (("evil.example", 400), ("metadata.internal:80", 200), ("localhost", 200)):
            with Wire(host.address, WEB_0) as wire:
                assert wire.ask(get().replace(b"169.254.169.254", name.encode())).status == status
            for path in ("/metrics", "/healthz", "/readyz"):
                assert httpx.get(host.url + path, headers={"host": name}, timeout=GUARD_S).status_code == status
        assert httpx.get(f"{host.url}/metrics", timeout=GUARD_S).status_code == 200


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"--control-url": "ftp://x"}, "is expected to be a URL such as https://control.example:8170"),
        ({"--token-file": "/no/such"}, "cannot read the token file /no/such: No such file or directory"),
        ({"--ca-file": "/no/such"}, "cannot use the certificates of /no/such: No such file or directory"),
        ({"--metadata-listen": "here"}, "here"),
        ({"--metadata-host-name": "a:80"}, "--metadata-host-name: 'a:80' is not a host name"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, change: dict[str, str], expected: str) -> None:
    file = tmp_path / "token"
    file.write_text("x")
    words = {"--host": "h", "--token-file": str(file), "--control-url": "http://127.0.0.1:1"} | change
    command = [sys.executable, "-m", "forewarn", "endpoint", *(word for pair in words.items() for word in pair)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_S, check=False)
    assert (ran.returncode, expected in ran.stderr) == (1, True), ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_state_of_another_host_is_refused(service: Served, tmp_path: Path) -> None:
    with endpoint(service, tmp_path) as host:
        wait_for((tmp_path / "host-1.json").exists)
        wait_for(lambda: host.ask(WEB_0).status == 200)  # the file is written before the state is served
    state = json.loads((tmp_path / "host-1.json").read_text())
    (tmp_path / "host-2.json").write_text(json.dumps(state))
    with pytest.raises(AssertionError, match="belongs to host 'host-1'"), endpoint(service, tmp_path, "host-2"):
        pass


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Signed by itself, with its key beside it."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(tmp_path / "control.key"), "-out", str(tmp_path / "control.pem"), "-days", "2"]
    command += ["-subj", "/CN=control", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True, timeout=GUARD_S)
    return tmp_path / "control.pem"


@pytest.mark.slow
def test_between_host_and_control_plane_there_is_tls(tmp_path: Path, certificate: Path) -> None:
    """The whole way over it: documents, approvals, and who asked."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    words = ["--inventory", str(tmp_path / "inventory.yaml"), "--tls-certificate", str(certificate)]
    words += ["--tls-key", str(certificate.with_suffix(".key"))]
    trusting = {"SSL_CERT_FILE": str(certificate)}  # for the operator's commands
    with served(tmp_path, *words, settings=trusting) as service:
        assert service.control_url.startswith("https://")
        with endpoint(service, tmp_path, more=("--ca-file", str(certificate))) as host:
            wait_for(lambda: host.ask(WEB_0).status == 200)
            service.forewarn(*SCHEDULE, "web-0")
            wait_for(lambda: host.document(WEB_0)["Events"])
            [event] = host.document(WEB_0)["Events"]
            assert host.approve(WEB_0, event["EventId"]).status == 200
            wait_for(lambda: host.document(WEB_0)["Events"][0]["EventStatus"] == "Started")


@pytest.mark.slow
def test_a_control_plane_that_nobody_vouches_for_is_told_nothing(tmp_path: Path, certificate: Path) -> None:
    """Without the certificate the token does not leave this host."""
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    words = ["--inventory", str(tmp_path / "inventory.yaml"), "--tls-certificate", str(certificate)]
    words += ["--tls-key", str(certificate.with_suffix(".key"))]
    with (
        served(tmp_path, *words, settings={"SSL_CERT_FILE": str(certificate)}) as service,
        endpoint(service, tmp_path) as host,
    ):
        wait_for(lambda: "CERTIFICATE_VERIFY_FAILED" in host.log.read_text())
        assert host.ask(WEB_0).status == 503
