"""Settings: every default, unit and limit of `forewarn serve`."""
