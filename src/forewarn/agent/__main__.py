"""`python -m forewarn.agent [--config FILE] [--dry-run]`: the agent without the libraries of the command line.

`forewarn agent run` replaces its process with this one, so that an idle agent uses as little memory as possible.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from forewarn.agent.configuration import default_config_file
from forewarn.agent.run import run_agent


def main() -> int:
    """Run the agent with the options on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m forewarn.agent", description="Run the agent; see `forewarn agent`."
    )
    parser.add_argument("--config", type=Path, default=default_config_file(), metavar="FILE")
    parser.add_argument("--dry-run", action="store_true", help="do everything except approvals and hooks")
    options = parser.parse_args()
    return run_agent(options.config, is_dry_run=options.dry_run)


if __name__ == "__main__":
    raise SystemExit(main())
