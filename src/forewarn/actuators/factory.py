"""Construction of the configured actuator, which is imported only then."""

from __future__ import annotations

import shlex

from forewarn.actuators.contract import Actuator
from forewarn.actuators.simulate import Simulate
from forewarn.clock import Clock
from forewarn.config.settings import Settings
from forewarn.errors import ConfigError
from forewarn.util.secrets import read_token

__all__ = ["make_actuator"]


def make_actuator(settings: Settings, clock: Clock) -> Actuator:
    """Return the configured actuator, which measures durations on machines with the clock of the service.

    Raises:
        ConfigError: A setting is missing or invalid, or a library is missing.
    """
    match settings.actuator:
        case "exec":
            return _make_exec(settings)
        case "webhook":
            return _make_webhook(settings)
        case "libvirt":
            return _make_libvirt(settings, clock)
        case "simulate":
            return Simulate(settings.simulate_impact_after, settings.simulate_complete_after)


def _make_exec(settings: Settings) -> Actuator:
    from forewarn.actuators.exec import CommandLimits, Exec  # noqa: PLC0415 - only what is chosen

    return Exec(
        _split_command("exec_command", settings.exec_command),
        settings.state_dir / "exec",
        observe_command=_split_command("exec_observe_command", settings.exec_observe_command),
        abort_command=_split_command("exec_abort_command", settings.exec_abort_command),
        on_lost=settings.exec_on_lost,
        limits=CommandLimits(
            deadline=settings.exec_deadline,
            observe_deadline=settings.exec_observe_deadline,
            check_every=settings.actuator_look_every,
            output_size_bytes_max=settings.exec_output_size_bytes_max,
            runs_max=settings.exec_runs_max,
        ),
    )


def _make_webhook(settings: Settings) -> Actuator:
    from forewarn.actuators.webhook import Webhook  # noqa: PLC0415 - only what is chosen

    if settings.webhook_secret_file is None:
        raise ConfigError("the actuator webhook needs a secret: set webhook_secret_file", setting="webhook_secret_file")
    return Webhook(
        settings.webhook_url,
        read_token(settings.webhook_secret_file),
        deadline=settings.webhook_deadline,
        answer_size_bytes_max=settings.webhook_answer_size_bytes_max,
        check_every=settings.actuator_look_every,
    )


def _make_libvirt(settings: Settings, clock: Clock) -> Actuator:
    from forewarn.actuators.libvirt import Libvirt, LibvirtTimings, read_destinations  # noqa: PLC0415 - only what is chosen

    return Libvirt(
        settings.libvirt_uri,
        destinations=read_destinations(settings.libvirt_destination),
        timings=LibvirtTimings(
            freeze=settings.libvirt_freeze,
            shutdown_timeout=settings.libvirt_shutdown_timeout,
            migration_timeout=settings.libvirt_migration_timeout,
            check_every=settings.actuator_look_every,
        ),
        call_timeout=settings.libvirt_call_timeout,
        clock=clock,
    )


def _split_command(setting: str, text: str) -> list[str]:
    """Split a command line into words, quoted as in a shell; nothing is expanded.

    Raises:
        ConfigError: A quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        msg = f"setting {setting}: {text!r} cannot be split into words: {error}"
        raise ConfigError(msg, setting=setting) from error
