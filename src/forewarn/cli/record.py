"""`forewarn record`, `forewarn replay` and `forewarn scenario from-transcript`: transcripts of an endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forewarn.cli.command import command, testing_extra
from forewarn.cli.output import Output, format_seconds
from forewarn.cli.times import as_span_s
from forewarn.errors import ConfigError
from forewarn.util.escape import escape_lines
from forewarn.util.secrets import open_private

if TYPE_CHECKING:
    from forewarn.testing.recording import Recorder
    from forewarn.testing.transcript import EndReason, Entry, Transcript

__all__ = ["add_from_transcript", "add_record", "add_replay"]

_MB_MAX = 64


def add_record(app: typer.Typer) -> None:
    """Add the command `record`."""

    @command(
        app,
        "record",
        "forewarn record http://169.254.169.254 --out vm.jsonl",
        "forewarn record http://127.0.0.1:8169 --for 1h > vm.jsonl",
        panel="Test",
    )
    def record(
        url: Annotated[str, typer.Argument(metavar="URL", help="The endpoint, without a path.")],
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="A new file for the transcript. (default: stdout)")
        ] = None,
        span: Annotated[
            str | None, typer.Option("--for", metavar="SPAN", help="How long. (default: until Ctrl-C)")
        ] = None,
        interval: Annotated[str, typer.Option(metavar="SPAN", help="From one question to the next.")] = "1s",
        api_version: Annotated[str, typer.Option(metavar="VERSION", help="Api-version to ask for.")] = "2020-07-01",
        size_mb: Annotated[
            int, typer.Option(min=1, max=_MB_MAX, metavar="MB", help="The largest transcript; recording ends there.")
        ] = _MB_MAX,
        source_address: Annotated[
            str | None, typer.Option(metavar="ADDRESS", help="Ask from this local address.")
        ] = None,
    ) -> None:
        """Record the answers of a metadata endpoint with their times; it is only read, and nothing is approved.

        The transcript contains the names of VMs as the endpoint shows them. 'forewarn replay' serves it again.
        """
        with testing_extra():
            from forewarn.client.pace import Pace
            from forewarn.client.transport import AsyncHttp, check_url
            from forewarn.clock import RealClock
            from forewarn.testing.recording import Recorder
            from forewarn.testing.transcript import TranscriptWriter
        output = Output()
        check_url(url)
        for_s = as_span_s(span, "--for")
        pace = Pace(poll_interval_s=_interval_s(interval))
        _check_version(api_version)
        if source_address is not None:
            _check_source_address(source_address)

        async def run() -> None:
            progress = _Progress(output, api_version)
            transport = AsyncHttp(url, source_address)
            try:
                with _opened(out) as file:
                    writer = TranscriptWriter(
                        file,
                        api_version=api_version,
                        began=RealClock().now(),
                        interval_s=pace.poll_interval_s,
                        size_bytes_max=size_mb << 20,
                    )
                    recorder = Recorder(transport, writer, api_version, pace=pace, on_entry=progress.show)
                    output.notice(f"recording what {url} shows; Ctrl-C ends it")
                    with _until_signal() as stop:
                        reason = await recorder.record(stop, for_s)
            finally:
                output.passing()
                await transport.close()
            output.notice(_summary(recorder, writer.entries, reason))

        asyncio.run(run())


def _interval_s(text: str) -> float:
    seconds = as_span_s(text, "--interval")
    if not seconds:
        msg = "an interval is expected to be longer than nothing"
        raise typer.BadParameter(msg, param_hint="--interval")
    return seconds


def _check_version(text: str) -> None:
    from forewarn.wire.imds import VERSIONS

    names = [version.name for version in VERSIONS]
    if text not in names:
        msg = f"there is no api-version {text!r}: expected one of {', '.join(names)}"
        raise typer.BadParameter(msg, param_hint="--api-version")


def _check_source_address(text: str) -> None:
    """Refuse an address that cannot be bound, before a recording with nothing but failures is made."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(text).version == 6 else socket.AF_INET  # noqa: PLR2004 - IPv6
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.bind((text, 0))
    except (ValueError, OSError) as error:
        msg = f"{text!r} is not an address of this machine: 'ip address' lists them"
        raise typer.BadParameter(msg, param_hint="--source-address") from error


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[BinaryIO]:
    """Open a new file for writing, or stdout; unbuffered.

    Raises:
        ConfigError: It exists, or cannot be created.
    """
    if path is None:
        with open(sys.stdout.fileno(), "wb", buffering=0, closefd=False) as file:
            yield file
        return
    try:
        file = open(path, "xb", buffering=0, opener=open_private)  # noqa: SIM115 - closed below
    except FileExistsError as error:
        msg = f"{path} exists, and a transcript is never overwritten: choose another name, or delete it"
        raise ConfigError(msg) from error
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise ConfigError(msg) from error
    with file:
        yield file


