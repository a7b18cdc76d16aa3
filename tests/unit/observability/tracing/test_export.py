"""Where traces are sent, under which name, and what is said when they cannot be."""

from __future__ import annotations

import logging

import pytest

from forewarn.clock import VirtualClock
from forewarn.errors import ConfigError
from forewarn.observability.tracing import make_tracing
from forewarn.observability.tracing.export import (
    _find_secrets,
    _redact_url,
    _SdkLogHandler,
    build_traces_url,
    choose_service_name,
)
from tests.support.world import NOW


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://tempo.example.org/otlp/v1/traces", "https://tempo.example.org/otlp/v1/traces"),
    ],
)
def test_an_address_without_a_path_gets_that_of_the_protocol(said: str, url: str) -> None:
    assert build_traces_url(said) == url


def test_the_name_is_the_setting_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    assert choose_service_name(None) == "forewarn"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=cloud")
    assert choose_service_name(None) == "cloud"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "cloud-1")
    assert choose_service_name(None) == "cloud-1"
    assert choose_service_name("cloud-2") == "cloud-2"


def test_what_is_said_of_a_collector_has_no_password_and_no_query() -> None:
    url = "https://ann:hunter2@tempo.example.org/v1/traces?key=s3cret"
    words = _SdkLogHandler()
    words.secrets = _find_secrets(url)
    record = logging.LogRecord("x", logging.ERROR, "", 1, f"no way to {url}\nfor hunter2", None, None)
    words.emit(record)
    assert words.last == "no way to https://...@tempo.example.org/v1/traces?... for ..."
    assert _redact_url(url) == "https://tempo.example.org/v1/traces"


def test_a_variable_that_cannot_be_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    sdk = logging.getLogger("opentelemetry")
    before = (sdk.handlers[:], sdk.propagate)
    with pytest.raises(ConfigError, match=r"variables \(OTEL_\.\.\.\): max_export_batch_size"):
        make_tracing("http://127.0.0.1:1", clock=VirtualClock(NOW))
    assert (sdk.handlers, sdk.propagate) == before
