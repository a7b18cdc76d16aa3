"""What goes over the network, as pure functions between bytes and values. Wire names appear here and nowhere else."""
