"""Work that time triggers: the timer to the next deadline, and the driver of rollouts."""
