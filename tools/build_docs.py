"""Generate the reference pages from the code, some with the modules in ``tools/reference``.

``python tools/build_docs.py`` writes all pages. With ``--check``, it only lists stale pages, and fails if there are any.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import typer.main
from prometheus_client import Metric
from pydantic import BaseModel

from forewarn import errors
from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.configuration import Configuration
from forewarn.agent.exposition import list_families
from forewarn.agent.handlers import AnyHandler
from forewarn.agent.metrics import AgentMetrics
from forewarn.agent.record import EventRecord
from forewarn.agent.rule import EventStep, Hook, Rule
from forewarn.agent.steps import VARIABLES, build_payload
from forewarn.agent.webhook_body import PLACEHOLDERS, READY
from forewarn.cli.main import make_app
from forewarn.cli.openapi import openapi_document
from forewarn.cli.scenario import format_scenario_time
from forewarn.clock import RealClock
from forewarn.config.settings import Settings
from forewarn.core.causes import CAUSES, MINIMUM_NOTICE
from forewarn.core.fault import FAULTS
from forewarn.core.maintenance.lifecycle import EVENT_STATUS, TRANSITIONS
from forewarn.core.model import ACTIVE_STATES, MaintenanceState
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.traffic import EndpointLimits, Traffic
from forewarn.observability.metrics import Metrics
from forewarn.publishing.feed import Feed
from forewarn.testing.scenario.scenario_loader import Scenario, load_scenario, shipped_scenarios
from forewarn.testing.scenario.scenario_schema import encode_scenario_schema
from forewarn.testing.trial.player import ScenarioPlayer, StepOutcome, create_lab
from forewarn.util.duration import format_duration
from forewarn.wire.advice import ADVICE
from forewarn.wire.document import Event
from forewarn.wire.imds import VERSIONS, Dialect
from forewarn.wire.notification import EventData, MaintenanceData, PingData, RolloutData

sys.path[:0] = [str(Path(__file__).parent.parent)]  # this file is run by its path

from tools.commands import leaves  # noqa: E402 - the path has to be set before
from tools.reference import surroundings  # noqa: E402 - as above
from tools.reference.conformance import conformance  # noqa: E402 - as above
from tools.reference.library import library  # noqa: E402 - as above
from tools.reference.openapi import control_api  # noqa: E402 - as above
from tools.reference.plain import default_of as _default  # noqa: E402 - as above
from tools.reference.plain import row as _row  # noqa: E402 - as above
from tools.reference.plain import table as _table  # noqa: E402 - as above

NOTIFIED: dict[str, type[BaseModel]] = {
    "event": EventData,
    "maintenance": MaintenanceData,
    "rollout": RolloutData,
    "ping": PingData,
}
ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
NOTE = "<!-- Made by `make reference`; changes belong in the code it is made from. -->\n\n"


def settings() -> str:
    """Return the page of all settings of `forewarn serve`."""
    text = (
        "# Settings\n\nSources of a value, in order of precedence: command-line flag, environment variable, TOML file (`--config`), default.\n"
        "The environment variable of `database_url`, for example, is `FOREWARN_DATABASE_URL`. Any setting can be given as "
        "`--set NAME=VALUE`.\nWrite durations as `90s`, `15m`, `24h` or `7d`. Numbers such as R67 and A3 refer to the "
        "requirements of the protocol; [conformance](conformance.md)\nexplains the letters.\n\n"
    )
    text += _table("setting", "default", "meaning")
    for name, field in Settings.model_fields.items():
        text += _row(f"`{name}`", _default(field), field.description or "")
    return text


def error_codes() -> str:
    """Return the page of all errors, from the tree in `forewarn.errors`."""
    text = (
        "# Errors\n\nThe control API answers every error as "
        '`{"error": {"code": "…", "message": "…", "details": {…}}}`.\n`code` is stable and meant for programs; `message` '
        "is one line for a person.\nThe table also lists errors that only commands, the agent and host endpoints report. "
        "`class` is the class in Python.\n\n"
    )
    text += _table("code", "status", "class", "meaning")
    for name in errors.__all__:
        kind = getattr(errors, name)
        if not issubclass(kind, errors.ForewarnError):
            continue
        text += _row(f"`{kind.code}`", kind.status, f"`{name}`", (kind.__doc__ or "").splitlines()[0])
    return text + (
        "\nIf a request does not fit the schema, the control API answers `422 invalid_request`, not 400. If the path is unknown, "
        "the answer\nis `404 not_found`; if the body exceeds the limit, `413 too_large`.\n\nCommands write the "
        "message of an error to stderr. Their exit status is 1 (failed), 2 (usage) or 3 (the service cannot be reached).\n"
    )


def metrics() -> str:
    """Return the page of all metrics of `/metrics`."""
    feed = Feed(Dialect())
    collector = Metrics(Traffic(EndpointLimits(), len(feed.versions), FaultRegistry(RealClock())), feed, lambda: 0)
    text = "# Metrics\n\nThe service exposes these metrics at `GET /metrics` on the control address, in the Prometheus text format. If the address is on loopback, no token is needed.\n\n"
    text += _table("metric", "type", "labels", "meaning")
    for family in sorted(collector.registry.collect(), key=lambda f: f.name):
        suffix = "_total" if family.type == "counter" else ""
        text += _row(f"`{family.name}{suffix}`", family.type, ", ".join(_label_names(family)), family.documentation)
    return text + "\n" + surroundings.endpoint_metrics()


def _label_names(family: Metric) -> list[str]:
    """Return the labels of a metric, in order.

    A metric whose label values are known only at run time has no samples here, so its declared labels are read.
    """
    declared: tuple[str, ...] = getattr(family, "_labelnames", ())  # no public attribute has them
    sampled = {label for sample in family.samples for label in sample.labels} - {"le"}
    return [*declared, *sorted(sampled.difference(declared))]


def lifecycle() -> str:
    """Return the page of the lifecycle, with a diagram of its table of transitions."""
    text = (
        "# Lifecycle\n\nStates of a maintenance, from `TRANSITIONS` in `core/maintenance/lifecycle.py`. `strike` is a "
        "hardware failure.\n\n```mermaid\nstateDiagram-v2\n"
    )
    for (state, trigger), target in TRANSITIONS.items():
        text += f"    {state or '[*]'} --> {target}: {trigger}\n"
    for end in (s for s in MaintenanceState if s not in ACTIVE_STATES):
        text += f"    {end} --> [*]\n"
    text += "```\n\nStatus of a maintenance's events in each state:\n\n"
    text += _table("maintenance", "EventStatus", "in documents")
    for each in MaintenanceState:
        status = EVENT_STATUS.get(each, "no events yet")
        text += _row(each, status, "yes" if status in {"Scheduled", "Started"} else "no")
    text += (
        "\nAn event of a scheduled or started maintenance is `Withdrawn`, and the documents do not show it, in two cases:\n\n"
        "- For a day (`disable_after`), no VM of the event's audience has sent a request.\n"
        "- All VMs that the event affects are gone.\n\n"
        "## Causes\n\n"
    )
    text += _table("cause", "type", "source", "notice", "impact in seconds; -1: unknown", "description")
    for cause in CAUSES.values():
        notice = "none" if cause.is_immediate else format_duration(cause.notice or MINIMUM_NOTICE[cause.type])
        text += _row(
            f"`{cause.name}`", cause.type, cause.source, notice, cause.duration_s, cause.description or "(empty)"
        )
    return text


def api_versions() -> str:
    """Return the page of the api-versions of the metadata protocol."""
    text = "# Versions of the metadata protocol\n\n" + _table(
        "api-version", "event types", "additional members of an event", "VM names", "Metadata header"
    )
    order = ["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]
    for version in VERSIONS:
        types = ", ".join(t for t in order if t in version.types)
        names = "start with `_`, except in cloud services" if version.prefixes_names else "as declared"
        header = "required" if version.requires_metadata else "not enforced"
        text += _row(version.name, types, ", ".join(version.members) or "none", names, header)
    return text


def notifications() -> str:
    """Return the page of notifications, with the schemas of `data`."""
    text = (
        "# Notifications\n\nNotifications are CloudEvents 1.0 in structured JSON, signed according to Standard Webhooks: see [how to get "
        "them](../how-to/notify.md). `dataschema` names the schema of `data`. Members may be added to a schema `v1`, "
        "but are never changed or removed.\n"
    )
    for noun, model in NOTIFIED.items():
        schema = json.dumps(model.model_json_schema(mode="serialization"), indent=1)
        text += f"\n## `urn:forewarn:{noun}:v1`\n\n{inspect.getdoc(model)}\n\n```json\n{schema}\n```\n"
    return text


def commands() -> str:
    """Return the page of all commands, with their help."""
    text = "# Commands\n\nEvery command has `--help` with examples.\n"
    for words, command in leaves(typer.main.get_command(make_app()), ("forewarn",)):
        text += f"\n## {' '.join(words)}\n\n{_help(command)}\n"
        options = [p for p in command.params if p.name != "help"]
        if options:
            text += "\n" + _table("argument", "what it is")
            for option in options:
                names = (
                    ", ".join(f"`{o}`" for o in option.opts)
                    if option.opts[0].startswith("-")
                    else f"`{(option.metavar or option.name.upper()).strip('[]')}`"
                )
                text += _row(names, (getattr(option, "help", "") or "").strip())
    return text


def _help(command: Any) -> str:  # noqa: ANN401 - a click command
    parts = [(command.help or "").strip(), (command.epilog or "").strip()]
    return "\n\n".join(part for part in parts if part)


def agent_configuration() -> str:
    """Return the page of all keys of the agent's configuration file."""
    text = (
        "# The agent's configuration\n\nThe configuration is one TOML file, by default `/etc/forewarn/agent.toml`; on Windows, "
        "by default\n`%ProgramData%\\forewarn\\agent.toml`. An unknown key is an error. Write durations as `90s`, `15m` or `24h`.\n"
        "`forewarn agent check` explains what the agent would do with your file. Errors name the key:\n"
        "`rule[1].approve` is the key `approve` of the second rule.\n\n"
    )
    text += _keys(Configuration)
    text += "\n## `[together]`\n\n" + _keys(TogetherSettings)
    text += (
        "\n## `[[rule]]`\n\nThe first rule that matches an event decides what the agent does. If no rule matches, the agent only logs the event.\n\n"
        + _keys(Rule)
    )
    text += (
        "\n## Hooks\n\nA hook is a list of strings (a command with its arguments) or a table with these keys. "
        "[Hooks](agent-hooks.md) describes\nthe input of hooks.\n\n"
    )
    text += _keys(Hook)
    text += "\n## Handlers\n\nIn a table of `handlers`, the key `use` names the handler. Every handler also takes `timeout`, "
    text += "the time limit for\none step of the handler (default `5m`).\n"
    for handler in typing.get_args(AnyHandler):
        summary = (handler.__doc__ or "").split("\n\n")[0].replace("\n", " ")
        text += f"\n### `{handler.__struct_config__.tag}`\n\n{summary}\n\n" + _keys(
            handler, without=frozenset({"timeout"})
        )
    return text


