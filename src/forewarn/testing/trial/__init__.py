"""Playing a scenario, and trying a handler beside it."""
