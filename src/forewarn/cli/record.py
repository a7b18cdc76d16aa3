"""`forewarn record` and `forewarn replay`: transcripts of an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forewarn.cli.command import command, require_extra
from forewarn.cli.output import Output, format_count, format_seconds
from forewarn.cli.times import as_span_s, check_known
from forewarn.errors import ConfigError
from forewarn.util.secrets import open_private

if TYPE_CHECKING:
    from forewarn.testing.transcript.transcript import EndReason, Transcript, TranscriptEntry
    from forewarn.testing.transcript.transcript_recorder import Recorder

__all__ = ["app", "warn_if_truncated"]

_MB_MAX = 64


app = typer.Typer()


@command(
    app,
    "record",
    "forewarn record http://169.254.169.254 --out vm.jsonl",
    "forewarn record http://127.0.0.1:8169 --for 1h > vm.jsonl",
    panel="Test",
)
def record(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the endpoint, without a path.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for the transcript. (default: stdout)")
    ] = None,
    span: Annotated[
        str | None, typer.Option("--for", metavar="SPAN", help="Duration of the recording. (default: until Ctrl-C)")
    ] = None,
    interval: Annotated[str, typer.Option(metavar="SPAN", help="Interval between requests.")] = "1s",
    api_version: Annotated[str, typer.Option(metavar="VERSION", help="api-version to request.")] = "2020-07-01",
    size_mb: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MB_MAX,
            metavar="MB",
            help="Maximum size of the transcript. The recording ends when the transcript is full.",
        ),
    ] = _MB_MAX,
    source_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Local address to send requests from.")
    ] = None,
) -> None:
    """Record the answers of a metadata endpoint with their times. The command approves nothing.

    The transcript contains the names of VMs as the endpoint shows them. 'forewarn replay' serves the transcript
    again.
    """
    with require_extra("testing"):
        from forewarn.client.pace import Pace
        from forewarn.client.transport import AsyncHttpTransport, check_url
        from forewarn.clock import RealClock
        from forewarn.testing.transcript.transcript import TranscriptWriter
        from forewarn.testing.transcript.transcript_recorder import Recorder
        from forewarn.wire.imds import VERSIONS
    output = Output()
    check_url(url)
    for_s = as_span_s(span, "--for")
    pace = Pace(poll_interval_s=_parse_interval(interval))
    check_known(api_version, [version.name for version in VERSIONS], "api-version", "--api-version")
    if source_address is not None:
        _check_source_address(source_address)

    async def run() -> None:
        transport = AsyncHttpTransport(url, source_address)
        try:
            with _open_transcript(out) as file:
                writer = TranscriptWriter(
                    file,
                    api_version=api_version,
                    began=RealClock().now(),
                    interval_s=pace.poll_interval_s,
                    size_bytes_max=size_mb << 20,
                )
                on_entry = _make_progress_printer(output, api_version)
                recorder = Recorder(transport, writer, api_version, pace=pace, on_entry=on_entry)
                output.print_notice(f"recording {url}; press Ctrl-C to stop")
                with _catch_signals() as stop:
                    reason = await recorder.record(stop, for_s)
        finally:
            output.show_progress()
            await transport.close()
        output.print_notice(_format_summary(recorder, writer.entries, reason))

    asyncio.run(run())


def _parse_interval(text: str) -> float:
    seconds = as_span_s(text, "--interval")
    if not seconds:
        raise typer.BadParameter("must be longer than 0 s", param_hint="--interval")
    return seconds


def _check_source_address(text: str) -> None:
    """Refuse an address that cannot be bound, before a recording with nothing but failures is made."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(text).version == 6 else socket.AF_INET  # noqa: PLR2004 - IPv6
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((text, 0))
    except (ValueError, OSError) as error:
        msg = f"{text!r} is not an address of this machine: list them with 'ip address'"
        raise typer.BadParameter(msg, param_hint="--source-address") from error