def _keys(kind: Any, without: frozenset[str] = frozenset()) -> str:  # noqa: ANN401 - a struct
    """Return a table of a struct's fields, described as in its docstring."""
    told = _attributes(kind)
    table = _table("key", "default", "what it is")
    for field in msgspec.structs.fields(kind):
        if field.name not in without:
            table += _row(f"`{field.name}`", _shown(field), told[field.name])
    return table


def _attributes(kind: Any) -> dict[str, str]:  # noqa: ANN401 - a class
    """Return the descriptions in the section ``Attributes:`` of a docstring, by name."""
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.replace("``", "`").split()) for name, text in found}


def _shown(field: Any) -> str:  # noqa: ANN401 - msgspec's FieldInfo
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is None or value in ("", (), {}) or isinstance(value, msgspec.Struct):
        return "not set"
    if isinstance(value, bool | str | int):
        return f"`{str(value).lower() if isinstance(value, bool) else value}`"
    return f"`{format_duration(value)}`" if hasattr(value, "total_seconds") else f"`{', '.join(map(str, value))}`"


def agent_hooks() -> str:
    """Return the page of hooks: when they run, and their input."""
    text = "# Hooks of the agent\n\n## Steps\n\n" + _table("step", "key of the rule", "when")
    keys = {"before-approval": "before_approval"}
    members = re.findall(r'    (\w+) = "([\w-]+)"\n    """(.*?)"""', inspect.getsource(EventStep))
    for _, step, when in members:
        text += _row(f"`{step}`", f"`{keys.get(step, step)}`", when)
    text += "\n## Environment\n\n" + _table("variable", "what it holds")
    for name, what in VARIABLES.items():
        text += _row(f"`{name}`", what)
    record = EventRecord(
        event=_EXAMPLE_EVENT, rule=Rule(name="drain", prepare=(("/usr/local/bin/drain",),)), seen_at=_EXAMPLE_MOMENT
    )
    payload = json.dumps(json.loads(build_payload(record, EventStep.PREPARE, "db")), indent=2)
    text += f"\n## Standard input, and the body of webhooks\n\n```json\n{payload}\n```\n"
    return (
        text
        + _webhook_bodies()
        + (
            "\n## Rules for hooks\n\n"
            "- A command runs in a separate process group, and without a shell unless the hook has the key `shell`. At a time-out, or when its\n  step is stopped, the whole group gets SIGTERM, and SIGKILL after 3 s.\n"
            "- A command succeeds with exit status 0, a webhook with any 2xx status.\n"
            "- `timeout` limits one attempt of a hook. Regardless of `timeout`, the agent stops the steps `prepare` and `before-approval` 5 s\n  (`margin`) before `NotBefore`.\n"
            "- A hook can run more than once for the same event: when a failed hook is retried, and when a crash or restart of the agent has\n  interrupted a step. Write hooks so that a second run does no harm.\n"
            "- If the agent cannot write its state file, for example because the disk is full, it still runs the steps, but does not approve\n  an event that it has prepared for: after a reboot, it would not know what to undo. The event starts at `NotBefore`, unless the\n  file can be written earlier, or a person runs `forewarn agent approve`.\n"
            "- When a step succeeds, the log shows the output of its commands. When a command fails, the log shows only the last line of its output.\n  In both cases, `forewarn agent status --json` shows the last 4,096 characters of the output.\n"
        )
    )


