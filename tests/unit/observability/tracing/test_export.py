"""Where traces are sent, under which name, and what is said when they cannot be."""

from __future__ import annotations

import logging

import pytest

from forewarn.clock import VirtualClock
from forewarn.errors import ConfigError
from forewarn.observability.tracing import opened
from forewarn.observability.tracing.export import _secrets_of, _where, _Words, service_name_of, traces_url
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
    assert traces_url(said) == url


def test_the_name_is_the_setting_or_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    assert service_name_of(None) == "forewarn"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=cloud")
    assert service_name_of(None) == "cloud"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "cloud-1")
    assert service_name_of(None) == "cloud-1"
    assert service_name_of("cloud-2") == "cloud-2"


def test_what_is_said_of_a_collector_has_no_password_and_no_query() -> None:
    url = "https://ann:hunter2@tempo.example.org/v1/traces?key=s3cret"
    words = _Words()
    words.secrets = _secrets_of(url)
    record = logging.LogRecord("x", logging.ERROR, "", 1, f"no way to {url}\nfor hunter2", None, None)
    words.emit(record)
    assert words.last == "no way to https://...@tempo.example.org/v1/traces?... for ..."
    assert _where(url) == "https://tempo.example.org/v1/traces"


def test_a_variable_that_cannot_be_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
    sdk = logging.getLogger("opentelemetry")
    before = (sdk.handlers[:], sdk.propagate)
    with pytest.raises(ConfigError, match="say: max_export_batch_size"):
        opened("http://127.0.0.1:1", clock=VirtualClock(NOW))
    assert (sdk.handlers, sdk.propagate) == before
