"""Servers that Forewarn is compared with. They send the same bytes."""
