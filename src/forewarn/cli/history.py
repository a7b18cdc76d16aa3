"""`forewarn vm history`: the history of one VM, as stories."""

from __future__ import annotations

from typing import Any

from forewarn.cli.output import format_moment, format_seconds, parse_moment

__all__ = ["story"]

_WIDTH = 10
_OUTCOMES = {
    "queued": "waits for its turn",
    "scheduled": "is announced",
    "started": "goes on",
    "completed": "is over",
    "canceled": "was taken back",
    "failed": "has failed",
}


def story(told: dict[str, Any]) -> list[str]:
    """Return one maintenance of a VM as lines; the first is not indented, the others are.

    Args:
        told: The maintenance, as the API returns it.
    """
    head = f"{format_moment(told['created_at'])}  {told['type']}, {_OUTCOMES[told['state']]}"
    parts = [
        ("why", _why(told)),
        ("announced", _announced(told)),
        ("seen", _seen(told)),
        ("approved", _approved(told)),
        ("started", _started(told)),
        ("away", _away(told)),
        ("ended", _ended(told)),
        ("forced", told["force_reason"]),
    ]
    return [head, *(f"  {word:<{_WIDTH}}{text}" for word, text in parts if text)]


def _why(told: dict[str, Any]) -> str:
    words = f"{told['cause']}, by {told['source']}"
    description = f': "{told["description"]}"' if told["description"] else ""
    asked = f"; asked for by {told['requested_by']}" if told["requested_by"] else ""
    place = f" on {told['host']}" if told["hosts"] else ""
    others = told["vms_count"] - 1
    beside = f", with {others} other VM{'s' * (others > 1)}{place}" if others else place
    return f"{words}{description}{asked}{beside} (maintenance {told['maintenance_id']})"


def _announced(told: dict[str, Any]) -> str:
    if told["announced_at"] is None:
        return "not yet: it is in the queue" if told["state"] == "queued" else "never"
    if told["notice_s"] is None:
        return "without notice: it had happened"
    queued_s = _between(told["created_at"], told["announced_at"])
    waited = f", after {format_seconds(queued_s)} in the queue" if queued_s >= 1 else ""
    notice = f"{format_seconds(told['notice_s'])} of notice" if told["notice_s"] else "no notice"
    to_whom = "" if told["event_id"] else "; the VM was told nothing, since its scope had asked for no events"
    when = f"{format_moment(told['announced_at'])}, not before {format_moment(told['not_before'])}"
    return f"{when}: {notice}{waited}{to_whom}"


def _seen(told: dict[str, Any]) -> str:
    if told["event_id"] is None:
        return ""
    if told["seen_at"] is None:
        return "nothing is kept that tells when"
    how = {"request": "by its request", "approval": "since it approved"}[told["seen_by"]]
    return f"{format_moment(told['seen_at'])} at the latest, {how}"


def _approved(told: dict[str, Any]) -> str:
    approved = told["approved"]
    if told["event_id"] is None or told["notice_s"] is None:
        return ""
    others = f"; {told['others_pending']} of others had no approval" if told["others_pending"] else ""
    if approved is None:
        return f"by nobody{others}"
    where = f" from {approved['source_address']}" if approved["source_address"] else ""
    version = f", api-version {approved['api_version']}" if approved["api_version"] else ""
    after_s = _between(told["announced_at"], approved["at"])
    after = f", {format_seconds(after_s)} after the announcement" if after_s >= 1 else ""
    return f"{format_moment(approved['at'])} by {approved['by']}{where}{version}{after}{others}"


def _started(told: dict[str, Any]) -> str:
    if told["started_at"] is None:
        return ""
    if told["start_reason"] and told["start_reason"] != told["force_reason"]:
        why = f', by an operator who did not wait: "{told["start_reason"]}"'
    elif told["notice_s"] is None:
        why = ""
    elif not told["notice_s"]:
        why = ", at once"
    elif parse_moment(told["started_at"]) < parse_moment(told["not_before"]):
        why = ", once everybody had approved"
    else:
        why = ", when the notice was over"
    return f"{format_moment(told['started_at'])}{why}"


def _away(told: dict[str, Any]) -> str:
    if told["started_at"] is None:
        return ""
    said = "unknown" if told["duration_s"] < 0 else format_seconds(told["duration_s"])
    again = f"; hit {told['further_impacts']} times more" if told["further_impacts"] else ""
    if told["impact_s"] is not None:
        return f"{format_seconds(told['impact_s'])}, measured; announced was {said}{again}"
    if told["impacted_at"] is None:
        return f"no impact is reported; announced was {said}"
    since = f"from {format_moment(told['impacted_at'])} on; for how long, nobody measured"
    return f"{since}; announced was {said}{again}"


def _ended(told: dict[str, Any]) -> str:
    if told["ended_at"] is None:
        return ""
    since = told["started_at"]
    after = f", {format_seconds(_between(since, told['ended_at']))} after the start" if since else ""
    why = f": {told['outcome_reason']}" if told["outcome_reason"] else ""
    impact = f"; it turned out as a {told['impact']}" if told["impact"] != told["type"] and since else ""
    return f"{format_moment(told['ended_at'])}, {told['state']}{after}{impact}{why}"


def _between(first: str, last: str) -> float:
    return (parse_moment(last) - parse_moment(first)).total_seconds()
