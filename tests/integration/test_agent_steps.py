"""Steps of the agent with real processes and a real webhook server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from forewarn.agent import process
from forewarn.agent.codec import Duration
from forewarn.agent.handlers import BuiltInHandler, FileHandler, HandlerContext
from forewarn.agent.process import run_process
from forewarn.agent.record import EventRecord, StepRunState
from forewarn.agent.rule import EventStep, Hook, Rule
from forewarn.agent.steps import VARIABLES, LiveStepExecutor
from forewarn.clock import RealClock
from forewarn.errors import HookFailed
from tests.support.ports import reserve_address
from tests.support.processes import wait_for
from tests.support.records import a_record
from tests.support.spans import GUARD_S, lasts

pytestmark = pytest.mark.anyio

SHOW = "import json, os, sys; json.dump({'argv': sys.argv[1:], 'env': dict(os.environ)}, open(os.environ['OUT'], 'w'))"


def python(code: str, *arguments: str, **members: Any) -> Hook:  # noqa: ANN401 - members of a hook
    return Hook(command=(sys.executable, "-c", code, *arguments), **members)


def a_line(text: str, **members: Any) -> Hook:  # noqa: ANN401 - members of a hook
    return Hook(shell=text, **members)


async def nothing_to_remember(_place: str, _memory: dict[str, Any]) -> None:
    """For hooks."""


async def run(
    *hooks: Hook | tuple[str, ...],
    step: EventStep = EventStep.PREPARE,
    size_max: int = 64 << 10,
    **of: Any,  # noqa: ANN401 - fields of an event
) -> str:
    given: dict[str, Any] = {step.name.lower(): hooks}
    rule = Rule(name="db", **given)
    record = a_record(rule, **of)
    return await LiveStepExecutor(RealClock(), size_max).run(record, step, "db", nothing_to_remember, "why")


async def failure(*hooks: Hook | tuple[str, ...], **members: Any) -> HookFailed:  # noqa: ANN401 - as `run`
    with pytest.raises(HookFailed) as caught:
        await run(*hooks, **members)
    assert "\n" not in caught.value.message
    return caught.value


class Out:
    """A file that hooks find by their environment, and write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def is_there(self) -> bool:
        return self.path.exists()

    def text(self) -> str:
        return self.path.read_text()

    def json(self, ending: str = "") -> Any:  # noqa: ANN401 - whatever JSON can hold
        return json.loads(self.path.with_name(self.path.name + ending).read_bytes())

    def pid(self) -> int:
        return int(wait_for(lambda: self.is_there() and self.text().strip(), pause_s=0.01))

    def note(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Out:
    out = Out(tmp_path / "out")
    monkeypatch.setenv("OUT", str(out))
    return out


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# What a command is given


async def test_arguments_arrive_as_they_are_written(out: Out) -> None:
    """No shell reads them."""
    given = ("a b", "", "'", '"', "\\", "$HOME", "`id`", "*", "; exit 9", "&&", "f\u00fcr \u96ea", "-n", "a\nb", "~")
    await run(python(SHOW, *given))
    assert out.json()["argv"] == list(given)


async def test_a_line_is_for_the_shell(out: Out) -> None:
    await run(a_line('printf "%s" "a  b" $FOREWARN_STEP | tr a-z A-Z > "$OUT"'))
    assert out.text() == "A  BPREPARE"


async def test_a_hook_finds_everything_about_the_event_in_its_environment(out: Out) -> None:
    event = {
        "id": "E-1",
        "type": "Redeploy",
        "status": "Scheduled",
        "resources": ("db", "f\u00fcr"),
        "description": "two\nlines = 'x' \u96ea\0",
        "source": "Platform",
        "duration_s": -1,
    }
    await run(python(SHOW), event=event)
    environment = out.json()["env"]
    told = {name: value for name, value in environment.items() if name in VARIABLES}
    assert told == {
        "FOREWARN_STEP": "prepare",
        "FOREWARN_VM": "db",
        "FOREWARN_RULE": "db",
        "FOREWARN_PREPARED": "false",
        "FOREWARN_REASON": "why",
        "FOREWARN_EVENT_ID": "E-1",
        "FOREWARN_EVENT_TYPE": "Redeploy",
        "FOREWARN_EVENT_STATUS": "Scheduled",
        "FOREWARN_EVENT_RESOURCES": "db,f\u00fcr",
        "FOREWARN_EVENT_NOT_BEFORE": "2030-01-01T00:15:00Z",
        "FOREWARN_EVENT_DESCRIPTION": "two\nlines = 'x' \u96ea",
        "FOREWARN_EVENT_SOURCE": "Platform",
        "FOREWARN_EVENT_DURATION_S": "-1",
    }
    assert environment["OUT"] == str(out)


async def test_a_hook_can_read_the_event_from_its_input(out: Out) -> None:
    event = {"id": "E-1", "not_before": None, "status": "Started", "description": '\u96ea \0 "', "resources": ("db",)}
    await run(a_line('cat > "$OUT"'), event=event, runs={EventStep.PREPARE: StepRunState.DONE})
    assert out.json() == {
        "step": "prepare",
        "vm": "db",
        "rule": "db",
        "prepared": True,
        "reason": "why",
        "event": {
            "id": "E-1",
            "type": "Freeze",
            "status": "Started",
            "resources": ["db"],
            "not_before": "",
            "description": '\u96ea \0 "',
            "source": "Platform",
            "duration_s": 9,
        },
    }


async def test_what_is_too_long_for_an_environment_is_cut_there_and_whole_on_the_input(out: Out) -> None:
    """Linux takes no variable of more than 128 KiB, and an endpoint may send any."""
    names = tuple(f"vm-\u96ea{n}" for n in range(30_000))
    await run(python(SHOW), a_line('cat > "$OUT.json"'), event={"resources": names, "description": "\u96ea" * 200_000})
    environment = out.json()["env"]
    assert names[0] in environment["FOREWARN_EVENT_RESOURCES"]
    assert set(environment["FOREWARN_EVENT_DESCRIPTION"]) == {"\u96ea"}
    told = out.json(".json")
    assert tuple(told["event"]["resources"]) == names


async def test_a_hook_that_does_not_read_its_input_succeeds() -> None:
    assert (
        await run(("true",), a_line("exec 0<&-; sleep 0.05; echo ok"), event={"description": "x" * 500_000}) == "ok\n"
    )


async def test_an_alert_says_why(out: Out) -> None:
    await run(python(SHOW), step=EventStep.ALERT)
    environment = out.json()["env"]
    assert (environment["FOREWARN_STEP"], environment["FOREWARN_REASON"]) == ("alert", "why")


# What becomes of a command


async def test_what_hooks_print_is_handed_back() -> None:
    assert await run(a_line("echo out; echo err >&2"), a_line("echo more")) == "out\nerr\nmore\n"


async def test_of_much_output_the_end_is_kept() -> None:
    printed = await run(a_line("seq 1 200000"), size_max=1000)
    assert len(printed) == 1000
    assert printed.endswith("199999\n200000\n")
    assert await run(a_line("echo out; echo err >&2"), size_max=0) == ""


async def test_output_need_not_be_text() -> None:
    printed = await run(a_line(r"printf 'a\377\000b\303'"))
    assert printed == "a\ufffd\0b\ufffd"


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            a_line("echo reason >&2; echo other; exit 3"),
            "echo reason >&2; echo other; exit 3 ended with status 3: reason",
        ),
        (a_line("echo a; echo b; exit 1"), "echo a; echo b; exit 1 ended with status 1: b"),
        (("false",), "false ended with status 1"),
        (a_line("kill -9 $$"), "kill -9 $$ was killed by SIGKILL"),
        (a_line("kill -35 $$"), "kill -35 $$ was killed by signal 35"),
        (a_line("echo no; kill -TERM $$"), "echo no; kill -TERM $$ was killed by SIGTERM: no"),
        (("/nowhere/drain", "--now"), "cannot run /nowhere/drain: No such file or directory"),
        (("no-such-program",), "cannot run no-such-program: No such file or directory"),
        (("/",), "cannot run /: Permission denied"),
        (a_line("exec sleep 30\n", timeout=Duration(seconds=0.1)), "exec sleep 30 took longer than 0.1 s"),
    ],
)
async def test_a_failure_is_told_in_one_line(hook: Hook | tuple[str, ...], message: str) -> None:
    assert (await failure(hook)).message == message