def _webhook_bodies() -> str:
    """Return the section about bodies of webhooks: placeholders and templates."""
    text = (
        "\n## Bodies of webhooks by template\n\nA webhook's `template` names the service that gets the message. The webhook's `body` replaces the built-in message with "
        "your own\nJSON. In the strings of the JSON, a placeholder such as `$event_type` or `${event_type}` is replaced by its value,\nand "
        "`$$` by a dollar sign.\nPlaceholders are replaced after the JSON is parsed, so no value can make it invalid. For Slack, Teams and Discord, each value "
        "is also escaped and becomes plain text: one line of at most 300\ncharacters, or `-` if the value is empty. [How to use templates](../how-to/agent-webhooks.md).\n\n"
    )
    text += _table("placeholder", "what it becomes")
    for name, what in PLACEHOLDERS.items():
        text += _row(f"`${name}`", what)
    for name, ready in READY.items():
        if ready.body is not None:
            text += f"\n### `{name}`\n\n```json\n{json.dumps(ready.body, indent=2)}\n```\n"
    return text


_EXAMPLE_MOMENT = datetime(2030, 1, 1, 10, 0, tzinfo=UTC)
_EXAMPLE_EVENT = Event(
    id="602D9444-D2CD-49C7-8624-8643E7171297",
    type="Reboot",
    status="Scheduled",
    resources=("db",),
    not_before=datetime(2030, 1, 1, 10, 15, tzinfo=UTC),
    description="Virtual machine is going to be restarted as requested by authorized user.",
    source="User",
)


