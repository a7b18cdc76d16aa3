"""Export of spans to the collector: in batches, by a background thread of the SDK.

The SDK logs every failed attempt to reach the collector. This module logs the failure once, and the recovery once.
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
"""Time limit for sending the remaining spans when the service stops, which must take five seconds at most."""

_SDK = "opentelemetry"
_TRACES_PATH = "/v1/traces"
_WORDS_LENGTH_MAX = 300


def service_name_of(said: str | None) -> str:
    """Return the service name for traces: the given one, that of the environment, or ``forewarn``."""
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    named = {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in attributes)}
    return said or os.environ.get("OTEL_SERVICE_NAME") or named.get("service.name") or "forewarn"


def traces_url(endpoint: str) -> str:
    """Return the URL to which spans are posted: the endpoint, with the protocol's path unless it has a path."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


class Exporting:
    """Export pipeline from the SDK to the collector.

    Args:
        provider: Provider of the spans.
        endpoint: URL of the collector, with or without a path.
        log: Function that reports when sending fails and when it works again; None for the log.
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
        except ValueError:  # an invalid variable of the SDK
            self._leave()
            raise

    def _leave(self) -> None:
        self._sdk.removeHandler(self._words)
        self._sdk.propagate = self._propagated

    async def close(self) -> None:
        """Send the remaining spans, for at most `CLOSE_S`; a thread that is still sending ends with the process."""
        loop = asyncio.get_running_loop()
        is_sent = asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(is_sent.set)

        # A daemon thread, since the process would wait at its end for a thread of a pool.
        threading.Thread(target=shut, name="forewarn-traces", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await is_sent.wait()
        except TimeoutError:
            return  # that thread may still log, and its words are not for the standard error
        self._leave()


class _Told(SpanExporter):
    """Exporter that reports a failure once instead of for every batch."""

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
        """Report that the queue is full, once until sending works again."""
        if not self._is_dropping:
            self._is_dropping = True
            self._log("more is traced than can be sent, the oldest is lost", to=self._where)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _Words(logging.Handler):
    """Log handler that keeps the latest message of the SDK.

    Attributes:
        last: Latest message; empty if there is none.
        secrets: Strings removed from messages.
        on_full: Callable called when the SDK logs that its queue is full.
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
        elif not self.last:  # the final "giving up" message lacks the reason
            self.last = self._line(record.getMessage())

    def _line(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "...")
        return " ".join(text.split())[:_WORDS_LENGTH_MAX]


def _secrets_of(url: str) -> tuple[str, ...]:
    """Return the parts of a URL that `_where` removes."""
    parts = urlsplit(url)
    return tuple(filter(None, (parts.netloc.rpartition("@")[0], parts.password, parts.query)))


def _where(url: str) -> str:
    """Return a URL that is safe to log: without credentials and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