@contextlib.contextmanager
def _open_transcript(path: Path | None) -> Iterator[BinaryIO]:
    """Open a new file for writing, or stdout; unbuffered.

    Raises:
        ConfigError: It exists, or cannot be created.
    """
    if path is None:
        # Unbuffered, so that a recorder that is killed has written every answer it saw.
        with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as file:
            yield file
        return
    try:
        # Private, because a transcript contains the names of VMs; never overwritten, because it cannot be recorded
        # again.
        file = open(path, "xb", buffering=0, opener=open_private)  # noqa: SIM115 - closed below
    except FileExistsError as error:
        raise ConfigError(f"{path} already exists: choose another name, or delete it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    with file:
        yield file


@contextlib.contextmanager
def _catch_signals() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM and Ctrl-C set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _make_progress_printer(output: Output, api_version: str) -> Callable[[TranscriptEntry, bool], None]:
    """Return a callback that prints a line on stderr for each change; on a terminal, also the number of requests."""
    numbers = itertools.count(1)

    def print_entry(entry: TranscriptEntry, is_new: bool) -> None:
        if is_new:
            output.show_progress()
            output.print_notice(f"{entry.received_s:>9.1f} s  {entry.describe(api_version)}")
        output.show_progress(f"{entry.received_s:>9.1f} s  {next(numbers)} requests")

    return print_entry


def _format_summary(recorder: Recorder, entries: int, reason: EndReason) -> str:
    answers = format_count(entries, "different answer")
    why = {"signal": "stopped", "time": "time limit reached", "size": "size limit reached"}[reason]
    return f"recorded {answers} to {format_count(recorder.request_count, 'request')}: {why}"


@command(
    app,
    "replay",
    "forewarn replay vm.jsonl",
    "forewarn replay vm.jsonl --speed 60 --now",
    "forewarn replay vm.jsonl --loop --listen 127.0.0.1:8080",
    panel="Test",
)
def replay(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Transcript made by 'forewarn record'.")],
    speed: Annotated[
        float, typer.Option(min=0.001, max=100_000, metavar="TIMES", help="Speed relative to the recording.")
    ] = 1.0,
    listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help="Address to listen on.")] = "127.0.0.1:8169",
    is_loop: Annotated[bool, typer.Option("--loop", help="When the recording ends, replay it again.")] = False,
    is_now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Compute NotBefore from the present time: each event gets its recorded notice, divided by --speed. "
            "Without this option, NotBefore is the recorded time.",
        ),
    ] = False,
) -> None:
    """Serve a recording again, with its timing and its failures.

    The command prints one line when it is ready, one for each approval, and one at the end of the recording. Then,
    without --loop, it serves the last answer until SIGTERM or Ctrl-C. Approvals are answered with 200 and have no
    effect.
    """
    with require_extra("testing"):
        from forewarn.clock import RealClock
        from forewarn.net.listen_address import bind_listener, build_socket_url, parse_listen
        from forewarn.testing.transcript.transcript import load_transcript
        from forewarn.testing.transcript.transcript_replay import ReplayedApproval, ReplayServer
    output = Output()
    transcript = load_transcript(path)

    def tell_approval(approved: ReplayedApproval) -> None:
        known = "" if approved.is_shown else ", which is not in the current document"
        output.print_line(f"{approved.at_s:>9.1f} s  approved: {approved.event_id}{known}")

    def tell_end() -> None:
        then = "restarting" if is_loop else "serving the last answer until Ctrl-C"
        output.print_line(f"{transcript.end_s:>9.1f} s  end of the transcript: {then}")

    async def run() -> None:
        made = ReplayServer(
            transcript,
            speed=speed,
            is_loop=is_loop,
            get_time=RealClock().now if is_now else None,
            on_approval=tell_approval,
            on_end=tell_end,
        )
        with bind_listener(*parse_listen(listen)) as sock, _catch_signals() as stop:
            async with made.serving(sock):
                size = f"{len(transcript.entries)} answers over {format_seconds(transcript.end_s)}"
                version = transcript.api_version
                output.print_line(
                    f"replay is ready: {build_socket_url('http', sock)}, {version}, {size}, speed {speed:g}"
                )
                await stop.wait()

    warn_if_truncated(output, transcript)
    asyncio.run(run())


def warn_if_truncated(output: Output, transcript: Transcript) -> None:
    """Print a notice if the transcript is incomplete."""
    if transcript.end_reason is None:
        output.print_notice(
            "the transcript is incomplete, because its recorder was interrupted; using what it contains"
        )
