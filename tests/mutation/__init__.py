"""Mutants of Forewarn's own code, against its tests: run `make mutants`."""
