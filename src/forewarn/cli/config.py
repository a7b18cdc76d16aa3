"""`forewarn config`: every setting of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.output import Output

__all__ = ["app", "describe_settings", "mask_password"]

_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):[^/\s]*@")

app = make_group("config", "Show the settings of the service.", "About")


@command(app, "show", "forewarn config show", "forewarn config show --config forewarn.toml --json")
def show(
    output: Output,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
) -> None:
    """Show every setting: the value that 'forewarn serve' would use, its default, and its description.

    An environment variable takes precedence over the file (--config), and the file over the default. A flag of
    'forewarn serve' would override all three.
    """
    settings = describe_settings(config)
    if output.print_if_json(settings):
        return
    for setting in settings:
        is_default = setting["value"] == setting["default"]
        default = "default" if is_default else f"default: {_format_value(setting['default'])}"
        notes = ", ".join(filter(None, [default, setting["unit"]]))
        output.print_line(f"{setting['name']} = {_format_value(setting['value'])}  ({notes})")
        output.print_line(f"    {setting['description']}")


def describe_settings(config: Path | None = None) -> list[dict[str, Any]]:
    """Return every setting with its value, default, unit, variable and description.

    Raises:
        ConfigError: The file or a variable is invalid.
    """
    from forewarn.config.loading import load_settings
    from forewarn.config.settings import Settings

    # `model_construct` gives the defaults without the environment.
    values = load_settings(config).model_dump(mode="json")
    defaults = Settings.model_construct().model_dump(mode="json")
    return [
        {
            "name": name,
            "value": mask_password(values[name]),
            "default": mask_password(defaults[name]),
            "unit": _find_unit(name, field.annotation),
            "variable": f"FOREWARN_{name.upper()}",
            "description": field.description,
        }
        for name, field in Settings.model_fields.items()
    ]


def _find_unit(name: str, annotation: object) -> str | None:
    from forewarn.config.span import Span

    if annotation in (Span, Span | None) or "timedelta" in str(annotation):
        return "s, m, h or d"
    if "_bytes" in name:
        return "bytes"
    return "per second" if name.endswith("_per_s") else None


def mask_password(value: Any) -> Any:  # noqa: ANN401 - of any setting
    """Return the value; a password in a URL is replaced by asterisks."""
    return _PASSWORD.sub(r"\1:***@", value) if isinstance(value, str) else value


def _format_value(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
