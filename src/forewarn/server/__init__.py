"""The service: its parts put together."""
