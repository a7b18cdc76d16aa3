"""Faults that Forewarn had or might have, which the simulation has to find."""
