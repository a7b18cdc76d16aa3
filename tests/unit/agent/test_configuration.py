from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.codec import Duration
from forewarn.agent.configuration import (
    Configuration,
    default_config_file,
    default_state_file,
    find_time_zone,
    parse_configuration,
)
from forewarn.agent.handlers import FileHandler
from forewarn.agent.rule import Hook, Rule
from forewarn.agent.window import WeeklyWindow
from forewarn.errors import ConfigError

HANDLERS = "'file', 'haproxy', 'kubernetes', 'nginx', 'pacemaker' or 'systemd'"
SPAN = "expected for example 90s, 15m, 24h or 7d"


def reason(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_configuration(text, "agent.toml")
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("agent.toml: ")
    return caught.value.message.removeprefix("agent.toml: ")


# What is taken


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "\r\n\r\n", "[together]\n"])
def test_nothing_need_be_set(text: str) -> None:
    """Every event is only logged then."""
    configuration = parse_configuration(text)
    assert configuration == Configuration()
    assert configuration.rules == ()
    assert configuration.endpoint == "http://169.254.169.254"
    assert configuration.listen == "127.0.0.1:9469"


def test_everything_can_be_set() -> None:
    text = """
endpoint = "http://127.0.0.1:8080"
name = "db"
scale_set = "fleet"
source_address = "10.0.0.4"
poll_interval = "2s"
wait = "0s"
state_file = "/var/lib/forewarn/db.json"
listen = "[::1]:9469"
log_file = "/var/log/forewarn.log"
log_level = "debug"
timezone = "Europe/Oslo"
margin = 7.5
output_size_bytes_max = 0
events_max = 1
history_max = 0
dry_run = true

[together]
mode = "all-prepared"
secondary_after = "2m"
secondary_sources = ["Platform", "User"]
deadline = "4m"
stagger = "5s"
listen = "10.0.0.4:9470"
secret_file = "/etc/forewarn/secret"
peers = { web = "http://10.0.0.5:9470" }

[[rule]]
name = "short"
types = ["Freeze", "Preempt"]
sources = ["Platform"]
min_duration = "0s"
max_duration = "8s"
description = "migration"
affects = "any"
window = ["Sat,Sun 00:00-24:00", "22:00-06:00"]
approve = "at-once"
drain = true

[[rule]]
handlers = [{ use = "file", touch = "/run/drain", timeout = "9s" }]
prepare = [["/bin/drain", "--now"], { shell = "sync", timeout = "1m", retries = 3, retry_delay = "5s" }]
before_approval = [{ webhook = "https://example.com/", headers = { X-Token = "t" } }]
on_failure = "approve"
interrupted = "mark"

[[rule.recover]]
command = ["/bin/undrain"]
[[rule.recover]]
command = ["/bin/check"]
"""
    configuration = parse_configuration(text)
    assert configuration == Configuration(
        endpoint="http://127.0.0.1:8080",
        name="db",
        scale_set="fleet",
        source_address="10.0.0.4",
        poll_interval=Duration(seconds=2),
        wait=Duration(0),
        state_file="/var/lib/forewarn/db.json",
        listen="[::1]:9469",
        log_file="/var/log/forewarn.log",
        log_level="debug",
        timezone="Europe/Oslo",
        margin=Duration(seconds=7.5),
        output_size_bytes_max=0,
        events_max=1,
        history_max=0,
        dry_run=True,
        together=TogetherSettings(
            mode="all-prepared",
            secondary_after=Duration(minutes=2),
            secondary_sources=("Platform", "User"),
            deadline=Duration(minutes=4),
            stagger=Duration(seconds=5),
            listen="10.0.0.4:9470",
            secret_file="/etc/forewarn/secret",
            peers={"web": "http://10.0.0.5:9470"},
        ),
        rule=(
            Rule(
                name="short",
                types=("Freeze", "Preempt"),
                sources=("Platform",),
                min_duration=Duration(0),
                max_duration=Duration(seconds=8),
                description="migration",
                affects="any",
                window=(WeeklyWindow("Sat,Sun 00:00-24:00"), WeeklyWindow("22:00-06:00")),
                approve="at-once",
                drain=True,
            ),
            Rule(
                handlers=(FileHandler(touch="/run/drain", timeout=Duration(seconds=9)),),
                prepare=(
                    ("/bin/drain", "--now"),
                    Hook(shell="sync", timeout=Duration(minutes=1), retries=3, retry_delay=Duration(seconds=5)),  # noqa: S604
                ),
                before_approval=(Hook(webhook="https://example.com/", headers={"X-Token": "t"}),),
                on_failure="approve",
                interrupted="mark",
                recover=(Hook(command=("/bin/undrain",)), Hook(command=("/bin/check",))),
            ),
        ),
    )


