"""`forewarn config`: every setting of the service."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.output import Output

__all__ = ["app", "describe_settings"]

app = make_group("config", "Show the settings of the service.", "About")


@command(app, "show", "forewarn config show", "forewarn config show --config forewarn.toml --json")
def show(
    output: Output,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
) -> None:
    """Show every setting: the value that 'forewarn serve' would use, its source, its default, and its description.

    An environment variable takes precedence over the file (--config), and the file over the default. A flag of
    'forewarn serve' would override all three.
    """
    from forewarn.config.description import format_setting_value

    settings = describe_settings(config)
    if output.print_if_json(settings):
        return
    for setting in settings:
        is_default = setting["value"] == setting["default"]
        default = "default" if is_default else f"default: {format_setting_value(setting['default'])}"
        source = None if setting["source"] == "default" else f"from the {setting['source']}"
        notes = ", ".join(filter(None, [source, default, setting["unit"]]))
        output.print_line(f"{setting['name']} = {format_setting_value(setting['value'])}  ({notes})")
        output.print_line(f"    {setting['description']}")


def describe_settings(config: Path | None = None) -> list[dict[str, Any]]:
    """Return every setting with its value, default, source, unit, variable and description.

    Raises:
        ConfigError: The file or a variable is invalid.
    """
    from forewarn.config import description
    from forewarn.config.loading import load_settings

    return [asdict(each) for each in description.describe_settings(load_settings(config))]