def agent_metrics() -> str:
    """Return the page of all metrics of the agent."""
    collector = AgentMetrics(lambda: (), lambda: _EXAMPLE_MOMENT)
    text = "# Metrics of the agent\n\nThe agent exposes these metrics at `GET /metrics`, in the Prometheus text format. The key `listen` in the agent's configuration sets the address.\n\n"
    text += _table("metric", "type", "labels", "meaning")
    for family, labels in list_families(collector):
        suffix = "_total" if family.type == "counter" else ""
        text += _row(f"`{family.name}{suffix}`", family.type, ", ".join(labels), family.documentation)
    return text + (
        "\n## Other paths\n\n"
        + _table("path", "answers")
        + _row("`/healthz`", "200 while the agent runs")
        + _row(
            "`/readyz`",
            "200 when the endpoint has answered recently and the VM's name is known, else 503 with the reason",
        )
        + _row(
            "`/drainz`",
            "200 while this VM may get work, 503 while this VM should get no work; for health checks of load balancers",
        )
        + _row(
            "`/status`",
            "the output of `forewarn agent status --json` if the request carries the token from the folder of "
            "the state file, else 401",
        )
    )


def faults() -> str:
    """Return the page of all kinds of faults, and of all warnings about clients."""
    text = (
        "# Faults and warnings\n\nYou can [cause these faults on purpose](../how-to/inject-faults.md): in a scenario, in a test, or "
        "in a service that was started with\n`--fault-injection`. A fault whose *part affected* is `once` acts only at the "
        "moment of its injection.\nNumbers such as R67 and A21 refer to the requirements of the protocol; [conformance](conformance.md) explains the letters.\n\n"
    )
    text += _table("fault", "part affected", "what a client sees", "what a good client does", "delay")
    for kind in FAULTS.values():
        takes = "" if kind.delay is None else f"`{format_duration(kind.delay)}` by default"
        text += _row(f"`{kind.name}`", kind.place.value, kind.what, kind.advice, takes)
    text += (
        "\n## Warnings\n\n`forewarn requests`, `forewarn try` and the test fixture report these mistakes of clients.\n"
        "*fails* means that other endpoints refuse the request; *unwise* means that a good client avoids this behaviour.\n\n"
    )
    text += _table("code", "what the client does", "requirement", "with other endpoints")
    for row in ADVICE:
        text += _row(f"`{row.code}`", row.text, row.spec, "fails" if row.is_wrong else "unwise")
    return text


