"""Acts as the hypervisor: it follows the audit log, and applies each impact on a VM to all processes of the VM.

    python3 hypervisor.py

A Freeze stops the processes for its duration. A Reboot kills them, deletes the VM's folder `run`, and boots the VM. A
Redeploy does the same, and deletes the VM's folder `local` as well. The hypervisor then completes the maintenance, so
its events disappear.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OFF_S = 4.0


def forewarn(*arguments: str) -> Any:  # noqa: ANN401 - what the command printed, as JSON
    """Run a command of forewarn, and return its JSON output."""
    done = subprocess.run(["forewarn", *arguments, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def impacts() -> Iterator[dict[str, Any]]:
    """Yield each maintenance at the moment when it hits its VMs."""
    follow = ["forewarn", "audit-log", "--follow", "--limit", "1", "--json"]
    while True:
        with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as audit_log:
            assert audit_log.stdout is not None
            for line in audit_log.stdout:
                entry = json.loads(line)
                if entry["kind"] == "impacted":
                    maintenance = forewarn("maintenance", "show", entry["maintenance_id"])
                    if maintenance["state"] == "started":
                        yield maintenance
        time.sleep(0.5)  # The service does not run: try again.


def processes(vm: str) -> list[int]:
    """Return the ids of all processes in the VM."""
    listed = subprocess.run(["ip", "netns", "pids", vm], check=True, stdout=subprocess.PIPE)
    return [int(pid) for pid in listed.stdout.split()]


def send(vm: str, number: signal.Signals) -> None:
    """Send a signal to all processes in the VM."""
    for pid in processes(vm):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # It has just ended.


def freeze(vm: str, duration_s: float) -> None:
    """Stop the VM for a while, as a live migration does at its end."""
    say(f"{vm} is frozen for {duration_s:g} s")
    send(vm, signal.SIGSTOP)
    time.sleep(duration_s)
    send(vm, signal.SIGCONT)
    say(f"{vm} goes on")


def restart(vm: str, *lost: str) -> None:
    """Switch the VM off without warning its processes, delete these folders, and boot the VM."""
    say(f"{vm} is off")
    while processes(vm):
        send(vm, signal.SIGKILL)
        time.sleep(0.05)
    for folder in lost:
        shutil.rmtree(HERE / vm / folder, ignore_errors=True)
    time.sleep(OFF_S)
    subprocess.run([HERE / "boot.sh", vm], check=True)
    say(f"{vm} has booted" + (" on other hardware" if "local" in lost else ""))


def say(text: str) -> None:
    print(f"hypervisor: {text}", flush=True)


def main() -> None:
    for maintenance in impacts():
        for vm in maintenance["vms"]:
            match maintenance["type"]:
                case "Freeze":
                    freeze(vm, maintenance["duration_s"])
                case "Reboot":
                    restart(vm, "run")
                case "Redeploy":
                    restart(vm, "run", "local")
        forewarn("maintenance", "complete", maintenance["id"])


if __name__ == "__main__":
    main()