@contextlib.contextmanager
def _until_signal() -> Iterator[asyncio.Event]:
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


class _Progress:
    """Prints a line on stderr for each change; on a terminal, also the number of requests."""

    def __init__(self, output: Output, api_version: str) -> None:
        self._output = output
        self._api_version = api_version
        self._asked = 0

    def show(self, entry: Entry, is_new: bool) -> None:
        """Show an answer."""
        self._asked += 1
        if is_new:
            self._output.passing()
            self._output.notice(f"{entry.seen_s:>9.1f} s  {entry.describe(self._api_version)}")
        self._output.passing(f"{entry.seen_s:>9.1f} s  asked {self._asked} times")


def _summary(recorder: Recorder, entries: int, reason: EndReason) -> str:
    answers = f"{entries} different answer{'' if entries == 1 else 's'}"
    why = {"signal": "told to stop", "time": "the time is over"}.get(reason, reason)
    return f"recorded {answers} to {recorder.asked} question{'' if recorder.asked == 1 else 's'}: {why}"


def add_replay(app: typer.Typer) -> None:
    """Add the command `replay`."""

    @command(
        app,
        "replay",
        "forewarn replay vm.jsonl",
        "forewarn replay vm.jsonl --speed 60 --now",
        "forewarn replay vm.jsonl --loop --listen 127.0.0.1:8080",
        panel="Test",
    )
    def replay(
        path: Annotated[Path, typer.Argument(metavar="FILE", help="A transcript of 'forewarn record'.")],
        speed: Annotated[
            float,
            typer.Option(min=0.001, max=100_000, metavar="TIMES", help="How many times as fast as it was recorded."),
        ] = 1.0,
        listen: Annotated[str, typer.Option(metavar="ADDRESS:PORT", help="Where it answers.")] = "127.0.0.1:8169",
        is_loop: Annotated[bool, typer.Option("--loop", help="Begin again at the end.")] = False,
        is_now: Annotated[
            bool, typer.Option("--now", help="Move every NotBefore, so that as much of it is left as was then.")
        ] = False,
    ) -> None:
        """Serve a recording again, including failures, with its timing.

        It prints one line when it is ready, one for each approval, and one at the end; then the last answer is served
        until SIGTERM or Ctrl-C. Approvals are answered with 200 and have no effect.
        """
        with testing_extra():
            from forewarn.clock import RealClock
            from forewarn.net.listen import bound, parse_listen, url_of
            from forewarn.testing.replaying import Approved, Replay
            from forewarn.testing.transcript import load_transcript
        output = Output()
        transcript = load_transcript(path)

        def tell_approval(approved: Approved) -> None:
            known = "" if approved.is_shown else ", which is not in the document now"
            output.line(f"{approved.at_s:>9.1f} s  approved: {approved.event_id}{known}")

        def tell_end() -> None:
            then = "it begins again" if is_loop else "the last answer stays until Ctrl-C"
            output.line(f"{transcript.end_s:>9.1f} s  the transcript has ended: {then}")

        async def run() -> None:
            made = Replay(
                transcript,
                speed=speed,
                is_loop=is_loop,
                now=RealClock().now if is_now else None,
                on_approval=tell_approval,
                on_end=tell_end,
            )
            with bound(*parse_listen(listen)) as sock, _until_signal() as stop:
                async with made.answering(sock):
                    size = f"{len(transcript.entries)} answers over {format_seconds(transcript.end_s)}"
                    version = transcript.api_version
                    output.line(f"replay is ready: {url_of('http', sock)}, {version}, {size}, speed {speed:g}")
                    await stop.wait()

        _say_if_cut_off(output, transcript)
        asyncio.run(run())


def _say_if_cut_off(output: Output, transcript: Transcript) -> None:
    if transcript.end_reason is None:
        output.notice("the transcript has no last line: its recorder was interrupted, and what it saw is used")


def add_from_transcript(noun: typer.Typer) -> None:
    """Add the command `from-transcript` under the noun `scenario`."""

    @command(
        noun,
        "from-transcript",
        "forewarn scenario from-transcript vm.jsonl > vm.yaml",
    )
    def from_transcript(
        path: Annotated[Path, typer.Argument(metavar="FILE", help="A transcript of 'forewarn record'.")],
    ) -> None:
        """Convert a transcript to a scenario, and print it as YAML.

        Changes that the service's own rules would not allow are left out; comments at the top of the scenario list
        them.
        """
        with testing_extra():
            from forewarn.testing.converting import to_scenario
            from forewarn.testing.transcript import load_transcript
        transcript = load_transcript(path)
        _say_if_cut_off(Output(), transcript)
        sys.stdout.write(escape_lines(to_scenario(transcript)))
