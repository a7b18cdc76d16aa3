"""Assembly of the service from its parts."""
