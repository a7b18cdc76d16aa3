"""Bodies of webhooks: JSON with placeholders in its texts, and built-in ones for services that people read.

Placeholders are filled in after the JSON is parsed and before it is written, so no value can break out of its text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from string import Template
from typing import Any

import msgspec

__all__ = ["PLACEHOLDERS", "READY", "WebhookService", "check_body", "fill_body"]

PLACEHOLDERS = {
    "headline": "short summary: `Reboot of vm-1 and 2 more is announced`",
    "step": "the step: `prepare`, `before-approval`, `started`, `recover`, `canceled` or `alert`",
    "vm": "this VM's name",
    "rule": "name of the rule",
    "prepared": "`true` if preparation is done or the rule prepares nothing, else `false`",
    "reason": "reason for the alert, at the step `alert`; else empty",
    "event_id": "`EventId`, exactly as the endpoint shows it",
    "event_type": "`Freeze`, `Reboot`, `Redeploy`, `Preempt`, `Terminate`",
    "event_status": "`Scheduled` or `Started`, as last seen",
    "event_resources": "names of the affected VMs, separated by commas",
    "event_not_before": "`NotBefore`, the earliest start without approval, as RFC 3339 in UTC; empty if the event has "
    "started",
    "event_description": "`Description`, sometimes empty",
    "event_source": "`Platform`, `User`, or empty if the api-version has no `EventSource`",
    "event_duration": "expected duration of the impact in words: `9 s`, `none`, `unknown`",
    "event_duration_s": "expected duration of the impact in seconds; 0 for no impact, -1 if unknown",
}
"""Names that may follow a ``$`` in the texts of a body, with the meaning of their values."""

_VALUE_LENGTH_MAX = 300
"""Limit below those of Slack, Teams and Discord for one field, even if every character is escaped."""

_MARKDOWN = re.compile(r"[\\*_~`|>#\[\]()<]")
# Slack needs no more than these; an unescaped < could begin a mention of the whole channel.
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ROWS = {
    "This VM": "$vm",
    "VMs of the event": "$event_resources",
    "Not before": "$event_not_before",
    "Impact": "$event_duration",
    "Source": "$event_source",
    "Description": "$event_description",
    "Reason": "$reason",
}


@dataclass(frozen=True, slots=True)
class WebhookService:
    """A service that takes webhooks.

    Attributes:
        body: JSON to send, with placeholders; None to send the same JSON that commands read.
        escape: Function that makes a value plain text there, without formatting or mentions.
    """

    body: Any
    escape: Callable[[str], str]


def _shorten(text: str) -> str:
    """Return the text on one line, shortened; a dash for an empty text, which some services reject."""
    line = " ".join(text.split())
    return (line if len(line) <= _VALUE_LENGTH_MAX else f"{line[: _VALUE_LENGTH_MAX - 1]}…") or "-"


def _escape_slack(text: str) -> str:
    return _shorten(text).translate(_SLACK)


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", _shorten(text))


def _build_rich_text(*runs: dict[str, str]) -> dict[str, Any]:
    """Return a line of an Adaptive Card; unlike a TextBlock it has no Markdown, so values appear unchanged."""
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun"} | run for run in runs]}


_SLACK_BODY = {
    "text": "$headline",
    "blocks": [
        {"type": "section", "text": {"type": "mrkdwn", "text": "*$headline*"}},
        {
            "type": "section",
            "fields": [{"type": "mrkdwn", "text": f"*{name}*\n{value}"} for name, value in _ROWS.items()],
        },
    ],
}
_TEAMS_CARD = {
    "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
    "type": "AdaptiveCard",
    "version": "1.4",
    "body": [
        _build_rich_text({"text": "$headline", "weight": "Bolder", "size": "Medium"}),
        *(
            _build_rich_text({"text": f"{name}: ", "weight": "Bolder"}, {"text": value})
            for name, value in _ROWS.items()
        ),
    ],
}
_TEAMS_BODY = {
    "type": "message",
    "attachments": [
        {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": _TEAMS_CARD}
    ],
}
# With an empty `parse`, a description that contains @everyone notifies no one.
_DISCORD_BODY = {
    "allowed_mentions": {"parse": []},
    "embeds": [
        {"title": "$headline", "fields": [{"name": name, "value": value} for name, value in _ROWS.items()]},
    ],
}

READY = {
    "forewarn": WebhookService(body=None, escape=str),
    "slack": WebhookService(body=_SLACK_BODY, escape=_escape_slack),
    "teams": WebhookService(body=_TEAMS_BODY, escape=_shorten),
    "discord": WebhookService(body=_DISCORD_BODY, escape=_escape_markdown),
}
"""The services, by their names in the configuration."""


def check_body(text: str) -> None:
    """Check a body of the configuration.

    Raises:
        ValueError: It is not JSON, or a placeholder is unknown.
    """
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from error
    for part in _iterate_texts(content):
        template = Template(part)
        if not template.is_valid():
            raise ValueError("a $ is not followed by a placeholder; write $$ for a dollar sign")
        unknown = [name for name in template.get_identifiers() if name not in PLACEHOLDERS]
        if unknown:
            msg = f"unknown placeholder ${unknown[0]}: expected one of {', '.join(f'${name}' for name in PLACEHOLDERS)}"
            raise ValueError(msg)


def fill_body(name: str, body: str, values: Mapping[str, str]) -> bytes | None:
    """Fill in the body of a webhook.

    Args:
        name: The service, one of `READY`.
        body: JSON of the configuration that replaces the built-in one; empty for the built-in one.
        values: Value of each placeholder.

    Returns:
        JSON; None if the service gets the same JSON that commands read.
    """
    ready = READY[name]
    content = msgspec.json.decode(body) if body else ready.body
    # A configured body of `null` is JSON as well, and is sent as such.
    if content is None and not body:
        return None
    escaped = {key: ready.escape(value) for key, value in values.items()}
    return msgspec.json.encode(_replace_placeholders(content, escaped))


def _replace_placeholders(content: Any, values: Mapping[str, str]) -> Any:  # noqa: ANN401 - any JSON
    """Return the content with every placeholder replaced; the names of members are unchanged."""
    if isinstance(content, str):
        return Template(content).substitute(values)
    if isinstance(content, list):
        return [_replace_placeholders(each, values) for each in content]
    if isinstance(content, dict):
        return {name: _replace_placeholders(each, values) for name, each in content.items()}
    return content


def _iterate_texts(content: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    """Yield every text in which placeholders are replaced."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | dict):
        for each in content.values() if isinstance(content, dict) else content:
            yield from _iterate_texts(each)
