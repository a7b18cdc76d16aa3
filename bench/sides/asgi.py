"""Serves the same document with plain Starlette or plain FastAPI, on uvicorn with uvloop and httptools.

Arguments: ``starlette`` or ``fastapi``, port, file with the body, ETag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/metadata/scheduledevents"
CONTENT_TYPE = "application/json; charset=utf-8"


def starlette_app(body: bytes, etag: str) -> Any:  # noqa: ANN401 - an ASGI app
    """Return an app with plain Starlette."""

    async def answer(_request: Request) -> Response:
        return Response(body, headers={"content-type": CONTENT_TYPE, "etag": etag})

    return Starlette(routes=[Route(PATH, answer)])


def fastapi_app(body: bytes, etag: str) -> Any:  # noqa: ANN401 - an ASGI app
    """Return an app with plain FastAPI."""
    app = FastAPI(openapi_url=None)

    @app.get(PATH)
    async def answer() -> Response:
        return Response(body, headers={"content-type": CONTENT_TYPE, "etag": etag})

    return app


def main() -> None:
    """Serve until SIGTERM."""
    kind, port, file, etag = sys.argv[1:5]
    make = {"starlette": starlette_app, "fastapi": fastapi_app}[kind]
    app = make(Path(file).read_bytes(), etag)
    uvicorn.run(
        app, port=int(port), loop="uvloop", http="httptools", access_log=False, log_level="warning", backlog=4096
    )


if __name__ == "__main__":
    main()
