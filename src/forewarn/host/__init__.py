"""The metadata endpoint on a host, away from the control plane."""
