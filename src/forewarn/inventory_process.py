"""Short-lived process that parses a large inventory from standard input and writes the result to standard output.

Each piece is a pickled pair, preceded by its length in four bytes: 0, 1 or 2 and hosts, scopes or VMs; or ``"error"``
with its message and details. A length of zero ends the stream. The module imports only what parsing needs.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator

from forewarn.errors import ForewarnError
from forewarn.wire.inventory import parse_inventory

__all__ = ["LENGTH_BYTES", "main"]

LENGTH_BYTES = 4
"""Size of the length prefix of each piece."""

# So few that the service loads a piece within milliseconds and can answer VMs in between.
_PIECE_VMS = 100


def main() -> None:
    """Read an inventory from standard input; write its hosts, scopes and VMs, in pieces, to standard output."""
    out = sys.stdout.buffer
    for piece in _encode_pieces(sys.stdin.buffer.read()):
        content = pickle.dumps(piece, pickle.HIGHEST_PROTOCOL)
        out.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)
    out.write(bytes(LENGTH_BYTES))
    out.flush()


def _encode_pieces(text: bytes) -> Iterator[tuple[object, object]]:
    try:
        inventory = parse_inventory(text)
    except ForewarnError as error:
        yield "error", (error.message, error.details)
        return
    for kind, values in enumerate((inventory.hosts, inventory.scopes, inventory.vms)):
        for begin in range(0, len(values), _PIECE_VMS):
            yield kind, values[begin : begin + _PIECE_VMS]


if __name__ == "__main__":
    main()
