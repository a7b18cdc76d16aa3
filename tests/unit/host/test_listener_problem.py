"""What is said about a VM that cannot be answered (R2)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forewarn.host.listener_problem import explain_error
from forewarn.host.listening_socket import ListenAddress


@pytest.mark.parametrize(
    ("place", "number", "words"),
    [
        (
            ListenAddress(vm="db", host="169.254.169.254", port=80),
            errno.EACCES,
            "169.254.169.254:80: permission denied; run as root or with CAP_NET_BIND_SERVICE",
        ),
        (
            ListenAddress(host="169.254.169.254", port=80),
            errno.EADDRNOTAVAIL,
            (
                "169.254.169.254:80: cannot assign requested address; "
                "add it to this host, for example with 'ip address add 169.254.169.254/32 dev lo'"
            ),
        ),
        (
            ListenAddress(host="fd00::10", port=80),
            errno.EADDRNOTAVAIL,
            (
                "[fd00::10]:80: cannot assign requested address; "
                "add it to this host, for example with 'ip address add fd00::10/128 dev lo'"
            ),
        ),
        (
            ListenAddress(host="127.0.0.1", port=80, interface="tap-db", index=2),
            errno.EADDRINUSE,
            "127.0.0.1:80: address already in use; run 'ss -ltnp' to find the process that listens there",
        ),
        (ListenAddress(host="127.0.0.1", port=80), errno.EIO, "127.0.0.1:80: input/output error; check the address"),
        (
            ListenAddress(vm="db", path=Path("/run/vms/db.sock")),
            errno.EADDRINUSE,
            (
                "/run/vms: address already in use; "
                "another process listens on its socket: stop it or choose another folder"
            ),
        ),
    ],
)
def test_why_a_vm_cannot_be_answered_is_told_with_what_to_do(place: ListenAddress, number: int, words: str) -> None:
    assert explain_error(place, OSError(number, os.strerror(number))) == words
