"""`forewarn completion`: scripts for shells that complete commands, options and names.

Typer makes the scripts and answers them. A script runs `forewarn` with `_FOREWARN_COMPLETE` in its environment.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script

from forewarn.cli.command import command

__all__ = ["Shell", "app"]


_ZSH_FIRST_CALL = """
[[ ${zsh_eval_context[-1]} != loadautofunc ]] || _forewarn_completion "$@"
"""
"""In a folder of fpath, Typer's script only registers its function at the first Tab, and completes at the second."""


class Shell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Typer does this only along with --install-completion and --show-completion.
completion_init()

app = typer.Typer()


@command(
    app,
    "completion",
    "forewarn completion bash > ~/.local/share/bash-completion/completions/forewarn",
    "forewarn completion zsh > ~/.zfunc/_forewarn",
    "forewarn completion fish > ~/.config/fish/completions/forewarn.fish",
    panel="About",
)
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Shell to print the script for.")],
) -> None:
    """Print a shell script that completes commands, options and names.

    The script asks the service for names of VMs and hosts, and for ids of maintenances, events and rollouts. If the
    command line that you are completing has no --control-url, the script uses FOREWARN_CONTROL_URL.
    """
    script = get_completion_script(prog_name="forewarn", complete_var="_FOREWARN_COMPLETE", shell=shell)
    typer.echo(script + (_ZSH_FIRST_CALL if shell is Shell.ZSH else ""))