def test_a_vm_may_say_who_it_is_and_of_which_scale_set() -> None:
    """R106."""
    assert (Configuration().name, Configuration().scale_set) == ("", "")
    assert parse_configuration('scale_set = "fleet"').scale_set == "fleet"


def test_a_rule_without_a_name_is_called_by_its_place() -> None:
    rules = parse_configuration('[[rule]]\n[[rule]]\nname = "db"\n[[rule]]\n').rules
    assert [rule.name for rule in rules] == ["rule 1", "db", "rule 3"]


def test_lines_may_end_as_on_windows() -> None:
    text = '[[rule]]\r\nname = """a\r\nb"""\r\nprepare = [\r\n  ["drain"],\r\n]\r\n'
    assert parse_configuration(text).rule == (Rule(name="a\nb", prepare=(("drain",),)),)
    assert reason(text + "nmae = 1\r\n") == "rule[0].nmae: unknown key; did you mean name?"


def test_the_agent_need_not_listen() -> None:
    assert parse_configuration('listen = ""').listen == ""


@pytest.mark.parametrize("endpoint", ["discover", "http://[::1]:8080", "https://metadata.example/base/"])
def test_an_endpoint_is_a_url_or_is_looked_for(endpoint: str) -> None:
    assert parse_configuration(f'endpoint = "{endpoint}"').endpoint == endpoint


def test_the_state_is_in_the_system_s_place_unless_told_otherwise() -> None:
    assert Configuration(state_file="/srv/state.json").state_path == Path("/srv/state.json")
    assert Configuration().state_path == default_state_file()
    assert default_state_file().name == "agent.json"
    assert default_config_file().name == "agent.toml"


def test_windows_of_rules_are_in_the_time_zone_that_is_set() -> None:
    moment = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert moment.astimezone(find_time_zone("Europe/Oslo")).hour == 13
    assert moment.astimezone(find_time_zone("UTC")).hour == 12
    assert moment.astimezone(find_time_zone("local")) == moment
    assert find_time_zone("Europe/Oslo") == ZoneInfo("Europe/Oslo")
    east = timezone(timedelta(hours=5))
    assert moment.astimezone(east).utcoffset() == timedelta(hours=5)


# What is refused

