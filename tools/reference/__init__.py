"""Generators of reference pages, one module for each subject."""
