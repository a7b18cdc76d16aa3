"""Decide, commit, publish: every command, and what runs them one after the other."""
