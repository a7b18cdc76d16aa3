"""Exit statuses, environment variables and files of the commands; and the kinds of audit log entries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from forewarn.actuators import exec as actuator
from forewarn.agent import steps
from forewarn.agent.configuration import default_config_file, default_state_file
from forewarn.cli.inventory import DIFFERS
from forewarn.client.discovery import VARIABLE
from forewarn.config import Settings
from forewarn.core.model import EntryKind
from forewarn.util.secrets import TOKEN_FILE
from tools.commands import leaves, nouns, words_of
from tools.reference.plain import row, table

__all__ = [
    "EXIT_STATUSES",
    "FILES",
    "audit_log",
    "endpoint_metrics",
    "environment",
    "exit_statuses",
    "files",
    "variables",
]

ROOT = Path(__file__).parents[2]

EXIT_STATUSES = (
    (0, "done"),
    (1, "failed: the service, the other side or a check said no; what and why stands on stderr"),
    (2, "the command line cannot be understood, or `--yes` is missing where no one can be asked"),
    (3, "the service cannot be reached"),
    (DIFFERS, "of `inventory diff`: applying the file would change something"),
    (130, "ended by Ctrl-C"),
    (141, "the reader of the output has gone"),
)
"""Of every command, with what it means."""

FILES = (
    (
        str(Settings.model_fields["database_url"].default).removeprefix("sqlite:///"),
        "the database, in the current folder",
    ),
    (f"~/.local/state/forewarn/{TOKEN_FILE}", "the operator's token; the folder is --state-dir"),
    (str(default_config_file()), "configuration of the agent"),
    (str(default_state_file()), "what the agent keeps over a restart; its tokens lie beside it"),
    ("/etc/forewarn/serve.env", "variables for forewarn-serve.service"),
    ("/var/lib/forewarn/", "database, tokens and state files, where systemd starts it"),
)
"""Files and folders that are used by default, with their contents."""

_ENTRIES = {
    EntryKind.QUEUED: "a maintenance waits for another maintenance of the same VMs or scope",
    EntryKind.SCHEDULED: "a maintenance is announced: its events are in the documents",
    EntryKind.APPROVED: "an event was approved; the entry names the approver, its address and the api-version",
    EntryKind.STARTED: "a maintenance has started; `reason` is set if an operator forced the start",
    EntryKind.DEFERRED: "NotBefore was postponed, at most to the latest start that the operator had set",
    EntryKind.EXTENDED: "NotBefore was postponed to give a tenant more time, as its policy allows",
    EntryKind.IMPACTED: "a maintenance hit its VMs",
    EntryKind.IMPACT_MEASURED: "the duration of the impact was measured",
    EntryKind.COMPLETED: "a maintenance is over, and its events are gone",
    EntryKind.CANCELED: "a maintenance was canceled before it started",
    EntryKind.FAILED: "a maintenance could not be carried out",
    EntryKind.ATTEMPT_FAILED: "a call of the actuator, which carries maintenance out, failed and will be retried",
    EntryKind.ENABLED: "scheduled events were enabled for a scope, because one of its VMs requested them",
    EntryKind.DISABLED: "scheduled events were disabled for a scope, because its VMs sent no requests for a day "
    "(`disable_after`)",
    EntryKind.ANNOUNCED: "a scope was enabled while a maintenance waits, and is now shown its event",
    EntryKind.WITHDRAWN: "events are no longer shown, because scheduled events were disabled for their scope",
    EntryKind.VM_CHANGED: "the state, the host or the model of a VM has changed",
    EntryKind.HOST_FAILED: "a host was reported as failed",
    EntryKind.HOST_RECOVERED: "a failed host works again",
    EntryKind.INVENTORY_APPLIED: "an inventory was applied; `reason` says how much it changed",
    EntryKind.TOKEN_CREATED: "a token was created, for a host, a person or a program",
    EntryKind.TOKEN_REVOKED: "a token was revoked",
    EntryKind.CLOCK_ADVANCED: "a virtual clock was advanced",
    EntryKind.CLOCK_JUMPED: "the clock jumped: nothing that is due starts until an operator confirms it",
    EntryKind.CLOCK_CONFIRMED: "an operator confirmed the clock after a jump",
    EntryKind.ROLLOUT: "a rollout started, paused, resumed or ended",
    EntryKind.FAULT_INJECTED: "a fault was injected",
    EntryKind.FAULT_CLEARED: "faults were cleared",
    EntryKind.REFUSED: "a call was refused, because it had no valid token or was not allowed",
    EntryKind.PRUNED: "old history was deleted; `reason` says how much",
    EntryKind.UNSEEN: "a VM has not requested its events since the announcement, and NotBefore is near",
    EntryKind.LATE: "a maintenance is due but has not started, or takes longer than announced",
    EntryKind.SUBSCRIPTION: "a subscription was created, changed, paused, resumed or deleted",
}


def variables() -> Iterator[tuple[str, str, str]]:
    """Variables that commands read: name, what it holds, and the commands or `every` setting that it is for."""
    found: dict[str, tuple[str, list[str]]] = {}
    for noun, command in nouns():
        for words, leaf in leaves(command, (noun,)):
            for parameter in words_of(leaf):
                if parameter.envvar:
                    said = (parameter.help or "").strip()
                    found.setdefault(str(parameter.envvar), (said, []))[1].append(" ".join(words))
    for name, (said, users) in sorted(found.items()):
        nouns_of_users = {user.partition(" ")[0] for user in users}
        if len(users) <= _FEW:
            yield name, said, ", ".join(f"`{user}`" for user in users)
        else:
            yield name, said, f"`{nouns_of_users.pop()}`" if len(nouns_of_users) == 1 else _CALLERS
    yield "FOREWARN_TOKEN", "The access token itself.", _CALLERS
    yield "FOREWARN_STATE_DIR", "Folder for the operator's token.", f"`serve`, and {_CALLERS}"
    yield VARIABLE, "Address of the metadata endpoint, if it is not 169.254.169.254.", "`agent`, the library"
    yield "TRACEPARENT", "W3C trace that the command is part of; sent to the service with each request.", _CALLERS
    yield (
        "OTEL_…",
        "Settings of OpenTelemetry, if traces are switched on: [trace a maintenance](../how-to/trace.md).",
        "`serve`",
    )
    yield "NO_COLOR", "If not empty, the output has no colours.", "every command"


_FEW = 4
_CALLERS = "every command that calls the service"


def environment() -> str:
    """Every variable that is read, or set for what is called."""
    text = "# Environment\n\n## Variables that are read\n\n" + table("variable", "what it holds", "read by")
    text += "".join(row(f"`{name}`", said, by) for name, said, by in variables())
    text += (
        "\nEvery [setting](settings.md) has a variable as well: `FOREWARN_` and its name in capitals, such as "
        "`FOREWARN_DATABASE_URL`.\n\n## For hooks of the agent\n\nThe agent sets these variables for each hook, and "
        "passes the event on standard input: see [hooks](agent-hooks.md).\n\n"
    ) + table("variable", "what it holds")
    text += "".join(row(f"`{name}`", said) for name, said in steps.VARIABLES.items())
    text += (
        "\n## For commands of the actuator `exec`\n\nThe actuator `exec` runs your commands to carry maintenance out, "
        "and sets these variables: see [carry it out](../how-to/actuators.md).\n\n"
    )
    text += table("variable", "what it holds")
    text += "".join(row(f"`{name}`", said) for name, said in actuator.VARIABLES.items())
    text += row("`TRACEPARENT`", "W3C trace of the call, if [traces](../how-to/trace.md) are switched on")
    text += "\n## For handlers that are tried\n\n`forewarn try` sets these variables for the handler:\n\n"
    text += table("variable", "what it holds")
    text += row("`FOREWARN_ENDPOINT`", "URL of the endpoint, without a path")
    text += row("`FOREWARN_VM`", "name of the handler's VM")
    mark = "random mark by which `forewarn try` finds the processes that the handler starts"
    return text + row("`FOREWARN_TRIAL`", mark)


def exit_statuses() -> str:
    """What a command, and what is called by Forewarn, says by its exit status."""
    text = "# Exit statuses\n\nOf every command. The error is one line on stderr.\n\n" + table(
        "status", "what it means"
    )
    text += "".join(row(status, said) for status, said in EXIT_STATUSES)
    text += "\n## Of hooks of the agent\n\n0 is success. Anything else, a signal or a time-out is a failure.\n"
    text += "\n## Of commands of the actuator `exec`\n\n" + table("status", "what it means")
    text += row(0, "done; of the observe command, that it is over")
    for name in ("EXIT_STILL_RUNNING", "EXIT_NEVER_BEGUN", "EXIT_RUN_AGAIN"):
        text += row(getattr(actuator, name), _docstring(actuator.__file__, name))
    return text + row("other", "failed")


def _docstring(file: str, name: str) -> str:
    """What stands below a constant."""
    found = re.search(rf'^{name} = [^\n]*\n"""(.*?)"""', Path(file).read_text(), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def files() -> str:
    """Files and folders, with what lies there."""
    text = "# Files\n\nDefaults.\n\n" + table("file", "what lies there")
    text += "".join(row(f"`{name}`", said) for name, said in FILES)
    text += "\n## Units of systemd\n\nThey lie in `packaging`; [install](../how-to/install.md) says where they go.\n\n"
    text += table("unit", "what it is", "reads", "keeps")
    for unit in sorted([*ROOT.glob("packaging/*.service"), *ROOT.glob("packaging/systemd/*.service")]):
        said = dict(re.findall(r"^(\w+)=-?(.*)$", unit.read_text(), re.MULTILINE))
        kept = f"`/var/lib/{said['StateDirectory']}`" if "StateDirectory" in said else ""
        read = f"`{said['EnvironmentFile']}`" if "EnvironmentFile" in said else ""
        text += row(f"`{unit.name}`", said["Description"], read, kept)
    return text


def audit_log() -> str:
    """Every kind of audit log entry."""
    text = (
        "# Audit log\n\nThe audit log records everything that happens. `forewarn audit-log` and `GET /v1/audit-log` "
        "show its entries. `forewarn audit-log --follow` and `GET /v1/watch` also show new entries as they are "
        "written. An entry has a sequence number, a time, an `actor` who caused it, and what it is about.\n\n"
    )
    text += table("kind", "what happened")
    for kind in EntryKind:
        text += row(f"`{kind}`", _ENTRIES.get(kind, str(kind).replace("-", " ")))
    return text + (
        "\n`actor` is `operator:NAME`, `tenant:NAME`, `read-only:NAME`, `vm:NAME`, `host:NAME`, `policy` for an "
        "approval by a tenant's policy, `actuator`, `forewarn`, or `unknown` for a refused call without a valid token. "
        "Entries about operators, tokens and refused calls are kept for `audit_retention`, all others for "
        "`history_retention`: see [settings](settings.md).\n"
    )


def endpoint_metrics() -> str:
    """The metrics of `forewarn endpoint`, read from where they are set."""
    text = "## Of an endpoint on a host\n\n`GET /metrics` on the address that `forewarn endpoint --listen` names.\n\n"
    text += table("metric", "type", "meaning")
    for file in sorted((ROOT / "src" / "forewarn" / "host").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Tuple(elts=[ast.Constant(value=str(name)), ast.Constant(value=str(said)), *_]):
                    if name.startswith("forewarn_endpoint_"):
                        text += row(f"`{name}`", "gauge", said)
                case _:
                    pass
    return text
