"""Generates pages about exit statuses, environment variables, files, and kinds of audit log entries."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from forewarn import host
from forewarn.actuators import exec as actuator
from forewarn.agent import steps
from forewarn.agent.configuration import default_config_file, default_state_file
from forewarn.cli.inventory import DIFFERS
from forewarn.cli.maintenance_wait import MISSED, TIMED_OUT
from forewarn.client.discovery import VARIABLE
from forewarn.config.settings import Settings
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
    (0, "the command succeeded"),
    (
        1,
        (
            "the command failed: the service refused the request, another system failed, a check found a problem, or "
            "you declined the confirmation"
        ),
    ),
    (
        2,
        (
            "the command line is invalid, or the command needs confirmation: `--yes` was not given, and there is no "
            "terminal to ask on"
        ),
    ),
    (3, "the service cannot be reached"),
    (DIFFERS, "from `inventory diff` only: the inventory file would change something"),
    (TIMED_OUT, "from `maintenance wait` only: the stage was not reached in time"),
    (MISSED, "from `maintenance wait` only: the stage can no longer be reached"),
    (130, "the command was ended by Ctrl-C"),
    (141, "the program that read the output, such as `head`, has ended"),
)
"""Exit statuses of all commands, with their meanings."""

FILES = (
    (
        str(Settings.model_fields["database_url"].default).removeprefix("sqlite:///"),
        "the database, in the current folder",
    ),
    (f"~/.local/state/forewarn/{TOKEN_FILE}", "the operator's token; `--state-dir` sets the folder"),
    (str(default_config_file()), "configuration of the agent"),
    (str(default_state_file()), "the agent's state, kept across restarts; the agent's tokens are in the same folder"),
    ("/etc/forewarn/serve.env", "environment variables of `forewarn-serve.service`"),
    ("/var/lib/forewarn/", "database, tokens and state files of `forewarn-serve.service` and `forewarn-agent.service`"),
)
"""Files and folders that are used by default, with their contents."""

_ENTRIES = {
    EntryKind.QUEUED: "a maintenance waits for another maintenance of the same VMs or scope",
    EntryKind.SCHEDULED: "a maintenance is announced: its events are in the documents",
    EntryKind.APPROVED: "an event was approved; the entry names the approver, its address and the api-version",
    EntryKind.STARTED: "a maintenance has started; `reason` is set if an operator forced the start",
    EntryKind.DEFERRED: "`NotBefore`, the announced start, was postponed, at most to the latest start that the "
    "operator had set",
    EntryKind.EXTENDED: "`NotBefore` was postponed to give a tenant more time, as the tenant's policy allows",
    EntryKind.IMPACTED: "a started maintenance interrupts its VMs, for the first time or again",
    EntryKind.IMPACT_MEASURED: "the duration of the interruption was measured",
    EntryKind.COMPLETED: "a maintenance is over, and its events are gone",
    EntryKind.CANCELED: "a maintenance was canceled before it started",
    EntryKind.FAILED: "a maintenance could not be carried out",
    EntryKind.ATTEMPT_FAILED: "a call of the actuator, which carries maintenance out, failed and will be retried",
    EntryKind.ENABLED: "scheduled events were enabled for an audience (the VMs that see the same list of events), "
    "because one of these VMs requested events",
    EntryKind.DISABLED: "scheduled events were disabled for an audience, because the audience's VMs sent no requests "
    "for a day (`disable_after`)",
    EntryKind.ANNOUNCED: "scheduled events were enabled for an audience after a maintenance had been scheduled, so the "
    "event was added to the audience's document only then",
    EntryKind.WITHDRAWN: "an event left the documents before its maintenance ended, because scheduled events were "
    "disabled for its audience, or because all VMs that the event affects are gone",
    EntryKind.VM_CHANGED: "the state, the host or the model of a VM has changed",
    EntryKind.HOST_FAILED: "a host was reported as failed",
    EntryKind.HOST_RECOVERED: "a failed host works again",
    EntryKind.INVENTORY_APPLIED: "an inventory was applied; `reason` says how much changed",
    EntryKind.TOKEN_CREATED: "a token was created, for a host, a person or a program",
    EntryKind.TOKEN_REVOKED: "a token was revoked",
    EntryKind.CLOCK_ADVANCED: "a virtual clock was advanced",
    EntryKind.CLOCK_JUMPED: "the clock jumped: nothing that is due starts until an operator confirms the clock",
    EntryKind.CLOCK_CONFIRMED: "an operator confirmed the clock after a jump",
    EntryKind.ROLLOUT: "a rollout started, paused, resumed or ended",
    EntryKind.FAULT_INJECTED: "a fault was injected, for tests",
    EntryKind.FAULT_CLEARED: "injected faults were cleared",
    EntryKind.REFUSED: "a call was refused, because it had no valid token or was not allowed",
    EntryKind.PRUNED: "old history was deleted; `reason` says how much",
    EntryKind.UNSEEN: "`NotBefore` is near, but no VM of the event's audience has requested events since the "
    "announcement",
    EntryKind.LATE: "a maintenance is due but has not started, or takes longer than announced",
    EntryKind.SUBSCRIPTION: "a subscription was created, changed, paused, resumed or deleted",
}


def variables() -> Iterator[tuple[str, str, str]]:
    """Variables that commands read: name, content, and the commands that read it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for noun, command in nouns():
        for words, leaf in leaves(command, (noun,)):
            for parameter in words_of(leaf):
                if parameter.envvar:
                    said = _VARIABLE_TEXTS.get(str(parameter.envvar), (parameter.help or "").strip())
                    found.setdefault(str(parameter.envvar), (said, []))[1].append(" ".join(words))
    for name, (said, users) in sorted(found.items()):
        nouns_of_users = {user.partition(" ")[0] for user in users}
        if len(users) <= _FEW:
            yield name, said, ", ".join(f"`{user}`" for user in users)
        else:
            yield name, said, f"`{nouns_of_users.pop()}`" if len(nouns_of_users) == 1 else _CALLERS
    yield "FOREWARN_TOKEN", "The access token itself.", _CALLERS
    yield "FOREWARN_STATE_DIR", "Folder for the operator's token.", f"`serve`, and {_CALLERS}"
    yield VARIABLE, "Address of the metadata endpoint, if it is not 169.254.169.254.", "`agent`, and the Python library"
    yield (
        "TRACEPARENT",
        "W3C trace context. The command sends this context to the service with each request.",
        _CALLERS,
    )
    yield (
        "OTEL_…",
        "Settings of OpenTelemetry, if tracing is on: [trace a maintenance](../how-to/trace.md).",
        "`serve`",
    )
    yield "NO_COLOR", "If not empty, the output has no colours.", "every command"


