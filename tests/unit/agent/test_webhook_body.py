"""Bodies of webhooks: whatever the values hold, the JSON keeps its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.codec import InvalidValue
from forewarn.agent.rule import EventStep, Hook
from forewarn.agent.steps import build_placeholder_values
from forewarn.agent.webhook_body import PLACEHOLDERS, READY, check_body, fill_body
from tests.support.messages import CHECKS
from tests.support.occasion import an_event
from tests.support.records import a_record

URL = "http://127.0.0.1:1/"
NASTY = '"}], \\" \n\r\t $vm ${step} $$ </b> <!channel> @everyone <@1> [a](http://b) *x* _y_ `z` \u2028 \u96ea'
EMPTY = dict.fromkeys(PLACEHOLDERS, "")

texts = st.text(max_size=400) | st.sampled_from([NASTY, '"', "\\", "<" * 2000, "*" * 2000, "&" * 2000])


def filled(name: str, body: str = "", **values: str) -> Any:  # noqa: ANN401 - any JSON
    content = fill_body(name, body, EMPTY | values)
    assert content is not None
    return json.loads(content)


# Values


@pytest.mark.parametrize("step", list(EventStep))
def test_every_placeholder_that_is_described_has_a_value_and_no_other(step: EventStep) -> None:
    assert build_placeholder_values(a_record(), step, "db").keys() == PLACEHOLDERS.keys()


@pytest.mark.parametrize(
    ("step", "event", "headline"),
    [
        (EventStep.PREPARE, {}, "Freeze of db is announced"),
        (
            EventStep.BEFORE_APPROVAL,
            {"resources": ("web", "db", "x")},
            "Freeze of db and 2 more is about to be approved",
        ),
        (EventStep.STARTED, {"resources": ("web",)}, "Freeze of web has started"),
        (EventStep.RECOVER, {"resources": ("web", "x")}, "Freeze of web and 1 more is over"),
        (EventStep.CANCELED, {"type": "Reboot"}, "Reboot of db is canceled"),
        (EventStep.ALERT, {"resources": ()}, "Freeze of no VM: a step has failed"),
    ],
)
def test_a_headline_says_what_happens_to_whom(step: EventStep, event: dict[str, Any], headline: str) -> None:
    assert build_placeholder_values(a_record(event=event), step, "db")["headline"] == headline


@pytest.mark.parametrize(("seconds", "words"), [(9, "9 s"), (0, "none"), (-1, "unknown")])
def test_an_impact_is_told_in_words(seconds: int, words: str) -> None:
    assert (
        build_placeholder_values(a_record(event={"duration_s": seconds}), EventStep.PREPARE, "db")["event_duration"]
        == words
    )


# Ready bodies


@pytest.mark.parametrize("name", CHECKS)
def test_a_ready_body_tells_everything_that_people_want_to_know(name: str) -> None:
    event = {"id": "E-1", "type": "Reboot", "resources": ("db", "web"), "source": "User", "description": "As asked."}
    values = build_placeholder_values(a_record(event=event), EventStep.ALERT, "db", "step prepare failed: it is full")
    content = fill_body(name, "", values)
    assert content is not None
    CHECKS[name](json.loads(content))
    told = content.decode()
    for words in ("Reboot of db and 1 more: a step has failed", "db, web", "2030-01-01T00:15:00Z", "User", "As asked."):
        assert words in told
    assert "it is full" in told


@pytest.mark.parametrize("name", CHECKS)
@given(
    members=st.fixed_dictionaries(
        {
            "type": texts,
            "description": texts,
            "source": texts,
            "resources": st.lists(texts, max_size=20).map(tuple),
            "duration_s": st.integers(-1, 10**18),
        }
    ),
    vm=texts,
    reason=texts,
    step=st.sampled_from(EventStep),
)
def test_whatever_an_event_holds_a_ready_body_is_a_message(
    name: str, members: dict[str, Any], vm: str, reason: str, step: EventStep
) -> None:
    values = build_placeholder_values(a_record(event=an_event(**members)), step, vm, reason)
    CHECKS[name](filled(name, **values))


def test_a_value_is_plain_text_where_it_arrives() -> None:
    slack = filled("slack", vm="<!channel> & <http://x|y>")
    assert slack["blocks"][1]["fields"][0]["text"] == "*This VM*\n&lt;!channel&gt; &amp; &lt;http://x|y&gt;"
    discord = filled("discord", vm="web_vmss_0 **x** [a](b) <@1>")
    value = r"web\_vmss\_0 \*\*x\*\* \[a\]\(b\) \<@1\>"
    assert discord["embeds"][0]["fields"][0] == {"name": "This VM", "value": value}
    teams = filled("teams", vm="web_vmss_0 **x**")
    assert teams["attachments"][0]["content"]["body"][1]["inlines"][1]["text"] == "web_vmss_0 **x**"


def test_a_long_value_is_cut_and_an_empty_one_is_a_dash() -> None:
    fields = filled("discord", vm="x" * 301, reason=" \n ")["embeds"][0]["fields"]
    assert fields[0]["value"] == "x" * 299 + "…"
    assert fields[-1] == {"name": "Reason", "value": "-"}


def test_forewarns_own_body_is_the_event_as_hooks_read_it() -> None:
    assert fill_body("forewarn", "", EMPTY) is None


# Bodies of the configuration


@given(value=texts | st.text())
def test_no_value_can_break_a_body(value: str) -> None:
    body = '{"a": "$vm", "$vm": ["x ${vm} $$vm", 1, null, true, 0.5]}'
    assert filled("forewarn", body, vm=value) == {"a": value, "$vm": [f"x {value} $vm", 1, None, True, 0.5]}


def test_a_body_of_the_configuration_is_escaped_for_its_service() -> None:
    assert filled("slack", '{"text": "$vm"}', vm="<a>") == {"text": "&lt;a&gt;"}


@pytest.mark.parametrize("name", [name for name in READY if name in CHECKS])
def test_a_ready_body_may_be_copied_into_the_configuration(name: str) -> None:
    body = json.dumps(READY[name].body)
    check_body(body)
    assert filled(name, body, vm="db") == filled(name, vm="db")


@pytest.mark.parametrize("body", ["{}", "null", '"$event_type"', '["${step}", "$$"]', '{"$nothing": 1}'])
def test_any_json_with_known_placeholders_is_a_body(body: str) -> None:
    check_body(body)
    Hook(webhook=URL, body=body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "not valid JSON: "),
        ('{"a": $vm}', "not valid JSON: "),
        ("[" * 100_000, "not valid JSON: "),
        ('["$event_typ"]', "unknown placeholder $event_typ: expected one of $headline, $step, "),
        ('["$VM"]', "unknown placeholder $VM: "),
        ('{"a": ["costs 5 $"]}', "a $ is not followed by a placeholder; write $$ for a dollar sign"),
    ],
)
def test_a_body_that_could_not_be_filled_is_refused(body: str, message: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Hook(webhook=URL, body=body)
    assert str(caught.value).startswith(message)
    assert caught.value.keys == ("body",)


@pytest.mark.parametrize(("key", "value"), [("template", "slack"), ("body", "{}")])
def test_only_a_webhook_has_a_body(key: str, value: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Hook(command=("true",), **{key: value})  # type: ignore[arg-type] # one of two
    assert caught.value.keys == (key,)
