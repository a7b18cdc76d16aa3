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

__all__ = ["CLOSE_S", "ExportPipeline", "build_traces_url", "choose_service_name"]

CLOSE_S = 1.0
"""Time limit for sending the remaining spans when the service stops, which must take five seconds at most."""

_SDK = "opentelemetry"
_TRACES_PATH = "/v1/traces"
_WORDS_LENGTH_MAX = 300


def choose_service_name(said: str | None) -> str:
    """Return the service name for traces: the given one, that of the environment, or ``forewarn``."""
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    named = {name.strip(): value.strip() for name, _, value in (each.partition("=") for each in attributes)}
    return said or os.environ.get("OTEL_SERVICE_NAME") or named.get("service.name") or "forewarn"


def build_traces_url(endpoint: str) -> str:
    """Return the URL to which spans are posted: the endpoint, with the protocol's path unless it has a path."""
    return endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


class ExportPipeline:
    """Export pipeline from the SDK to the collector, whose URL may have a path."""

    def __init__(self, provider: TracerProvider, endpoint: str) -> None:
        self._provider = provider
        self._sdk_log = _SdkLogHandler()
        self._sdk = logging.getLogger(_SDK)
        self._propagated = self._sdk.propagate
        self._sdk.addHandler(self._sdk_log)
        # Otherwise the handlers of the root logger, if there are any, would show each failed attempt as well.
        self._sdk.propagate = False
        url = build_traces_url(endpoint)
        self._sdk_log.secrets = _find_secrets(url)
        try:
            exporter = _FailureReportingExporter(OTLPSpanExporter(endpoint=url), _redact_url(url), self._sdk_log)
            self._sdk_log.on_full = exporter.report_dropped
            provider.add_span_processor(BatchSpanProcessor(exporter))
        except ValueError:  # an invalid variable of the SDK
            self._restore_logging()
            raise

    def _restore_logging(self) -> None:
        self._sdk.removeHandler(self._sdk_log)
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
            return  # that thread may still log, and its messages do not belong on stderr
        self._restore_logging()


class _FailureReportingExporter(SpanExporter):
    """Exporter that reports a failure once instead of for every batch."""

    def __init__(self, inner: SpanExporter, where: str, sdk_log: _SdkLogHandler) -> None:
        self._inner = inner
        self._where = where
        self._sdk_log = sdk_log
        self._log = structlog.get_logger("forewarn.observability.tracing").warning
        self._is_failing = False
        self._is_dropping = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._sdk_log.last = ""
        result = self._inner.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            self._log("cannot send traces; they are lost for now", to=self._where, error=self._sdk_log.last)
        elif self._is_failing and not is_failing:
            self._log("traces are sent again", to=self._where)
        self._is_failing = is_failing
        # Once sending works, a full queue is worth a new line.
        self._is_dropping &= is_failing
        return result

    def report_dropped(self) -> None:
        """Report that the queue is full, once until sending works again."""
        if not self._is_dropping:
            self._is_dropping = True
            self._log("the trace queue is full; the oldest spans are lost", to=self._where)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _SdkLogHandler(logging.Handler):
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
            self.last = self._redact_line(str(record.args[0]))
        elif not self.last:  # the final "giving up" message lacks the reason
            self.last = self._redact_line(record.getMessage())

    def _redact_line(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "...")
        return " ".join(text.split())[:_WORDS_LENGTH_MAX]


def _find_secrets(url: str) -> tuple[str, ...]:
    """Return the parts of a URL that `_redact_url` removes."""
    parts = urlsplit(url)
    return tuple(filter(None, (parts.netloc.rpartition("@")[0], parts.password, parts.query)))


def _redact_url(url: str) -> str:
    """Return a URL that is safe to log: without credentials and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
