"""`forewarn vm history`: the history of one VM, as stories."""

from __future__ import annotations

from typing import Any

from forewarn.cli.output import format_moment, format_seconds, parse_moment

__all__ = ["format_episode"]

_WIDTH = 10


def format_episode(episode: dict[str, Any]) -> list[str]:
    """Return one maintenance of a VM as lines; the first is not indented, the others are.

    Args:
        episode: The maintenance, as the API returns it.
    """
    outcome = "in progress" if episode["state"] == "started" else episode["state"]
    head = f"{format_moment(episode['created_at'])}  {episode['type']}, {outcome}"
    parts = [
        ("cause", _format_cause(episode)),
        ("announced", _format_announcement(episode)),
        ("seen", _format_seen_time(episode)),
        ("approved", _format_approval(episode)),
        ("started", _format_start(episode)),
        ("away", _format_impact(episode)),
        ("ended", _format_end(episode)),
        ("forced", episode["force_reason"]),
    ]
    return [head, *(f"  {word:<{_WIDTH}}{text}" for word, text in parts if text)]


def _format_cause(episode: dict[str, Any]) -> str:
    words = f"{episode['cause']}, by {episode['source']}"
    description = f': "{episode["description"]}"' if episode["description"] else ""
    asked = f"; requested by {episode['requested_by']}" if episode["requested_by"] else ""
    place = f" on {episode['host']}" if episode["hosts"] else ""
    others = episode["vms_count"] - 1
    beside = f", with {others} other VM{'s' * (others > 1)}{place}" if others else place
    return f"{words}{description}{asked}{beside} (maintenance {episode['maintenance_id']})"


def _format_announcement(episode: dict[str, Any]) -> str:
    if episode["announced_at"] is None:
        return "not yet: queued" if episode["state"] == "queued" else "never"
    if episode["notice_s"] is None:
        return "without notice: it had already happened"
    queued_s = _seconds_between(episode["created_at"], episode["announced_at"])
    waited = f", after {format_seconds(queued_s)} in the queue" if queued_s >= 1 else ""
    notice = f"{format_seconds(episode['notice_s'])} of notice" if episode["notice_s"] else "no notice"
    to_whom = "" if episode["event_id"] else "; the VM was not warned: its scope had not asked for events"
    when = f"{format_moment(episode['announced_at'])}, not before {format_moment(episode['not_before'])}"
    return f"{when}: {notice}{waited}{to_whom}"


def _format_seen_time(episode: dict[str, Any]) -> str:
    if episode["event_id"] is None:
        return ""
    if episode["seen_at"] is None:
        return "not yet, as far as recorded" if episode["state"] == "scheduled" else "time not recorded"
    how = {"request": "from its request", "approval": "from its approval"}[episode["seen_by"]]
    return f"{format_moment(episode['seen_at'])} at the latest, {how}"


def _format_approval(episode: dict[str, Any]) -> str:
    approved = episode["approved"]
    if episode["event_id"] is None or episode["notice_s"] is None:
        return ""
    is_pending = episode["state"] == "scheduled"
    lack = "have no approval yet" if is_pending else "had no approval"
    others = f"; {episode['others_pending']} other events {lack}" if episode["others_pending"] else ""
    if approved is None:
        return f"{'not yet' if is_pending else 'by no one'}{others}"
    where = f" from {approved['source_address']}" if approved["source_address"] else ""
    version = f", api-version {approved['api_version']}" if approved["api_version"] else ""
    after_s = _seconds_between(episode["announced_at"], approved["at"])
    after = f", {format_seconds(after_s)} after the announcement" if after_s >= 1 else ""
    return f"{format_moment(approved['at'])} by {approved['by']}{where}{version}{after}{others}"


def _format_start(episode: dict[str, Any]) -> str:
    if episode["started_at"] is None:
        return ""
    if episode["start_reason"] and episode["start_reason"] != episode["force_reason"]:
        why = f', early, by an operator: "{episode["start_reason"]}"'
    elif episode["notice_s"] is None:
        why = ""
    elif not episode["notice_s"]:
        why = ", immediately"
    elif parse_moment(episode["started_at"]) < parse_moment(episode["not_before"]):
        why = ", once all had approved"
    else:
        why = ", when the notice ended"
    return f"{format_moment(episode['started_at'])}{why}"


def _format_impact(episode: dict[str, Any]) -> str:
    if episode["started_at"] is None:
        return ""
    announced = "unknown" if episode["duration_s"] < 0 else format_seconds(episode["duration_s"])
    yet = " yet" if episode["state"] == "started" else ""
    again = f"; further impacts: {episode['further_impacts']}" if episode["further_impacts"] else ""
    if episode["impact_s"] is not None:
        return f"{format_seconds(episode['impact_s'])} measured; announced {announced}{again}"
    if episode["impacted_at"] is None:
        return f"no impact reported{yet}; announced {announced}"
    since = f"from {format_moment(episode['impacted_at'])}; duration not measured{yet}"
    return f"{since}; announced {announced}{again}"


def _format_end(episode: dict[str, Any]) -> str:
    if episode["ended_at"] is None:
        return ""
    since = episode["started_at"]
    after = f", {format_seconds(_seconds_between(since, episode['ended_at']))} after the start" if since else ""
    why = f": {episode['outcome_reason']}" if episode["outcome_reason"] else ""
    impact = f"; the impact was a {episode['impact']}" if episode["impact"] != episode["type"] and since else ""
    return f"{format_moment(episode['ended_at'])}, {episode['state']}{after}{impact}{why}"


def _seconds_between(first: str, last: str) -> float:
    return (parse_moment(last) - parse_moment(first)).total_seconds()
