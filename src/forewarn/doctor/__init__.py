"""Checks of a set-up: each finds one thing that may be wrong, and says what to do."""
