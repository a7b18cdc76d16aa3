"""What others wrote is shown, and steers no terminal: in tables, errors, JSON, YAML, CSV and logs."""

from __future__ import annotations

import json
import logging

import pytest
import structlog
import yaml

from forewarn.agent.logs import _JsonFormatter, _PlainFormatter
from forewarn.cli.list_output import CSV_COLUMNS, print_csv, print_items
from forewarn.cli.main import format_error
from forewarn.cli.output import Column, Output, as_json, as_yaml
from forewarn.errors import Conflict
from forewarn.observability.logs import escape_values
from forewarn.util.escape import escape_controls, escape_json, escape_lines, has_controls

CONTROLS = "".join(
    map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)])
)
HOSTILE = f"a\x1b]0;title\x07\x9b2J\u202e{CONTROLS}z"


def is_harmless(text: str) -> bool:
    return not set(text) & (set(CONTROLS) - {"\n", "\t"})


def test_every_control_character_is_made_visible() -> None:
    assert is_harmless(escape_controls(HOSTILE))
    assert "\n" not in escape_controls(HOSTILE)
    assert escape_controls("\x1b[31m\u202e") == "\\x1b[31m\\u202e"
    assert escape_controls("Grüße 日本語 🚀") == "Grüße 日本語 🚀"


def test_lines_and_tabs_stay_where_they_are_wanted() -> None:
    assert escape_lines("a\tb\nc\rd\x1b") == "a\tb\nc\\rd\\x1b"
    assert not has_controls("a\tb\nc")
    assert has_controls("a\rb")


def test_json_says_the_same_without_them() -> None:
    text = escape_json(json.dumps({"a": HOSTILE}, ensure_ascii=False))
    assert is_harmless(text)
    assert json.loads(text) == json.loads(as_json({"a": HOSTILE})) == {"a": HOSTILE}


def test_yaml_says_the_same_without_them() -> None:
    value = {"a": HOSTILE, "b": "Grüße"}
    assert is_harmless(as_yaml(value))
    assert yaml.safe_load(as_yaml(value)) == value
    assert "Grüße" in as_yaml({"b": "Grüße"})


@pytest.mark.parametrize("is_json", [False, True])
def test_nothing_that_a_command_prints_has_them(is_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(is_json=is_json)
    output.print_line(HOSTILE)
    output.print_notice(HOSTILE)
    output.print_json(HOSTILE)
    output.print_json_line({HOSTILE: HOSTILE})
    output.print_table([{"a": HOSTILE}], [Column("a")])
    output.print_fields([("a", HOSTILE)])
    print_items([{"a": HOSTILE}], output)
    print_csv([dict.fromkeys(CSV_COLUMNS["audit-log"].split(), HOSTILE)], "audit-log", output)
    printed = capsys.readouterr()
    assert is_harmless(printed.out + printed.err)
    assert "\\x1b]0;title" in printed.out


def test_an_error_is_one_line_without_them() -> None:
    line = format_error(Conflict(HOSTILE))
    assert is_harmless(line)
    assert "\n" not in line


def test_the_logs_of_the_service_have_none_on_a_terminal() -> None:
    event = escape_values(None, "info", {"event": HOSTILE, "error": HOSTILE, "count": 3})
    printed = structlog.dev.ConsoleRenderer(colors=False)(None, "info", event)
    assert isinstance(printed, str)
    assert is_harmless(printed)


@pytest.mark.parametrize("formatter", [_JsonFormatter(), _PlainFormatter()])
def test_the_logs_of_an_agent_have_none(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("forewarn", logging.INFO, "", 0, HOSTILE, (), None)
    record.output = HOSTILE
    assert is_harmless(formatter.format(record))
