"""The alert rules and the Grafana dashboard: they name what there is, and a real Prometheus understands them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.documents import ROOT
from tests.support.ports import reserve_address
from tests.support.processes import wait_for
from tests.support.service import Running, running
from tests.support.spans import GUARD_S
from tests.support.wire import Wire, get

FOLDER = ROOT / "packaging" / "prometheus"
ALERTS, TRIALS, CONFIG = FOLDER / "alerts.yaml", FOLDER / "alerts_test.yaml", FOLDER / "prometheus.yaml"
DASHBOARD = ROOT / "packaging" / "grafana" / "forewarn.json"
HAS_TOOLS = shutil.which("promtool") is not None and shutil.which("prometheus") is not None
RATE_INTERVAL = "1m"
SELECTOR = re.compile(r"forewarn_(?!endpoint_|agent_)\w+(?:\{[^}]*\})?")
"""A metric that a service tells, with the labels that are asked for."""

WIDTH = 24
"""Columns of a Grafana dashboard."""

needs_prometheus = pytest.mark.skipif(not HAS_TOOLS, reason="needs Debian's prometheus, which has promtool too")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def shown() -> list[str]:
    """The expressions of the dashboard, with the variable filled in that Grafana fills in."""
    targets = [target for panel in panels() for target in panel.get("targets", ())]
    return [target["expr"].replace("$__rate_interval", RATE_INTERVAL) for target in targets]


def documented() -> set[str]:
    """Every metric of the reference pages, and of the page on hosts."""
    names: set[str] = set()
    for page in ("reference/metrics.md", "reference/agent-metrics.md"):
        rows = re.findall(r"^\| `(\w+)` \| (\w+) ", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        for name, kind in rows:
            names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names | set(
        re.findall(r"`(forewarn_endpoint_\w+)`", (ROOT / "docs/how-to/run-endpoints-on-hosts.md").read_text())
    )


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in rules()), *shown()])
def test_every_metric_that_is_asked_for_is_there(expression: str) -> None:
    named = set(re.findall(r"\bforewarn_\w+", expression))
    assert named <= documented()
    assert named or "up{" in expression


def test_every_alert_says_how_urgent_it_is_what_it_means_and_what_to_look_at() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_every_alert_is_tried_when_it_should_come_and_when_all_is_well() -> None:
    tried = [each for test in yaml.safe_load(TRIALS.read_text())["tests"] for each in test["alert_rule_test"]]
    names = {rule["alert"] for rule in rules()}
    assert {each["alertname"] for each in tried if each["exp_alerts"]} == names
    assert {each["alertname"] for each in tried if not each["exp_alerts"]} == names


def test_no_two_panels_lie_over_each_other_and_each_says_what_it_shows() -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        mine = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not places & mine, panel["title"]
        assert max(x for x, _ in mine) < WIDTH
        places |= mine
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["targets"]
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize(
    "words",
    [["check", "rules", "--lint=all", "--lint-fatal", ALERTS.name], ["check", "config", CONFIG.name]],
    ids=["rules", "config"],
)
def test_promtool_finds_nothing(words: list[str]) -> None:
    done = subprocess.run(["promtool", *words], cwd=FOLDER, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_prometheus
def test_each_alert_comes_when_it_should_and_only_then() -> None:
    assert _trials(FOLDER).returncode == 0


@pytest.mark.slow
@needs_prometheus
@pytest.mark.parametrize("missing", [rule["alert"] for rule in rules()])
def test_an_alert_that_never_comes_is_noticed(tmp_path: Path, missing: str) -> None:
    content = yaml.safe_load(ALERTS.read_text())
    for group in content["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == missing:
                rule["expr"] = f"({rule['expr']}) and vector(0) > 1"
    (tmp_path / ALERTS.name).write_text(yaml.safe_dump(content))
    shutil.copy(TRIALS, tmp_path)
    assert _trials(tmp_path).returncode != 0


def _trials(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", "test", "rules", TRIALS.name], cwd=folder, check=False, capture_output=True, text=True
    )


# A Prometheus that asks a real service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as made:
        yield made


@pytest.fixture
def prometheus(tmp_path: Path, service: Running) -> Iterator[httpx.Client]:
    """One that asks that service twice a second, and is asked through this client."""
    content = yaml.safe_load(CONFIG.read_text())
    content["global"] = {"scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms"}
    content["rule_files"] = [str(ALERTS)]
    target = service.service.control_url.removeprefix("http://")
    content["scrape_configs"] = [{"job_name": "forewarn", "static_configs": [{"targets": [target]}]}]
    with asking(tmp_path, content) as client:
        yield client


@contextmanager
def asking(folder: Path, configuration: dict[str, Any]) -> Iterator[httpx.Client]:
    """A Prometheus with that configuration, asked through this client."""
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = reserve_address()
    words = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(["prometheus", *words, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=GUARD_S) as client:
                yield client
        finally:
            process.terminate()
            process.wait(GUARD_S)


def ask(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    try:
        answer = client.get("/api/v1/query", params={"query": expression})
    except httpx.TransportError:
        return []  # it has yet to begin
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return []  # it has yet to read what it keeps
    assert answer.status_code == httpx.codes.OK, answer.text
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


@pytest.mark.slow
@needs_prometheus
def test_a_prometheus_that_asks_a_real_service_can_draw_the_dashboard(
    prometheus: httpx.Client, service: Running
) -> None:
    def is_seen() -> bool:
        for source, status in ((service.web[0].address, httpx.codes.OK), (service.stranger, httpx.codes.NOT_FOUND)):
            with Wire(service.address, source) as wire:
                assert wire.ask(get()).status == status
        return bool(ask(prometheus, f'rate(forewarn_requests_total{{status="200"}}[{RATE_INTERVAL}]) > 0'))

    with service.operator() as operator:
        operator.post("/v1/subscriptions", json={"name": "chat", "url": "http://127.0.0.1:9/"})
    assert wait_for(is_seen)
    assert wait_for(lambda: ask(prometheus, "forewarn_undelivered_age_seconds"))
    # A label that is spelt wrong would find nothing for ever. A service that is well has no 5xx.
    selectors = {each for text in (*(rule["expr"] for rule in rules()), *shown()) for each in SELECTOR.findall(text)}
    for selector in sorted(selectors - {'forewarn_requests_total{status=~"5.."}'}):
        assert wait_for(partial(ask, prometheus, selector)), selector
    for expression in shown():
        # A rate wants two looks at a line that may have begun only now.
        assert not SELECTOR.search(expression) or wait_for(partial(ask, prometheus, expression)), expression
    assert ask(prometheus, "sum(forewarn_leader)")[0]["value"][1] == "1"
    # All is well but for the caller of no VM above, of which nobody hears within these seconds: the alert waits. Rules
    # that were evaluated before the first look at the service have found no leader, and do so no more at the next one.
    assert wait_for(lambda: raised(prometheus) <= {("ForewarnUnknownCallers", "pending")}), raised(prometheus)


def raised(prometheus: httpx.Client) -> set[tuple[str, str]]:
    return {(each["metric"]["alertname"], each["metric"]["alertstate"]) for each in ask(prometheus, "ALERTS")}


# With a token


def test_a_read_only_token_is_all_that_metrics_need(tmp_path: Path) -> None:
    with running(tmp_path, control_listen="0.0.0.0:0", insecure=True) as service:
        url = service.service.control_url

        def look(token: str | None) -> int:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return httpx.get(f"{url}/metrics", headers=headers, trust_env=False, timeout=GUARD_S).status_code

        assert look(None) == httpx.codes.UNAUTHORIZED
        assert look(token_of(service, Role.READ_ONLY)) == httpx.codes.OK
        assert look(token_of(service, Role.TENANT)) == httpx.codes.FORBIDDEN


def test_the_pages_and_examples_ask_for_no_operator_s_token() -> None:
    """Whatever reads only gets a token that can only read."""
    page = (ROOT / "docs/how-to/watch-with-prometheus.md").read_text()
    (command,) = re.findall(r"forewarn token create .*", page)
    assert "--role read-only" in command
    assert command in CONFIG.read_text()
    for text in (page, CONFIG.read_text()):
        assert "operator.token" not in text
        assert "`operator`" not in text


@pytest.mark.slow
@needs_prometheus
def test_a_prometheus_with_the_token_of_the_example_sees_the_service(tmp_path: Path) -> None:
    wanted = re.sub(r"^( +)# (authorization:)", r"\1\2", CONFIG.read_text(), flags=re.MULTILINE)
    content = yaml.safe_load(wanted)
    content["global"] = {"scrape_interval": "500ms", "scrape_timeout": "400ms"}
    content["rule_files"] = [str(ALERTS)]
    (job,) = (each for each in content["scrape_configs"] if each["job_name"] == "forewarn")
    content["scrape_configs"] = [job]
    with running(tmp_path, control_listen="0.0.0.0:0", insecure=True) as service:
        (tmp_path / job["authorization"]["credentials_file"]).write_text(token_of(service, Role.READ_ONLY) + "\n")
        job["static_configs"] = [{"targets": [service.service.control_url.removeprefix("http://")]}]
        with asking(tmp_path, content) as client:
            assert wait_for(lambda: ask(client, 'up{job="forewarn"} == 1'))
            assert wait_for(lambda: ask(client, "forewarn_leader"))
