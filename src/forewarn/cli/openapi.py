"""`forewarn openapi`: the OpenAPI document of the control API."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, cast

import typer

from forewarn.cli.command import command, require_extra

if TYPE_CHECKING:
    from forewarn.control import Context

__all__ = ["app", "openapi_document"]


app = typer.Typer()


@command(app, "openapi", "forewarn openapi > openapi.json", panel="About")
def openapi() -> None:
    """Print the OpenAPI document of the control API, as JSON."""
    sys.stdout.write(json.dumps(openapi_document(), indent=2) + "\n")


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the control API.

    Raises:
        ConfigError: The extra `server` is not installed.
    """
    with require_extra("server"):
        from forewarn.control import make_control_app
    # Describing the routes uses no part of the service, so this app needs no context; it is never called.
    return make_control_app(cast("Context", None)).openapi()