_VARIABLE_TEXTS = {
    "FOREWARN_CONTROL_URLS": "URLs of the replicas of the control plane, separated by commas or spaces.",
}
"""Texts for variables that the help of their option does not fit, such as that of a repeatable option."""

_FEW = 4
_CALLERS = "every command that calls the service"


def environment() -> str:
    """Return the page of all variables that Forewarn reads, or sets for programs that it starts."""
    text = "# Environment\n\n## Variables that Forewarn reads\n\n" + table("variable", "what it holds", "read by")
    text += "".join(row(f"`{name}`", said, by) for name, said, by in variables())
    text += (
        "\nEach [setting](settings.md) also has a variable: `FOREWARN_` and the setting's name in capitals, such as "
        "`FOREWARN_DATABASE_URL`.\n\n## For hooks of the agent\n\nThe agent sets these variables for each hook, and "
        "passes the event on standard input: see [hooks](agent-hooks.md).\n\n"
    ) + table("variable", "what it holds")
    text += "".join(row(f"`{name}`", said) for name, said in steps.VARIABLES.items())
    text += (
        "\n## For commands of the actuator `exec`\n\nThe actuator `exec` runs your commands to carry maintenance out, "
        "and sets these variables: see [how to configure it](../how-to/actuators.md).\n\n"
    )
    text += table("variable", "what it holds")
    text += "".join(row(f"`{name}`", said) for name, said in actuator.VARIABLES.items())
    text += row(
        "`TRACEPARENT`",
        "W3C trace context for this run of the command. With it, spans of the command can appear in the trace of the "
        "maintenance. "
        "Set only if [tracing](../how-to/trace.md) is on",
    )
    text += "\n## For handlers in a trial\n\n`forewarn try` sets these variables for the handler that it runs:\n\n"
    text += table("variable", "what it holds")
    text += row("`FOREWARN_ENDPOINT`", "URL of the endpoint, without a path")
    text += row("`FOREWARN_VM`", "name of the handler's VM")
    mark = "random identifier by which `forewarn try` finds the processes that the handler starts"
    return text + row("`FOREWARN_TRIAL`", mark)


