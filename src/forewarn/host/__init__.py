"""Metadata endpoint on a host, separate from the control plane."""
