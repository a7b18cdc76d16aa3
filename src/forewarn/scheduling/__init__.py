"""What time alone brings about: the timer to the next deadline, and the driver of rollouts."""