async def test_a_failure_carries_what_was_printed() -> None:
    error = await failure(a_line("echo out; echo err >&2; exit 1"))
    assert error.details == {"output": "out\nerr\n", "exit_status": 1}


async def test_a_file_that_is_no_program_is_said_so(tmp_path: Path) -> None:
    script = tmp_path / "drain"
    script.write_text("echo x\n")
    assert (await failure((str(script),))).message == f"cannot run {script}: Permission denied"
    script.chmod(0o755)
    assert (await failure((str(script),))).message == f"cannot run {script}: Exec format error"


async def test_the_first_failure_ends_a_step(out: Out) -> None:
    await failure(("false",), a_line('touch "$OUT"'))
    assert not out.is_there()


# Its end


async def test_a_time_out_ends_all_that_was_started(out: Out) -> None:
    child = """sh -c 'echo $$ > "$OUT"; exec sleep 600'"""
    error = await late(out, lambda timeout: a_line(f"{child} & wait", timeout=timeout))
    assert "took longer than" in error.message
    await asyncio.to_thread(wait_for, lambda: not is_alive(out.pid()))


STUBBORN = 'trap "" TERM; echo $$ > "$OUT"; while :; do sleep 0.1; done'


async def late(out: Out, make: Callable[[Duration], Hook], lines: int = 1) -> HookFailed:
    """How a hook fails that is ended at its time-out, once that was long enough for it to write so many lines.

    A slow machine may need longer than that to begin the command. Then it is tried with a longer one.
    """
    for timeout_s in (0.3, 1, 4):
        out.path.unlink(missing_ok=True)
        error = await failure(make(Duration(seconds=timeout_s)))
        if out.is_there() and out.text().count("\n") >= lines:
            return error
    out.path.unlink(missing_ok=True)
    return await failure(make(Duration(seconds=16)))


