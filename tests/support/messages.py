"""What Slack, Teams and Discord take as a message, after their documentation: shapes and limits of length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CHECKS", "check_discord", "check_slack", "check_teams"]


def _is_text(value: object, length_max: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= length_max


def check_slack(message: Any) -> None:  # noqa: ANN401 - any JSON
    """An incoming webhook's message: a text for notifications, and at most 50 blocks."""
    assert message.keys() == {"text", "blocks"}
    assert _is_text(message["text"], 3000)
    assert 0 < len(message["blocks"]) <= 50
    for block in message["blocks"]:
        assert block["type"] == "section"
        assert block.keys() in ({"type", "text"}, {"type", "fields"})
        texts = [block["text"]] if "text" in block else block["fields"]
        assert 0 < len(texts) <= 10
        for text in texts:
            assert text.keys() == {"type", "text"}
            assert text["type"] == "mrkdwn"
            assert _is_text(text["text"], 2000)
            assert "<" not in text["text"]  # it would begin a link or a mention
    assert "<" not in message["text"]


def check_teams(message: Any) -> None:  # noqa: ANN401 - any JSON
    """A workflow's message: one Adaptive Card, below 28 KB."""
    assert message.keys() == {"type", "attachments"}
    assert message["type"] == "message"
    (attachment,) = message["attachments"]
    assert attachment.keys() == {"contentType", "contentUrl", "content"}
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    assert card["$schema"] == "http://adaptivecards.io/schemas/adaptive-card.json"
    assert card["body"]
    for element in card["body"]:
        assert element.keys() == {"type", "inlines"}
        assert element["type"] == "RichTextBlock"
        for run in element["inlines"]:
            assert run["type"] == "TextRun"
            assert run.keys() <= {"type", "text", "weight", "size"}
            assert _is_text(run["text"], 1000)
    assert len(str(message)) < 28_000


def check_discord(message: Any) -> None:  # noqa: ANN401 - any JSON
    """A webhook's message: embeds within their limits, and nobody is mentioned."""
    assert message.keys() == {"allowed_mentions", "embeds"}
    assert message["allowed_mentions"] == {"parse": []}
    (embed,) = message["embeds"]
    assert embed.keys() == {"title", "fields"}
    assert _is_text(embed["title"], 256)
    assert 0 < len(embed["fields"]) <= 25
    for field in embed["fields"]:
        assert field.keys() == {"name", "value"}
        assert _is_text(field["name"], 256)
        assert _is_text(field["value"], 1024)
    assert len(embed["title"]) + sum(len(field["name"]) + len(field["value"]) for field in embed["fields"]) <= 6000


CHECKS: dict[str, Callable[[Any], None]] = {"slack": check_slack, "teams": check_teams, "discord": check_discord}