def exit_statuses() -> str:
    """Return the page of exit statuses, of commands and of programs that Forewarn starts."""
    text = "# Exit statuses\n\nThese exit statuses apply to every command. Each error is one line on stderr.\n\n"
    text += table("status", "what it means")
    text += "".join(row(status, said) for status, said in EXIT_STATUSES)
    text += "\n## Hooks of the agent\n\n"
    text += "Exit status 0 is success. Any other exit status, a signal, or a time-out is a failure.\n"
    text += (
        "\n## Commands of the actuator `exec`\n\n`exec_command` carries a maintenance out, `exec_observe_command` "
        "reports its progress, and `exec_abort_command` stops it:\nsee [how to set them](../how-to/actuators.md).\n\n"
    ) + table("status", "what it means")
    text += row(
        0, "The command succeeded. From `exec_command` and `exec_observe_command`: the maintenance is complete."
    )
    for name in ("EXIT_STILL_RUNNING", "EXIT_NEVER_BEGUN", "EXIT_RUN_AGAIN"):
        text += row(getattr(actuator, name), _docstring(actuator.__file__, name))
    return text + row("other", "The command failed.")


def _docstring(file: str, name: str) -> str:
    """Return the docstring below a constant."""
    found = re.search(rf'^{name} = [^\n]*\n"""(.*?)"""', Path(file).read_text(), re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def files() -> str:
    """Return the page of files and folders."""
    text = "# Files\n\nThese are the default paths.\n\n" + table("file", "what it holds")
    text += "".join(row(f"`{name}`", said) for name, said in FILES)
    text += "\n## systemd units\n\n"
    text += (
        "The units are in the folder `packaging` of the repository. [How to install them](../how-to/install.md).\n\n"
    )
    text += table("unit", "what it is", "file with settings", "folder with state")
    for unit in sorted([*ROOT.glob("packaging/*.service"), *ROOT.glob("packaging/systemd/*.service")]):
        said = dict(re.findall(r"^(\w+)=-?(.*)$", unit.read_text(), re.MULTILINE))
        kept = f"`/var/lib/{said['StateDirectory']}`" if "StateDirectory" in said else ""
        read = f"`{said['EnvironmentFile']}`" if "EnvironmentFile" in said else ""
        text += row(f"`{unit.name}`", said["Description"], read, kept)
    return text


def audit_log() -> str:
    """Return the page of all kinds of audit log entries."""
    text = (
        "# Audit log\n\nThe audit log records approvals, changes and refused calls. `forewarn audit-log` and "
        "`GET /v1/audit-log` show its entries. `forewarn audit-log --follow` and `GET /v1/watch` also show new entries "
        "as they are written. An entry has a sequence number, a time, the `actor` that caused the entry, and what the "
        "entry is about.\n\n"
    )
    text += table("kind", "what happened")
    for kind in EntryKind:
        text += row(f"`{kind}`", _ENTRIES.get(kind, str(kind).replace("-", " ")))
    return text + (
        "\n`actor` is a caller (`operator:NAME`, `tenant:NAME`, `read-only:NAME`, `vm:NAME` or `host:NAME`), "
        "`rollout:ID`, `actuator`, `forewarn` (the service), `policy` (for an approval by a tenant's policy), or "
        "`unknown` (for a refused call without a valid token). If the end of one maintenance moves another one, "
        "such as the next one in the queue, the actor of the other's entry is `forewarn`; the first entry of each "
        "maintenance names who requested it.\n\nThese entries are kept for `audit_retention`:\n\n- entries that "
        "an operator caused;\n- entries of the kind `refused`;\n- entries of these kinds, unless a host caused them: "
        "`inventory-applied`, `token-…`, `clock-…`, `rollout`, `fault-…`, `pruned` and `subscription`.\n\nAll other "
        "entries are kept for `history_retention`. If there are more than `history_entries_max` of them, the oldest "
        "are deleted earlier. See [settings](settings.md).\n"
    )


def endpoint_metrics() -> str:
    """Return the section about the metrics of `forewarn endpoint`, read from its source code."""
    text = (
        "## Metrics of a host endpoint\n\n`forewarn endpoint` exposes these metrics at `GET /metrics` on the address "
        "given by `--listen`.\n\n"
    )
    text += table("metric", "type", "meaning")
    for file in sorted(Path(host.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Tuple(elts=[ast.Constant(value=str(name)), ast.Constant(value=str(said)), *_]):
                    if name.startswith("forewarn_endpoint_"):
                        text += row(f"`{name}`", "gauge", said)
                case _:
                    pass
    return text
