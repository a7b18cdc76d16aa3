"""Forewarn tells virtual machines about maintenance before it happens."""

__version__ = "0.1.0"
