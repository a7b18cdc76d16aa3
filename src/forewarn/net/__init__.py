"""What every listener of the service shares."""
