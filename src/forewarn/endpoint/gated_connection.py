"""Connection of a VM to one of several metadata processes."""

from __future__ import annotations

import asyncio

from uvicorn.config import Config
from uvicorn.server import ServerState

from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.position_gate import PositionGate
from forewarn.endpoint.traffic import Traffic
from forewarn.publishing.identity import Identity

__all__ = ["GatedConnection"]


class GatedConnection(VmConnection):
    """Connection whose requests are answered only with what is published at their arrival, or newer."""

    __slots__ = ("_gate", "_held_bytes", "_is_held")

    def __init__(  # noqa: PLR0913 - those of a `VmConnection`
        self,
        gate: PositionGate,
        traffic: Traffic,
        identity: Identity,
        config: Config,
        server_state: ServerState,
        loop: asyncio.AbstractEventLoop,
        vm: str = "",
    ) -> None:
        super().__init__(traffic, identity, config, server_state, loop, vm)
        self._gate = gate
        self._held_bytes = b""
        self._is_held = False

    def data_received(self, data: bytes) -> None:
        """Handle these bytes, at once or when everything published has taken effect."""
        gate = self._gate
        # One look at shared memory for each GET. Nearly always, everything published has taken effect.
        if gate.published[0] > gate.shown and not gate.catch_up():
            # Reading pauses, so neither more bytes nor the end of the stream arrive meanwhile.
            self._transport.pause_reading()
            self._held_bytes, self._is_held = data, True
            gate.hold(self._resume)
            return
        super().data_received(data)

    # A pause of the transport does not stop the first bytes, nor an end that it found before the pause.

    def _take_first(self) -> None:
        if not self._is_held:
            super()._take_first()

    def _take_end(self) -> None:
        # Once the transport reads again, it finds the end again.
        if not self._is_held:
            super()._take_end()

    def _resume(self) -> None:
        data, self._held_bytes, self._is_held = self._held_bytes, b"", False
        if self.is_lost or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self.data_received(data)