def scenarios() -> str:
    """Return the page of the shipped scenarios, with the steps of playing each one."""
    text = (
        "# Scenarios\n\nA handler is a program in a VM that reacts to announced maintenance (events). A scenario is a timeline of "
        "events and faults that tests handlers. Forewarn ships the scenarios on this page. `forewarn try --scenario NAME` runs "
        "a handler in one of them; those marked *(play only)* run with `forewarn scenario play` alone.\n\nThe list below each scenario shows its steps, with virtual times since the beginning of "
        "the scenario: `10:00` is ten minutes, `1:16:00` is one hour and 16 minutes. `●` marks an action, "
        "`!` the beginning or end of faults, `?` a check.\n"
    )
    for name in shipped_scenarios():
        scenario = load_scenario(name)
        lines = [
            f"{format_scenario_time(each.at):>12}  {_MARKS.get(each.verb, '●')} {each.text}"
            for each in asyncio.run(_played(scenario))
        ]
        mark = " (play only)" if scenario.only == "play" else ""
        drawn = "\n".join(line if len(line) <= _DRAWN_MAX else line[: _DRAWN_MAX - 3] + "..." for line in lines)
        text += f"\n## {name}\n\n**{scenario.title}{mark}.** {' '.join(scenario.description.split())}\n\n```text\n{drawn}\n```\n"
    return text


_MARKS = {"expect": "?", "fault": "!", "clear_faults": "!"}
_DRAWN_MAX = 130


async def _played(scenario: Scenario) -> list[StepOutcome]:
    async with create_lab(scenario).running() as lab:
        outcomes = await ScenarioPlayer(scenario, lab).play()
    for each in outcomes:
        if each.failure:
            msg = f"scenario {scenario.name} cannot be shown: line {each.line}: {each.text}: {each.failure}"
            raise RuntimeError(msg)
    return outcomes


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings,
    "errors.md": error_codes,
    "metrics.md": metrics,
    "lifecycle.md": lifecycle,
    "versions.md": api_versions,
    "control-api.md": control_api,
    "commands.md": commands,
    "agent-configuration.md": agent_configuration,
    "agent-hooks.md": agent_hooks,
    "agent-metrics.md": agent_metrics,
    "faults.md": faults,
    "notifications.md": notifications,
    "scenarios.md": scenarios,
    "conformance.md": conformance,
    "environment.md": surroundings.environment,
    "exit-statuses.md": surroundings.exit_statuses,
    "files.md": surroundings.files,
    "audit-log.md": surroundings.audit_log,
    "python.md": library,
}


SCHEMA_FILES = tuple(
    ROOT / folder / "scenario.schema.json"
    for folder in ("docs/reference", "src/forewarn/testing/scenarios", "examples/scenarios")
)
"""Copies of the schema. The first line of each scenario refers to the copy in its folder."""


def stale() -> Iterator[str]:
    """Yield the names of pages and schema files that differ from the generated ones."""
    schema = encode_scenario_schema()
    for path in SCHEMA_FILES:
        if not path.is_file() or path.read_text() != schema:
            yield str(path.relative_to(ROOT))
    for name, make in PAGES.items():
        path = REFERENCE / name
        if not path.is_file() or path.read_text() != _page(make):
            yield name


def _page(make: Callable[[], str]) -> str:
    return NOTE + make()


def main() -> int:
    """Write the pages, or check them with ``--check``."""
    if "--check" in sys.argv[1:]:
        names = list(stale())
        if names:
            print(f"stale: {', '.join(names)}; run make reference")
        return 1 if names else 0
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(_page(make))
    (REFERENCE / "openapi.json").write_text(json.dumps(openapi_document(), indent=1) + "\n")
    for path in SCHEMA_FILES:
        path.write_text(encode_scenario_schema())
    print(f"wrote {len(PAGES) + 2} pages to {REFERENCE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
