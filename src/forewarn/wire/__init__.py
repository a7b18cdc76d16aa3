"""Formats on the network, as pure functions between bytes and values. Wire names appear here and nowhere else."""
