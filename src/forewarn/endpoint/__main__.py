"""Metadata process, started by `forewarn serve` as `python -m forewarn.endpoint`; not for manual use."""

from __future__ import annotations

import sys

from forewarn.endpoint.child import run_child

if __name__ == "__main__":
    run_child(sys.argv[1:])