MISTAKES = [
    # The file is not TOML.
    ("name = ", "not valid TOML: Invalid value (at end of document)"),
    ("\nname = x", "not valid TOML: Invalid value (at line 2, column 8)"),
    ('name = "a"\nname = "b"\n', "not valid TOML: Cannot overwrite a value (at line 2, column 11)"),
    ('[[rule]]\ntypes = ["Freeze"\n\n# end\n', "not valid TOML: Unclosed array (at end of document)"),
    ('a = """\nb = 1\n', "not valid TOML: Unterminated string (at end of document)"),
    ("a = 1\nb = " + "[" * 5000, "not valid TOML: nested too deeply"),
    ("a = 1 b = 2", "not valid TOML: Expected newline or end of document after a statement (at line 1, column 7)"),
    # A value has another type.
    ("\nname = 3", "name: expected a string, got 3"),
    ("name = 1979-05-27", "name: expected a string, got 1979-05-27"),
    ('dry_run = "yes"', "dry_run: expected true or false, got 'yes'"),
    ("events_max = true", "events_max: expected an integer, got true"),
    ("events_max = 1.5", "events_max: expected an integer, got 1.5"),
    ("together = 3", "together: expected a table, got 3"),
    ("[[together]]", "together: expected a table, got an array"),
    ("[rule]\nname = 'x'", "rule: expected [[rule]], because there may be several, got [rule]"),
    ("rule = 3", "rule: expected an array, got 3"),
    ("rule = [{}, 3]", "rule[1]: expected a table, got 3"),
    ("[[rule]]\ntypes = 'Freeze'", "rule[0].types: expected an array, for example ['Freeze'], got 'Freeze'"),
    (
        "[[rule]]\ntypes = ['Freeze', 3]",
        "rule[0].types[1]: expected 'Freeze', 'Preempt', 'Reboot', 'Redeploy' or 'Terminate', got 3",
    ),
    ("[[rule]]\ndescription = 3", "rule[0].description: expected a string, got 3"),
    ("[[rule]]\nprepare = 'drain'", "rule[0].prepare: expected an array, for example [['drain']], got 'drain'"),
    (
        "[[rule]]\nprepare = ['drain', '--now']",
        "rule[0].prepare[0]: expected a command, for example ['/bin/drain', '--now'], or a table, got 'drain'",
    ),
    ("[[rule]]\nprepare = [['drain', 3]]", "rule[0].prepare[0][1]: expected a string, got 3"),
    ("[[rule]]\nhandlers = [3]", "rule[0].handlers[0]: expected a table, got 3"),
    ("[[rule]]\ndrain = 'yes'", "rule[0].drain: expected true or false, got 'yes'"),
    ("[together.peers]\n'a b' = 3", "together.peers.'a b': expected a string, got 3"),
    (
        '[[rule]]\n[[rule.alert]]\nwebhook = "http://a"\n[rule.alert.headers]\nA = "b"\nC = ["d"]',
        "rule[0].alert[0].headers.C: expected a string, got an array",
    ),
    (
        '[[rule]]\n[[rule.alert]]\nwebhook = "http://a"\n[rule.alert.headers]\nA = "b"\nC = { d = 1 }',
        "rule[0].alert[0].headers.C: expected a string, got a table",
    ),
    # It is none of those that are known.
    (
        "[[rule]]\ntypes = [\n  'Freeze',\n  'Frezee',\n]",
        "rule[0].types[1]: unknown value 'Frezee': expected 'Freeze', 'Preempt', 'Reboot', 'Redeploy' or 'Terminate'",
    ),
    ("[[rule]]\nsources = ['user']", "rule[0].sources[0]: unknown value 'user': expected 'Platform' or 'User'"),
    (
        "[[rule]]\nname = 'db'\napprove = 'later'",
        "rule[0].approve: unknown value 'later': expected 'at-once', 'by-hand', 'never' or 'when-prepared'",
    ),
    ("[[rule]]\naffects = true", "rule[0].affects: expected 'any', 'me' or 'others', got true"),
    (
        "[together]\nmode = 'first'",
        "together.mode: unknown value 'first': expected 'all-prepared', 'each', 'leader', 'primary' or 'secondary'",
    ),
    ("log_level = 'loud'", "log_level: unknown value 'loud': expected 'debug', 'error', 'info' or 'warning'"),
    ("[[rule]]\nhandlers = [{use = 'fiel'}]", f"rule[0].handlers[0].use: unknown value 'fiel': expected {HANDLERS}"),
    ("[[rule]]\nhandlers = [{use = 3}]", f"rule[0].handlers[0].use: expected {HANDLERS}, got 3"),
    ("[[rule]]\n[[rule.handlers]]\ntouch = 'x'", f"rule[0].handlers[0]: use is missing: expected {HANDLERS}"),
    # A key is not known.
    ("nmae = 'db'", "nmae: unknown key; did you mean name?"),
    ("[[rules]]", "rules: unknown key; did you mean rule?"),
    ("[[rule]]\n\n[[rule]]\nname = 'db'\naproove = 'x'", "rule[1].aproove: unknown key; did you mean approve?"),
    (
        "[[rule]]\nprepare = [\n  ['a'],\n  { command = ['b'], timout = '1s' },\n]",
        "rule[0].prepare[1].timout: unknown key; did you mean timeout?",
    ),
    (
        "[[rule]]\nhandlers = [{use = 'file', touhc = 'a'}]",
        "rule[0].handlers[0].touhc: unknown key; did you mean touch?",
    ),
    ("[[rule]]\nhandlers = [{use = 'file', us = 'a'}]", "rule[0].handlers[0].us: unknown key; did you mean use?"),
    (
        "[[rule]]\nendpoint = 'http://a'",
        "rule[0].endpoint: unknown key here: it belongs at the top of the file, before the first table",
    ),
    (
        "[[rule]]\nprepare = [{ command = ['a'], environment = 'b' }]",
        (
            "rule[0].prepare[0].environment: unknown key: "
            "expected body, command, headers, retries, retry_delay, shell, template, timeout or webhook"
        ),
    ),
    (
        "[together]\n'' = 1",
        (
            "together.'': unknown key: expected deadline, listen, mode, peers, secondary_after, "
            "secondary_sources, secret_file or stagger"
        ),
    ),
    ('"na\\nme" = 1', "'na\\nme': unknown key; did you mean name?"),
    # A span, a window, an address, a name is none.
    ("wait = 'soon'", f"wait: 'soon' is not a span of time: {SPAN}"),
    ("wait = true", f"wait: expected a duration, {SPAN.removeprefix('expected ')}"),
    ("margin = '-5s'", "margin: '-5s' is negative"),
    ("margin = '200y'", f"margin: '200y' is not a span of time: {SPAN}"),
    (
        "[[rule]]\nwindow = ['22-06']",
        "rule[0].window[0]: '22-06' is not a time window: expected for example 'Mon-Fri 22:00-06:00'",
    ),
    ("[[rule]]\nwindow = [3]", "rule[0].window[0]: expected a time window, for example 'Mon-Fri 22:00-06:00'"),
    ("# here\nendpoint = 'foo'", "endpoint: 'foo' is not an endpoint: expected for example http://169.254.169.254"),
    ("\n\nsource_address = 'eth0'", "source_address: 'eth0' is not an IP address: expected for example 10.0.0.4"),
    (
        "listen = 'localhost'",
        (
            "listen: cannot listen on 'localhost': "
            "expected an address and a port, for example 127.0.0.1:8169 or [::1]:8169"
        ),
    ),
    (
        "\ntimezone = 'Mars/X'\n",
        "timezone: 'Mars/X' is not a time zone: expected 'local' or for example 'Europe/Oslo'",
    ),
    (
        'timezone = "a\\u0000b"',
        "timezone: 'a\\x00b' is not a time zone: expected 'local' or for example 'Europe/Oslo'",
    ),
    ('state_file = "a\\u0000"', "state_file: a path cannot contain a NUL character"),
    ('name = "x"\nlog_file = "a\\u0000"', "log_file: a path cannot contain a NUL character"),
    # A number is out of its range.
    ("\npoll_interval = '0s'", "poll_interval: 0s is out of range: expected 0.1s to 1h"),
    ("name = 'x'\nwait = '6m'", "wait: 6m is out of range: expected 0s to 5m"),
    ("margin = '2d'", "margin: 2d is out of range: expected 0s to 1d"),
    ("events_max = 0", "events_max: 0 is out of range: expected 1 to 10000"),
    ("events_max = 1" + "0" * 400, "events_max: it is out of range: expected 1 to 10000"),
    ("history_max = -1", "history_max: -1 is out of range: expected 0 to 10000"),
    ("output_size_bytes_max = 16777217", "output_size_bytes_max: 16777217 is out of range: expected 0 to 16777216"),
    ("[together]\nstagger = '2d'", "together.stagger: 2d is out of range: expected at most 1d"),
    ("[[rule]]\n" * 201, "rule[200]: too many rules: expected at most 200"),
    (
        "[[rule]]\nprepare=[['a'],\n{command=['b'],retries=101}]",
        "rule[0].prepare[1].retries: 101 is out of range: expected 0 to 100",
    ),
    ("[[rule]]\nprepare=[{command=['b'],timeout='0s'}]", "rule[0].prepare[0].timeout: expected more than 0s"),
    # It contradicts itself.
    (
        "[[rule]]\nprepare = [['a']]\napprove = 'at-once'",
        "rule[0].approve: 'at-once' does not wait for preparation: use 'when-prepared', or remove the preparation",
    ),
    (
        "[[rule]]\nmax_duration = '1s'\nmin_duration = '2s'",
        "rule[0].min_duration: greater than max_duration, so no event would match",
    ),
    (
        "[[rule]]\ndescription = '('",
        "rule[0].description: not a valid regular expression: missing ), unterminated subpattern at position 0",
    ),
    (
        "[[rule]]\nrecover = [\n['a'],\n[],\n]",
        "rule[0].recover[1]: a hook needs exactly one of command, shell and webhook",
    ),
    (
        "[[rule]]\n[[rule.prepare]]\ncommand = ['a']\n[[rule.prepare]]\ncommand = ['a']\nshell = 'b'",
        "rule[0].prepare[1]: a hook needs exactly one of command, shell and webhook",
    ),
    (
        "[[rule]]\nprepare = [{webhook = 'https://me:secret@example.com'}]",
        (
            "rule[0].prepare[0].webhook: "
            "expected a URL without user and password, for example https://example.com/maintenance"
        ),
    ),
    (
        "[[rule]]\n[[rule.prepare]]\nwebhook = 'https://example.com'\nheaders.'A B' = 'c'",
        "rule[0].prepare[0].headers.'A B': 'A B' is not a header name",
    ),
    (
        "[[rule]]\nhandlers = [{use = 'file'}]",
        "rule[0].handlers[0]: the handler file needs exactly one of touch and remove",
    ),
    (
        "[[rule]]\nhandlers = [{use='file',touch='a',timeout=0}]",
        "rule[0].handlers[0].timeout: expected more than 0s",
    ),
    (
        "\n[together]\nmode = 'all-prepared'\nlisten = '10.0.0.4:9470'",
        "together.mode: 'all-prepared' needs listen, peers and secret_file; peers is missing",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_told_in_one_line_with_its_place_and_what_was_expected(text: str, message: str) -> None:
    assert reason(text) == message


def test_what_a_handler_needs_and_has_not_is_named() -> None:
    said = reason("[[rule]]\nhandlers = [{use = 'haproxy'}]")
    assert said.startswith("rule[0].handlers[0]: ")
    assert " is missing: expected " in said


def test_a_long_value_does_not_make_a_long_message() -> None:
    for text in (
        f"name = ['{'x' * 9999}']",
        f"wait = '{'x' * 9999}'",
        f"{'x' * 9999} = 1",
        f"log_level = '{'x' * 9999}'",
    ):
        assert len(reason(text)) < 600


keys = st.sampled_from(["endpoint", "name", "rule", "together", "wait", "listen", "margin", "timezone", "x"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=5,
)


def as_toml(value: object) -> str:
    match value:
        case None:
            return "1979-05-27"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(character):08x}" for character in value) + '"'
        case list():
            return f"[{', '.join(map(as_toml, value))}]"
        case dict():
            return "{" + ", ".join(f"{key} = {as_toml(inner)}" for key, inner in value.items()) + "}"
        case _:
            return str(value)


@given(st.dictionaries(keys | st.sampled_from(["rule", "together"]), values, max_size=4))
def test_whatever_the_file_holds_it_is_taken_or_refused_with_one_line(content: dict[str, object]) -> None:
    text = "".join(f"{key} = {as_toml(value)}\n" for key, value in content.items())
    try:
        parse_configuration(text, "agent.toml")
    except ConfigError:
        assert reason(text)
