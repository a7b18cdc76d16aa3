"""How spans get to the collector: in batches, by a thread of the SDK's; nobody waits for it.

What the SDK has to say about a collector that is away it says for each try. Here it is said once, and once more when it
is there again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

__all__ = ["CLOSE_S", "Exporting", "service_name_of", "traces_url"]

CLOSE_S = 1.0
"""For what is left to be sent when the service stops; it has five seconds for everything."""

_SDK = "opentelemetry"
_TRACES_PATH = "/v1/traces"
_WORDS_LENGTH_MAX = 300


def service_name_of(said: str | None) -> str:
    """The name that traces stand under: as said, as the environment has it, or ``forewarn``."""
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    named = {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in attributes)}
    return said or os.environ.get("OTEL_SERVICE_NAME") or named.get("service.name") or "forewarn"


def traces_url(endpoint: str) -> str:
    """Where spans are posted to: a collector's address, with the path of the protocol unless it has one."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


class Exporting:
    """The way from the SDK to the collector.

    Args:
        provider: Whose spans are sent.
        endpoint: The collector's URL, with a path or without.
        log: Told when spans cannot be sent, and when they can again; None for the log.
    """

    def __init__(self, provider: TracerProvider, endpoint: str, log: Callable[..., None] | None) -> None:
        self._provider = provider
        self._words = _Words()
        self._sdk = logging.getLogger(_SDK)
        self._propagated = self._sdk.propagate
        self._sdk.addHandler(self._words)
        self._sdk.propagate = False
        url = traces_url(endpoint)
        self._words.secrets = _secrets_of(url)
        try:
            told = _Told(OTLPSpanExporter(endpoint=url), _where(url), self._words, log)
            self._words.on_full = told.drop
            provider.add_span_processor(BatchSpanProcessor(told))
        except ValueError:  # a variable of the SDK's
            self._leave()
            raise

    def _leave(self) -> None:
        self._sdk.removeHandler(self._words)
        self._sdk.propagate = self._propagated

    async def close(self) -> None:
        """Send what is left, for at most `CLOSE_S`; a thread that is still waiting then ends with the process."""
        loop = asyncio.get_running_loop()
        is_sent = asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(is_sent.set)

        # A thread of a pool would be waited for at the end of the process.
        threading.Thread(target=shut, name="forewarn-traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await is_sent.wait()
        except TimeoutError:
            pass
        finally:
            self._leave()


class _Told(SpanExporter):
    """An exporter whose trouble is told once."""

    def __init__(self, inner: SpanExporter, where: str, words: _Words, log: Callable[..., None] | None) -> None:
        self._inner = inner
        self._where = where
        self._words = words
        self._log = log or structlog.get_logger("forewarn.observability.tracing").warning
        self._is_failing = False
        self._is_dropping = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._words.last = ""
        result = self._inner.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            self._log("traces cannot be sent, those of this time are lost", to=self._where, error=self._words.last)
        elif self._is_failing and not is_failing:
            self._log("traces are sent again", to=self._where)
        self._is_failing = is_failing
        self._is_dropping &= is_failing
        return result

    def drop(self) -> None:
        """The queue is full."""
        if not self._is_dropping:
            self._is_dropping = True
            self._log("more is traced than can be sent, the oldest is lost", to=self._where)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _Words(logging.Handler):
    """Listens to what the SDK says, and keeps the last of it.

    Attributes:
        last: What it said last; ``""``: nothing.
        secrets: What is left out of that.
        on_full: Called when the SDK says that its queue is full.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self.secrets: tuple[str, ...] = ()
        self.on_full: Callable[[], None] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        text = str(record.msg)
        if text.startswith("Queue full"):
            self.on_full()
        elif text.startswith("Transient error") and isinstance(record.args, tuple) and record.args:
            self.last = self._line(str(record.args[0]))
        elif not self.last:  # that there are no more tries says nothing of the reason
            self.last = self._line(record.getMessage())

    def _line(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "...")
        return " ".join(text.split())[:_WORDS_LENGTH_MAX]


def _secrets_of(url: str) -> tuple[str, ...]:
    """What `_where` leaves out."""
    parts = urlsplit(url)
    return tuple(filter(None, (parts.netloc.rpartition("@")[0], parts.password, parts.query)))


def _where(url: str) -> str:
    """A URL as it may be told: without a password or a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
