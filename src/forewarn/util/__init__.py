"""Small things that know nothing of Forewarn: durations, time zones, ids, secrets, text."""
