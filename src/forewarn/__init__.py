"""Warn virtual machines of maintenance before it happens."""

__version__ = "0.1.0"
