"""Entry point of `python -m forewarn`, the command `forewarn`."""

from __future__ import annotations

from forewarn.cli.main import main

if __name__ == "__main__":
    main()
