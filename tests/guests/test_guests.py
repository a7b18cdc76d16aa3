"""Real guests: QEMU under libvirt, Debian's kernel, a client in each; a reboot and a freeze that they are told of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.guests.guest import FORGED, SHARED, Guest, define
from tests.guests.host import hosting, missing
from tests.support.processes import Served, wait_for

pytestmark = [
    pytest.mark.guests,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=f"real guests need {missing()}"),
]

BOOT_S = 240
"""For an emulated machine, where others use the processors as well; some seconds where they do not."""

SOON_S = 120
"""For all else, there."""


def schedule(service: Served, vm: str, type: str, *more: str) -> str:
    """Announce a maintenance of that VM; its id."""
    [made] = service.forewarn("maintenance", "schedule", "--vm", vm, "--type", type, *more)
    return str(made["id"])


def audit_log(service: Served, maintenance: str) -> dict[str, dict[str, Any]]:
    """What stands in the audit log of a maintenance, by kind; the last of each."""
    return {entry["kind"]: entry for entry in service.forewarn("audit-log", "--maintenance", maintenance)}


def impact_s(noted: dict[str, dict[str, Any]]) -> float:
    """How long the impact has lasted, as the audit log says it."""
    found = re.match(r"the impact lasted ([\d.]+) s;", noted["impact-measured"]["reason"])
    assert found is not None
    return float(found[1])


def wait_completed(service: Served, maintenance: str) -> None:
    wait_for(lambda: service.forewarn("maintenance", "show", maintenance)["state"] == "completed", SOON_S, 0.5)


def wait_seen(guest: Guest, statuses: list[str], within_s: float = SOON_S) -> None:
    """Until the last document that the guest has told of since its last boot has events of those statuses."""
    wait_for(lambda: guest.seen[-1:] == [statuses], within_s, 0.2)


def resources(guest: Guest) -> set[str]:
    """Names of all VMs that the guest has ever read of."""
    documents = [document for life in guest.lives for document in life.documents]
    return {name for document in documents for event in document["Events"] for name in event["Resources"]}


def test_two_guests_with_one_address_are_told_apart_through_a_reboot_and_a_freeze(
    guests: tuple[Guest, Guest], service: Served
) -> None:
    """R2, R58, R67, R82; invariants 4 and 8."""
    web_0, web_1 = guests
    for guest in guests:
        guest.start()
    for guest in guests:
        wait_seen(guest, [], within_s=BOOT_S)
    taps = set(web_0.host.taps())

    # A reboot is announced to web-0, which is not prepared yet; web-1 pretends to be web-0 and cannot approve it.
    web_0.type("touch /hold")
    reboot = schedule(service, "web-0", "Reboot")
    wait_seen(web_0, ["Scheduled"])
    [event] = web_0.lives[-1].documents[-1]["Events"]
    assert (event["EventType"], event["Resources"]) == ("Reboot", ["web-0"])
    web_1.type(f"forge {FORGED} {web_0.mac} {event['EventId']}")
    [answer] = wait_for(lambda: web_1.lives[-1].all("forged-approval"), SOON_S)
    assert "400 Bad Request" in answer
    [shown] = web_1.lives[-1].all("forged-document")
    assert '"Events":[]' in shown
    assert service.forewarn("maintenance", "show", reboot)["events"][0]["approved_at"] is None

    # web-0 approves by itself as soon as it is prepared, is shut down, boots, and sees that it is over.
    web_0.type("rm /hold")
    wait_for(lambda: len(web_0.lives) == 2, BOOT_S, 0.2)
    wait_seen(web_0, [], within_s=BOOT_S)
    wait_completed(service, reboot)
    assert len(taps & set(web_0.host.taps())) == 1  # that of web-1; web-0 is answered at a new one
    before, after = web_0.lives
    assert before.boot_id != after.boot_id
    assert before.statuses == [[], ["Scheduled"], ["Started"]]
    assert before.all("off") == [""]
    assert after.statuses in ([[]], [["Started"], []])
    noted = audit_log(service, reboot)
    approved = noted["approved"]
    assert (approved["actor"], approved["source_address"], approved["api_version"]) == (
        "vm:web-0",
        SHARED,
        "2020-07-01",
    )
    assert impact_s(noted) > 0

    # web-1 is frozen. It still has web-0's addresses, and is known all the same: by its tap.
    freeze = schedule(service, "web-1", "Freeze", "--duration", "2s")
    wait_for(lambda: len(web_1.seen) > 2 and web_1.seen[-1] == [], SOON_S, 0.2)
    wait_completed(service, freeze)
    [life] = web_1.lives
    assert life.statuses in ([[], ["Scheduled"], ["Started"], []], [[], ["Scheduled"], []])
    noted = audit_log(service, freeze)
    assert (noted["approved"]["actor"], noted["approved"]["source_address"]) == ("vm:web-1", FORGED)
    assert impact_s(noted) >= 2

    assert resources(web_0) == {"web-0"}
    assert resources(web_1) == {"web-1"}
    assert len(web_0.lives) == 2


def test_nothing_is_left_of_a_host_whose_test_fails_while_a_guest_runs() -> None:
    folders: list[Path] = []
    with pytest.raises(RuntimeError, match="as a test fails"):
        fail_beside_a_guest(folders)
    [folder] = folders
    assert not folder.exists()
    assert not processes_of(folder)


def fail_beside_a_guest(folders: list[Path]) -> None:
    with hosting() as host:
        folders.append(host.folder)
        guest = Guest(host, "web-0", "52:54:00:00:00:10")
        define(host, guest)
        guest.start()
        assert len(host.taps()) == 1
        assert any("qemu-system" in line for line in processes_of(host.folder))
        raise RuntimeError("as a test fails")


def processes_of(folder: Path) -> list[str]:
    """Command lines in which that folder is named."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in line:
            found.append(line)
    return found
