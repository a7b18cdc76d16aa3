"""The rules, pure: no clock, no log, no randomness, no I/O. Time and ids are arguments."""
