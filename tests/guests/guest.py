"""A guest: a domain of libvirt that boots Debian's kernel, and its serial console."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from typing import Any

from tests.guests.host import Host
from tests.guests.initramfs import build
from tests.guests.kernel import find
from tests.support.spans import GUARD_S

__all__ = ["FORGED", "SHARED", "Guest", "Life", "define"]

SHARED = "10.0.0.2"
"""The address of every guest: `inside/init` gives it."""

FORGED = "10.0.0.9"
"""An address that no guest has, until one pretends to be another."""

_MARK = "guest: "

_DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <metadata><forewarn:vm xmlns:forewarn='urn:forewarn:vm'>{addresses}</forewarn:vm></metadata>
  <memory unit='MiB'>128</memory><vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{folder}/vmlinuz</kernel><initrd>{folder}/initramfs</initrd><cmdline>console=ttyS0 quiet</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='custom'><model>qemu64</model></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/><memballoon model='none'/>
    <interface type='ethernet'>
      <mac address='{mac}'/><model type='virtio'/><driver name='qemu'/><rom enabled='no'/>
    </interface>
    <serial type='unix'>
      <source mode='bind' path='{folder}/consoles/{name}.sock'/>
      <log file='{folder}/consoles/{name}.log' append='on'/>
    </serial>
  </devices>
</domain>
"""


@dataclass
class Life:
    """What a guest has told since it booted.

    Attributes:
        boot_id: Its kernel's; another after each boot.
        told: Each line, as its first word and the rest.
    """

    boot_id: str
    told: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        """The rest of each line that begins with that word."""
        return [rest for first, rest in self.told if first == word]

    @property
    def documents(self) -> list[Any]:
        """Each document that its client has seen, where it differs from the one before."""
        return [json.loads(text) for text in self.all("document")]

    @property
    def statuses(self) -> list[list[str]]:
        """The status of every event, by document."""
        return [[event["EventStatus"] for event in document["Events"]] for document in self.documents]


@dataclass(frozen=True)
class Guest:
    """A domain, and meaning and hears at its console.

    Attributes:
        mac: Of its network card.
        addresses: That the inventory says are its own.
    """

    host: Host
    name: str
    mac: str
    addresses: tuple[str, ...] = ()

    @property
    def console(self) -> str:
        """Everything that was written there."""
        file = self.host.consoles / f"{self.name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    @property
    def lives(self) -> list[Life]:
        """One for each boot."""
        lives: list[Life] = []
        whole, _, _ = self.console.rpartition("\n")  # the last line may still be on its way
        for line in whole.splitlines():
            _, mark, text = line.partition(_MARK)
            word, _, rest = text.strip().partition(" ")
            if word == "boot":
                lives.append(Life(rest))
            elif mark and lives:
                lives[-1].told.append((word, rest))
        return lives

    @property
    def seen(self) -> list[list[str]]:
        """`Life.statuses` since the last boot; empty before the first."""
        return self.lives[-1].statuses if self.lives else []

    def type(self, line: str) -> None:
        """Have its shell run a line."""
        with socket.socket(socket.AF_UNIX) as console:
            console.settimeout(GUARD_S)
            console.connect(str(self.host.consoles / f"{self.name}.sock"))
            console.sendall(f"{line}\n".encode())
            console.shutdown(socket.SHUT_WR)
            while console.recv(4096):  # QEMU ends it when it has read all
                pass

    def define(self) -> None:
        """Have libvirt know it."""
        addresses = "".join(f"<forewarn:address>{address}</forewarn:address>" for address in self.addresses)
        domain = _DOMAIN.format(name=self.name, mac=self.mac, folder=self.host.folder, addresses=addresses)
        file = self.host.folder / f"{self.name}.xml"
        file.write_text(domain.strip())
        self.host.virsh("define", str(file))

    def start(self) -> None:
        """Let it boot."""
        self.host.virsh("start", self.name)


def define(host: Host, *guests: Guest) -> None:
    """Have guests on that host, all with one kernel and one initramfs; none is started yet."""
    kernel = find()
    assert kernel is not None
    (host.folder / "vmlinuz").write_bytes(kernel.image.read_bytes())
    (host.folder / "initramfs").write_bytes(build(kernel))
    for guest in guests:
        guest.define()
