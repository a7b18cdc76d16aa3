"""The checks: a file for each part of the protocol, and in each a tuple of rows."""
