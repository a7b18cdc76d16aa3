"""Decisions about maintenances: planning, announcement, approval, start, end, and when to check them."""
