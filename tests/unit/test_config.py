"""Settings: from flag, environment, file, default, in that order; each fault is one line that names the setting."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from forewarn.config.loading import load_settings, make_settings
from forewarn.config.settings import Settings, SettingSource
from forewarn.endpoint.descriptors import fit_descriptors
from forewarn.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"FOREWARN_{name.upper()}", raising=False)


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "forewarn.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def fault(**flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(**flags)  # type: ignore[arg-type] # config is among them
    assert "\n" not in caught.value.message
    return caught.value.message


# Where settings come from


def test_the_defaults_are_valid_and_need_nothing() -> None:
    """R9, R45, R67, R69, R88, R98: what is off by default is off."""
    settings = load_settings()
    assert settings.initial_incarnation == 1
    assert settings.first_answer_delay == timedelta(0)
    assert settings.disable_after == timedelta(hours=24)
    assert settings.user_operations_max is None
    assert settings.rate_limit_per_s is None
    assert (settings.simulate_impact_after, settings.simulate_complete_after) == (
        timedelta(seconds=7),
        timedelta(minutes=10),
    )


def test_flag_comes_before_environment_before_file_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = file(tmp_path, 'announce_delay = "1m"\nstart_delay = "1m"\nnotice_max = "1d"\n')
    monkeypatch.setenv("FOREWARN_ANNOUNCE_DELAY", "2m")
    monkeypatch.setenv("FOREWARN_START_DELAY", "2m")
    settings = load_settings(config, announce_delay="3m", wait_max=None)
    assert settings.announce_delay == timedelta(minutes=3)
    assert settings.start_delay == timedelta(minutes=2)
    assert settings.notice_max == timedelta(days=1)
    assert settings.wait_max == timedelta(minutes=5)


def test_other_variables_of_forewarn_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_TOKEN", "x")
    monkeypatch.setenv("FOREWARN_CONTROL_URL", "http://127.0.0.1:1")
    assert load_settings().control_listen == Settings().control_listen


@pytest.mark.parametrize("name", ["clock_start", "user_operations_max", "rate_limit_per_s", "simulate_complete_after"])
def test_the_word_none_unsets_what_may_be_unset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"FOREWARN_{name.upper()}", "none")
    assert getattr(load_settings(), name) is None
    assert getattr(load_settings(**{name: "none"}), name) is None  # type: ignore[arg-type] # flags are not typed


def test_numbers_and_literals_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_UNKNOWN_EVENT", "404")
    monkeypatch.setenv("FOREWARN_LEGACY_LATEST", "true")
    monkeypatch.setenv("FOREWARN_USER_OPERATIONS_MAX", "10")
    settings = load_settings()
    assert (settings.dialect.unknown_event, settings.dialect.legacy_latest) == (404, True)
    assert settings.rules.user_operations_max == 10


def test_rules_and_dialect_take_over_every_switch() -> None:
    settings = load_settings(
        initial_incarnation=0,
        start_delay="1s",
        hosts_may_join_scopes=False,
        cloud="china",
        notbefore_2017_03_01="rfc1123",
        post_body="document",
    )
    assert not settings.rules.hosts_may_join_scopes
    assert (settings.rules.initial_incarnation, settings.rules.start_delay) == (0, timedelta(seconds=1))
    dialect = settings.dialect
    assert (dialect.cloud, dialect.notbefore_2017_03_01, dialect.post_body) == ("china", "rfc1123", "document")


# Faults


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"first_answer_delay": "121s"}, "setting first_answer_delay: Input should be less than or equal to"),
        ({"announce_delay": "-1s"}, "setting announce_delay: Input should be greater than or equal to"),
        ({"start_delay": "soon"}, "setting start_delay: 'soon' is not a span of time"),
        ({"disable_after": "999999999d"}, "setting disable_after: '999999999d' is more than a hundred years"),
        ({"cloud": "mars"}, "setting cloud: Input should be 'public' or 'china'"),
        ({"due_batch_max": 0}, "setting due_batch_max: Input should be greater than or equal to 1"),
        ({"simulate_complete_after": "never"}, "setting simulate_complete_after: 'never' is not a span of time"),
        ({"no_such_setting": 1}, "setting no_such_setting: Extra inputs"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(flags: dict[str, object], expected: str) -> None:
    assert fault(**flags).startswith(expected)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_WAIT_MAX", "an hour")
    assert fault().startswith("setting wait_max: 'an hour' is not a span of time")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wait_max = ", "cannot read "),
        ("unknown = 1", "setting unknown: Extra inputs"),
        ("wait_max = 'x'", "setting wait_max: 'x' is not a span of time"),
        (b"wait_max = '\xff'", "cannot read "),
    ],
)
def test_a_wrong_file_is_named(text: str | bytes, expected: str, tmp_path: Path) -> None:
    assert fault(config=file(tmp_path, text)).startswith(expected)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert fault(config=tmp_path / "none.toml").endswith("none.toml: no such file")
    assert fault(config=tmp_path).endswith(": not a file")


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:4318", "ftp://x", "http://", "http://x:port", "http://x:0", "http://a b"]
)
def test_a_collector_is_a_url(endpoint: str) -> None:
    assert "is expected to be a URL such as http://127.0.0.1:4318" in fault(tracing_endpoint=endpoint)


def test_no_collector_is_said_by_a_word() -> None:
    assert load_settings().tracing_endpoint is None
    assert load_settings(tracing_endpoint="none").tracing_endpoint is None
    assert load_settings(tracing_endpoint="https://[::1]:4318/x").tracing_endpoint == "https://[::1]:4318/x"


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nan", "half"])
def test_a_share_lies_between_nothing_and_all(ratio: str) -> None:
    assert "tracing_sample_ratio" in fault(tracing_sample_ratio=ratio)


@pytest.mark.parametrize("text", ["forewarn:8169", "a b", "http://forewarn", "-a", "a..b", "*.example", "a" * 64])
def test_a_host_name_that_is_none_is_refused(text: str) -> None:
    assert "is not a host name" in fault(metadata_host_names=f"good, {text}")


def test_host_names_are_read_in_lower_case_and_may_be_none() -> None:
    assert load_settings(metadata_host_names=" Forewarn ,metadata.internal, ").metadata_host_names == (
        "forewarn,metadata.internal"
    )
    assert load_settings().metadata_host_names == ""


# Sources


def test_each_setting_knows_where_its_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_NOTICE_MAX", "7d")
    monkeypatch.setenv("FOREWARN_CONTROL_LISTEN", "127.0.0.1:1")
    text = 'notice_max = "8d"\ncontrol_listen = "127.0.0.1:2"\nworkers = 1\n[budgets.tenant]\nwatches_max = 3\n'
    settings = load_settings(file(tmp_path, text), control_listen="127.0.0.1:3", state_dir=None)
    names = ("control_listen", "notice_max", "workers", "budgets", "state_dir", "database_url")
    assert {name: settings.find_source(name).value for name in names} == {
        "control_listen": "command line",
        "notice_max": "environment",
        "workers": "file",
        "budgets": "file",
        "state_dir": "default",
        "database_url": "default",
    }
    lowered = fit_descriptors(settings, 300)
    assert lowered.find_source("control_connections_max") is SettingSource.OPEN_FILES_LIMIT
    assert lowered.find_source("notice_max") is SettingSource.ENVIRONMENT
    assert settings.find_source("control_connections_max") is SettingSource.DEFAULT


def test_arguments_of_a_program_count_as_the_command_line() -> None:
    settings = make_settings(workers=1)
    assert settings.find_source("workers") is SettingSource.COMMAND_LINE
    assert settings.find_source("notice_max") is SettingSource.DEFAULT
