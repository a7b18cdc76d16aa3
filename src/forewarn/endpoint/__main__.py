"""`python -m forewarn.endpoint`: the metadata process of `forewarn serve`, which starts it. Not meant for people."""

from __future__ import annotations

import sys

from forewarn.endpoint.child import run_child

if __name__ == "__main__":
    run_child(sys.argv[1:])
