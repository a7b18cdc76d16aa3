"""The checks: a file for each part of the protocol, each with a tuple of rows."""
