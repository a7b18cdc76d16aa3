"""Network code shared by the listeners of the service."""
