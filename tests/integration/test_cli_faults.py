"""`forewarn fault` and `forewarn requests`, as somebody who tests a client uses them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.processes import Served, served
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.slow  # whole processes, for seconds

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


def ask(service: Served, version: str = "2020-07-01") -> int:
    url = service.metadata_url + EVENTS.replace("2020-07-01", version)
    return httpx.get(url, headers={"Metadata": "true"}, trust_env=False, timeout=GUARD_S).status_code


def said(service: Served, *arguments: str, status: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "forewarn", *arguments],
        env=service.environment,
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert ran.returncode == status, ran.stderr
    return ran.stdout + ran.stderr


def test_a_fault_comes_and_goes_and_requests_are_told(tmp_path: Path) -> None:
    with served(tmp_path, "--fault-injection") as service:
        assert ask(service) == 200
        assert said(service, "fault", "inject", "503", "--for", "1h").startswith("fault 1: 503")
        assert "503    all VMs  all" in said(service, "fault", "list")
        assert ask(service) == 503
        assert said(service, "fault", "clear") == "1 fault cleared\n"
        assert said(service, "fault", "list") == "no active faults: see 'forewarn fault inject --help'\n"
        assert ask(service, "2017-03-01") == 200
        told = said(service, "requests").splitlines()
        assert ["503" in line for line in told] == [False, True, False, False]
        assert "fault 503" in told[1]
        assert "unwise: it asks for the preview version 2017-03-01" in told[3]
        [warned] = service.forewarn("requests", "--warnings")
        assert [warning["code"] for warning in warned["warnings"]] == ["version-preview"]
        assert "metadata: true" in said(service, "requests", "--bodies")
        assert "expected one of 404, 410" in said(service, "fault", "inject", "sloth", status=1)


def test_requests_are_followed(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        assert ask(service) == 200
        with subprocess.Popen(
            [sys.executable, "-m", "forewarn", "requests", "--follow", "--json"],
            env=service.environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as follower:
            try:
                assert follower.stdout is not None
                assert '"number": 1' in follower.stdout.readline().replace('":1', '": 1')
                time.sleep(0.1)
                ask(service)
                assert '"number": 2' in follower.stdout.readline().replace('":2', '": 2')
            finally:
                follower.kill()
        assert "fault injection is off" in said(service, "fault", "inject", "500", status=1)