@pytest.mark.parametrize("line", [STUBBORN, f"sh -c '{STUBBORN}' & wait"], ids=["itself", "its child"])
async def test_what_does_not_want_to_end_is_killed_after_a_while(
    out: Out, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a child that ignores what its parent obeys."""
    monkeypatch.setattr(process, "_GRACE_S", 0.3)
    with lasts(0.6):
        await late(out, lambda timeout: a_line(line, timeout=timeout))
    await asyncio.to_thread(wait_for, lambda: not is_alive(out.pid()))
    assert not is_alive(out.pid())


async def test_a_command_may_end_in_peace_when_it_is_asked_to(out: Out) -> None:
    tidy = (
        "import os,signal,sys,time; "
        "signal.signal(signal.SIGTERM, lambda *_: (open(os.environ['OUT'], 'a').write('tidied'), sys.exit())); "
        "open(os.environ['OUT'], 'w').write('ready\\n'); "
        "time.sleep(600)"
    )
    await late(out, lambda timeout: python(tidy, timeout=timeout))
    assert out.text() == "ready\ntidied"


@pytest.mark.parametrize("before", ["", "exec 3<&0; "], ids=["its output", "its input"])
async def test_what_goes_on_in_the_background_is_not_waited_for(out: Out, before: str) -> None:
    """It may hold the pipes, also the one with an input that nobody reads."""
    line = f'{before}sleep 600 & echo $! > "$OUT"; echo done'
    assert await run(a_line(line), event={"description": "x" * 300_000}) == "done\n"
    child = out.pid()
    assert is_alive(child)
    os.kill(child, signal.SIGKILL)


async def test_no_pipe_is_left_open_by_what_goes_on_in_the_background(out: Out) -> None:
    async def once() -> int:
        await run(a_line('sleep 60 & echo $! >> "$OUT"'))
        return psutil.Process().num_fds()

    await once()
    counts = [await once() for _ in range(2)]
    for child in out.text().split():
        os.kill(int(child), signal.SIGKILL)
    assert len(set(counts)) == 1


async def test_cancelling_ends_the_command(out: Out) -> None:
    task = asyncio.ensure_future(run(a_line('cat > /dev/null; echo $$ > "$OUT"; sleep 600 & wait')))
    pid = await asyncio.to_thread(out.pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(pid)


async def test_cancelling_twice_kills_the_command(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is told to end while it ends a step leaves nothing behind, and does not wait for its grace."""
    monkeypatch.setattr(process, "_GRACE_S", 3600.0)
    asked = out.path.with_name("asked")
    # It reads its input to the end first: that is given once the command runs, so it is not cancelled as it starts.
    line = f"trap 'touch {asked}' TERM; cat > /dev/null; echo $$ > \"$OUT\"; while :; do sleep 0.1; done"
    task = asyncio.ensure_future(run(a_line(line)))
    pid = await asyncio.to_thread(out.pid)
    task.cancel()
    await asyncio.to_thread(wait_for, asked.exists)
    assert is_alive(pid)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(pid), "it is waited for, so it is no zombie either"


@pytest.mark.parametrize("times", [1, 2])
async def test_a_command_that_is_cancelled_while_it_is_started_leaves_nothing_behind(times: int) -> None:
    span = f"60.{os.getpid()}{times}"  # nobody else sleeps as long

    async def cancelled_after(turns: int) -> None:
        task = asyncio.ensure_future(run(a_line(f"sleep {span}; true")))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    before = set(psutil.Process().children())
    await asyncio.gather(*map(cancelled_after, range(8)))
    assert set(psutil.Process().children()) <= before, "it is waited for, so it is no zombie either"
    await asyncio.to_thread(wait_for, lambda: not sleepers(span))


async def test_an_input_that_is_being_closed_is_closed_once() -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    watch = process._ProcessWatcher(100)
    transport = await process._start_process(["sleep", "60"], os.environ, watch, "sleep")
    process._write_stdin(transport, b"")
    process._close_pipes(transport, watch)
    await watch.has_ended.wait()
    assert errors == []


def sleepers(argument: str) -> list[int]:
    alive = psutil.process_iter(["cmdline", "status"])
    return [each.pid for each in alive if argument in " ".join(each.info["cmdline"] or ())]


# Again


async def test_a_hook_is_tried_again_after_a_pause(out: Out, caplog: pytest.LogCaptureFixture) -> None:
    hook = a_line('echo x >> "$OUT"; test $(wc -l < "$OUT") = 3', retries=5, retry_delay=Duration(milliseconds=100))
    with lasts(0.2):
        await run(hook)
    assert out.text() == "x\n" * 3
    assert [line.endswith("ended with status 1; retrying") for line in caplog.messages] == [True, True]


async def test_a_hook_that_never_succeeds_is_given_up(out: Out) -> None:
    hook = a_line('echo x >> "$OUT"; echo no; exit 7', retries=2, retry_delay=Duration(0))
    assert (await failure(hook)).message.endswith("ended with status 7: no")
    assert out.text() == "x\n" * 3


async def test_each_try_has_the_whole_time(out: Out) -> None:
    line = 'echo x >> "$OUT"; exec sleep 600'
    await late(out, lambda timeout: a_line(line, timeout=timeout, retries=1, retry_delay=Duration(0)), lines=2)
    assert out.text() == "x\n" * 2


# Webhooks


class Server:
    """A webhook's other side.

    Attributes:
        url: Where it is.
        requests: What came: path, headers, body.
        answers: Statuses of the next answers; 200 when there are none left. A negative one is never sent.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.is_over = threading.Event()
        server = self

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.requests.append((self.path, dict(self.headers.items()), body))
                status = server.answers.pop(0) if server.answers else 200
                if status < 0:
                    server.is_over.wait(GUARD_S)
                    return
                self.send_response(status)
                self.send_header("Location", "/other")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    @contextmanager
    def serving(self, context: ssl.SSLContext | None = None) -> Iterator[Server]:
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
            self.url = self.url.replace("http:", "https:")
        thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.is_over.set()
            self._http.shutdown()
            thread.join()
            self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().serving() as server:
        yield server


def place(url: str) -> str:
    return url.partition("//")[2]


@pytest.mark.parametrize("status", [200, 201, 204])
async def test_a_webhook_gets_the_event(server: Server, status: int) -> None:
    server.answers = [status]
    hook = Hook(webhook=f"{server.url}/a/b?c=d&e", headers={"authorization": "Bearer t", "X-Team": "db"})
    assert await run(hook, event={"description": "\u96ea"}) == ""
    ((path, headers, body),) = server.requests
    assert path == "/a/b?c=d&e"
    assert {name.lower(): value for name, value in headers.items()} == {
        "host": place(server.url),
        "user-agent": headers["User-Agent"],
        "accept": "application/json",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "authorization": "Bearer t",
        "x-team": "db",
    }
    assert headers["User-Agent"].startswith("forewarn/")
    assert json.loads(body)["event"]["description"] == "\u96ea"


async def test_headers_of_a_webhook_replace_ours_however_they_are_written(server: Server) -> None:
    headers = {"content-TYPE": "text/json", "host": "hooks.example", "user-agent": "me"}
    await run(Hook(webhook=server.url, headers=headers))
    ((path, sent, _),) = server.requests
    assert path == "/"
    assert {
        name.lower(): value for name, value in sent.items() if name.lower() in {"content-type", "host", "user-agent"}
    } == {
        "content-type": "text/json",
        "host": "hooks.example",
        "user-agent": "me",
    }
    assert len(sent) == 5


@pytest.mark.parametrize("status", [301, 400, 404, 500, 503])
async def test_a_webhook_that_refuses_has_failed(server: Server, status: int) -> None:
    server.answers = [status]
    error = await failure(Hook(webhook=f"{server.url}/secret?secret"))
    assert error.message == f"webhook {place(server.url)} answered {status}"
    assert len(server.requests) == 1


async def test_a_webhook_is_tried_again(server: Server) -> None:
    server.answers = [500, 503]
    await run(Hook(webhook=server.url, retries=2, retry_delay=Duration(0)))
    assert len(server.requests) == 3


async def test_a_webhook_that_does_not_answer_has_failed(server: Server) -> None:
    server.answers = [-1]
    error = await failure(Hook(webhook=server.url, timeout=Duration(milliseconds=300)))
    assert error.message == f"webhook {place(server.url)} took longer than 0.3 s"


async def test_a_webhook_that_takes_no_connection_has_failed() -> None:
    address = reserve_address()
    error = await failure(Hook(webhook=f"http://{address}/"))
    assert error.message.startswith(f"webhook {address} does not answer: ")
    assert "refused" in error.message.lower()


async def test_a_connection_that_hangs_takes_no_longer_than_the_hook_may() -> None:
    """Its backlog is full: the handshake gets no answer."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        error = await failure(Hook(webhook=f"http://127.0.0.1:{port}/", timeout=Duration(milliseconds=300)))
        for each in waiting:
            each.close()
    assert error.message == f"webhook 127.0.0.1:{port} took longer than 0.3 s"


async def test_a_webhook_that_answers_nonsense_has_failed() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(Hook(webhook=f"http://127.0.0.1:{port}/"))
    assert error.message.startswith(f"webhook 127.0.0.1:{port} does not answer: ")


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=127.0.0.1", "-days", "1", "-keyout", str(key), "-out", str(certificate)]
    made = await run_process(command, stdin=b"", environment=os.environ, timeout_s=20, output_size_bytes_max=1000)
    assert made.status == 0, made.errors
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with Server().serving(context) as server:
        error = await failure(Hook(webhook=server.url))
        assert server.requests == []
    assert error.message.startswith(f"webhook {place(server.url)} does not answer: ")


# The order of things


class Noting(BuiltInHandler, frozen=True, kw_only=True, tag="noting"):
    """Notes in a file when it is called."""

    who: str
    out: Any
    breaks_at: tuple[str, ...] = ()
    error: Any = HookFailed("broken")

    async def _note(self, occasion: HandlerContext, method: str) -> None:
        self.out.note(f"{method} {self.who}")
        if method == "prepare":
            await occasion.remember(who=self.who)
        if method in self.breaks_at:
            if self.error is TimeoutError:
                await asyncio.sleep(3600)
            raise self.error

    async def prepare(self, context: HandlerContext) -> None:
        await self._note(context, "prepare")

    async def react_to_start(self, context: HandlerContext) -> None:
        await self._note(context, "started")

    async def undo(self, context: HandlerContext) -> None:
        await self._note(context, "undo")


Handlers = Callable[..., tuple[Any, ...]]


@pytest.fixture
def noting(out: Out) -> Handlers:
    def make(**members: Any) -> tuple[Any, ...]:  # noqa: ANN401 - members of the handlers
        return tuple(Noting(who=who, out=out, **members) for who in ("h1", "h2"))

    return make


def said(name: str, status: int = 0) -> Hook:
    return a_line(f'echo "hook {name}" >> "$OUT"; exit {status}')


def a_rule(handlers: tuple[Any, ...], **hooks: Any) -> Rule:  # noqa: ANN401 - of its steps
    return Rule(handlers=handlers, **hooks)


async def carried_out(record: EventRecord, step: EventStep, remembered: dict[str, Any] | None = None) -> None:
    async def remember(place: str, memory: dict[str, Any]) -> None:
        if remembered is not None:
            remembered[place] = memory

    await LiveStepExecutor(RealClock()).run(record, step, "db", remember)


async def test_what_is_prepared_first_is_undone_last(out: Out, noting: Handlers) -> None:
    rule = a_rule(
        noting(),
        prepare=(said("p1"), said("p2")),
        started=(said("s"),),
        recover=(said("r1"), said("r2")),
        before_approval=(said("b"),),
    )
    remembered: dict[str, Any] = {}
    for step in (EventStep.PREPARE, EventStep.BEFORE_APPROVAL, EventStep.STARTED, EventStep.RECOVER):
        await carried_out(a_record(rule), step, remembered)
    assert out.text().splitlines() == [
        *("prepare h1", "prepare h2", "hook p1", "hook p2"),
        "hook b",
        *("started h1", "started h2", "hook s"),
        *("hook r1", "hook r2", "undo h2", "undo h1"),
    ]
    assert remembered == {"0": {"who": "h1"}, "1": {"who": "h2"}}


async def test_hooks_for_what_was_cancelled_run_instead_of_those_that_recover(out: Out, noting: Handlers) -> None:
    """R77."""
    rule = a_rule(noting(), recover=(said("r"),), canceled=(said("c"),))
    await carried_out(a_record(rule), EventStep.CANCELED)
    assert out.text().splitlines() == ["hook c", "undo h2", "undo h1"]


async def test_undoing_goes_on_after_a_failure_and_tells_of_all(out: Out, noting: Handlers) -> None:
    rule = a_rule(noting(breaks_at=("undo",)), recover=(said("r1", 1), said("r2", 2), said("r3")))
    with pytest.raises(HookFailed) as caught:
        await carried_out(a_record(rule), EventStep.RECOVER)
    assert out.text().splitlines() == ["hook r1", "hook r2", "hook r3", "undo h2", "undo h1"]
    failures = caught.value.message.split("; handler ")
    assert caught.value.message.count("ended with status") == 2
    assert failures[1:] == ["noting: broken", "noting: broken"]
    assert caught.value.details["output"] == ""  # no handler and no hook has printed anything


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (HookFailed("no"), "handler noting: no"),
        (TimeoutError, "handler noting took longer than 0.2 s"),
        (TimeoutError("of its own"), "handler noting failed unexpectedly: TimeoutError: of its own"),
        (KeyError("x"), "handler noting failed unexpectedly: KeyError: 'x'"),
    ],
    ids=["refused", "slow", "a time-out of its own", "a bug"],
)
async def test_a_handler_that_fails_ends_preparing_and_does_not_end_undoing(
    out: Out,
    noting: Handlers,
    error: type[Exception] | Exception,
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    timeout = Duration(milliseconds=200) if error is TimeoutError else Duration(hours=1)
    rule = a_rule(noting(breaks_at=("prepare", "undo"), error=error, timeout=timeout), prepare=(said("p"),))
    with pytest.raises(HookFailed) as caught:
        await carried_out(a_record(rule), EventStep.PREPARE)
    assert caught.value.message == message
    with pytest.raises(HookFailed) as caught:
        await carried_out(a_record(rule), EventStep.RECOVER)
    assert caught.value.message == f"{message}; {message}"
    assert out.text().splitlines() == ["prepare h1", "undo h2", "undo h1"]
    assert bool([r for r in caplog.records if r.exc_info]) is ("unexpectedly" in message)
    caplog.clear()


async def test_cancelling_a_handler_is_no_failure_of_it(noting: Handlers) -> None:
    rule = a_rule(noting(breaks_at=("prepare",), error=TimeoutError))
    task = asyncio.ensure_future(carried_out(a_record(rule), EventStep.PREPARE))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Running(BuiltInHandler, frozen=True, kw_only=True, tag="running"):
    """Runs commands as a handler does."""

    async def prepare(self, context: HandlerContext) -> None:
        ran = await context.run("sh", "-c", "cat; echo err >&2; exit 3", stdin=b"in", is_checked=False)
        context.log(f"{ran.status} {ran.output} {ran.errors.strip()} {context.vm} {context.event.type}")
        await context.pause(0.01)
        await context.remember(a=1)
        await context.remember(b=2)
        assert context.memory == {"a": 1, "b": 2}
        assert context.now.tzinfo is not None
        await context.run("sh", "-c", "echo no >&2; exit 4")

    async def undo(self, context: HandlerContext) -> None:
        await context.run("sleep", "30", timeout_s=0.1)


class Reading(BuiltInHandler, frozen=True, kw_only=True, tag="reading"):
    """Reads two MiB of the output of a command."""

    async def prepare(self, context: HandlerContext) -> None:
        ran = await context.run(
            "sh", "-c", "head -c 1048577 /dev/zero | tr '\\0' a; head -c 1048575 /dev/zero | tr '\\0' b"
        )
        await context.remember(size=len(ran.output), first=ran.output[:2])


async def test_a_handler_is_given_the_last_mib_of_an_output_whatever_is_configured() -> None:
    remembered: dict[str, Any] = {}
    await carried_out(a_record(a_rule((Reading(),))), EventStep.PREPARE, remembered)
    assert remembered == {"0": {"size": 1 << 20, "first": "ab"}}


async def test_a_handler_runs_commands_and_remembers(caplog: pytest.LogCaptureFixture) -> None:
    record = a_record(a_rule((Running(),)))
    remembered: dict[str, Any] = {}
    with caplog.at_level("INFO", "forewarn.agent"), pytest.raises(HookFailed) as caught:
        await carried_out(record, EventStep.PREPARE, remembered)
    assert caught.value.message == "handler running: sh -c echo no >&2; exit 4 ended with status 4: no"
    assert caplog.messages == ["3 in err db Freeze"]
    assert remembered == {"0": {"a": 1, "b": 2}}
    with pytest.raises(HookFailed, match=r"handler running: sleep took longer than 0.1 s"):
        await carried_out(record, EventStep.RECOVER)


async def test_a_handler_of_ours_prepares_and_undoes(tmp_path: Path) -> None:
    record = a_record(Rule(handlers=(FileHandler(touch=str(tmp_path / "drain")),)))
    remembered: dict[str, Any] = {}
    await carried_out(record, EventStep.PREPARE, remembered)
    assert (tmp_path / "drain").exists()
    undone = a_record(record.rule, memory=remembered)
    await carried_out(undone, EventStep.RECOVER)
    assert not (tmp_path / "drain").exists()
