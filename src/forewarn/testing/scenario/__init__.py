"""Scenario files: their model, loading, and checking."""
