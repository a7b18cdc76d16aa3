"""`forewarn serve`: the service; runs until a signal."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli.command import OptionGroup, command, require_extra
from forewarn.cli.output import format_count
from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from forewarn.config.settings import Settings
    from forewarn.server.service import Service

__all__ = ["app", "format_ready_line", "parse_assignments"]

_address_option = partial(typer.Option, rich_help_panel="Addresses")
_tls_option = partial(typer.Option, rich_help_panel="TLS")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ServeOptions(OptionGroup):
    """Options of `forewarn serve`; all but `config` and `assignments` are settings of the same name."""

    inventory: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Inventory of hosts and VMs, YAML or JSON, applied at startup.")
    ] = None
    database_url: Annotated[
        str | None, typer.Option(metavar="URL", help="SQLite or PostgreSQL database. (default: sqlite:///forewarn.db)")
    ] = None
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the operator's token, and for the records of the exec actuator. (default: the user's "
            "state folder)",
        ),
    ] = None
    clock: Annotated[
        str | None,
        typer.Option(
            metavar="real|virtual",
            help="virtual: time advances only with 'forewarn clock advance'. (default: real)",
            autocompletion=lambda: ["real", "virtual"],
        ),
    ] = None
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Value for any setting listed by 'forewarn config show'; repeatable."
        ),
    ] = None
    metadata_listen: Annotated[
        str | None,
        _address_option(
            metavar="ADDRESS:PORT",
            help="Addresses of the metadata endpoint, comma-separated. (default: 127.0.0.1:8169)",
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Number of processes that answer VMs; at most one per core. (default: 1)"),
    ] = None
    control_listen: Annotated[
        str | None,
        _address_option(metavar="ADDRESS:PORT", help="Address of the control API. (default: 127.0.0.1:8170)"),
    ] = None
    tls_certificate: Annotated[
        Path | None, _tls_option(metavar="FILE", help="Certificate for the control API, PEM.")
    ] = None
    tls_key: Annotated[Path | None, _tls_option(metavar="FILE", help="Private key of the certificate, PEM.")] = None
    insecure: Annotated[
        bool, _tls_option("--insecure", help="Serve the control API to other machines without TLS.")
    ] = False
    fault_injection: Annotated[
        bool, typer.Option("--fault-injection", help="Let operators inject faults: see 'forewarn fault --help'.")
    ] = False


app = typer.Typer()


@command(
    app,
    "serve",
    "forewarn serve",
    "forewarn serve --inventory cloud.yaml --database-url sqlite:////var/lib/forewarn/forewarn.db",
    "forewarn serve --clock virtual --set simulate_complete_after=1m --set disable_after=7d",
    panel="Run",
)
def serve(options: _ServeOptions) -> None:
    """Run the service: metadata endpoint, control API and scheduler.

    The service prints one line when it is ready, logs to stderr, and stops on SIGTERM or Ctrl-C.
    """
    flags = asdict(options)
    config, assignments = flags.pop("config"), flags.pop("assignments")
    with require_extra("server"):
        from forewarn.config.loading import load_settings
        from forewarn.config.settings import Settings
        from forewarn.observability.logs import configure_logging
        from forewarn.server.service import run_service
    values = parse_assignments(assignments or [], Settings)
    # A flag that was not given must not override the file.
    values |= {name: value for name, value in flags.items() if value not in (None, False)}
    try:
        settings = load_settings(config, **values)
    except ConfigError as error:
        # The value came from the file or a variable, which the message already names.
        if error.details.get("setting") not in values:
            raise
        name = error.details["setting"]
        flag = f"--{name.replace('_', '-')}" if name in flags else "--set"
        prefix = "" if flag == "--set" else f"setting {name}: "
        raise typer.BadParameter(error.message.removeprefix(prefix), param_hint=flag) from error
    configure_logging()
    run_service(settings, _print_ready_line)


def parse_assignments(assignments: list[str], settings: type[Settings]) -> dict[str, object]:
    """Return the values of `--set` by the name of the setting.

    Raises:
        typer.BadParameter: One is not NAME=VALUE, or there is no such setting.
    """
    parsed: dict[str, object] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not separator or not name:
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE, for example notice_max=30d", param_hint="--set")
        if name not in settings.model_fields:
            near = difflib.get_close_matches(name, settings.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else "see 'forewarn config show'"
            raise typer.BadParameter(f"unknown setting {name!r}: {hint}", param_hint="--set")
        parsed[name] = value.strip()
    return parsed


def format_ready_line(metadata_urls: list[str], control_url: str, vms: int, hosts: int) -> str:
    """Return the line that `serve` prints once it is ready."""
    size = f"{format_count(vms, 'VM')} on {format_count(hosts, 'host')}"
    return f"forewarn is ready: metadata {', '.join(metadata_urls)}, control {control_url} ({size})"


def _print_ready_line(service: Service) -> None:
    identity = service.engine.identity
    line = format_ready_line(service.metadata_urls, service.control_url, identity.vm_count, len(identity.hosts))
    print(line, flush=True)  # noqa: T201 - the one line that serve prints
