"""`forewarn completion`: scripts for shells that complete commands, options and names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from forewarn.cli.command import command
from forewarn.cli.completion_candidates import find_candidates

__all__ = ["ASKED", "SCRIPTS", "Shell", "add_completion", "print_candidates"]

ASKED = "__complete"
"""First argument of requests from a shell's script; the words up to the cursor follow."""


class Shell(StrEnum):
    """Shells with a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# A script passes the words as arguments and reads the answer as text: neither is evaluated.
_BASH = """\
# bash completion for forewarn, made by 'forewarn completion bash'
_forewarn() {
    local cur=${COMP_WORDS[COMP_CWORD]} line
    local -a answer
    mapfile -t answer < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)
    COMPREPLY=()
    [[ $cur != '=' ]] || cur=
    case ${answer[0]-} in
        words) for line in "${answer[@]:1}"; do COMPREPLY+=("${line%%$'\\t'*}"); done ;;
        files) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
        folders) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
    esac
}
complete -F _forewarn forewarn
"""
_ZSH = """\
#compdef forewarn
# zsh completion for forewarn, made by 'forewarn completion zsh'
_forewarn() {
    local line
    local -a answer values
    answer=("${(@f)$("${words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2> /dev/null)}")
    case ${answer[1]} in
        words)
            for line in "${(@)answer[2,-1]}"; do
                values+=("${${line%%$'\\t'*}//:/\\\\:}${${line:#^*$'\\t'*}:+:${line#*$'\\t'}}")
            done
            _describe -V 'forewarn' values ;;
        files) _files ;;
        folders) _files -/ ;;
    esac
}
if [[ ${funcstack[1]} == _forewarn ]]; then _forewarn "$@"; else compdef _forewarn forewarn; fi
"""
_FISH = """\
# fish completion for forewarn, made by 'forewarn completion fish'
function __forewarn_complete
    set -l words (commandline -opc)
    set -l answer (command $words[1] __complete $words[2..-1] (commandline -ct) 2> /dev/null)
    set -l kind $answer[1]
    set -e answer[1]
    switch "$kind"
        case words
            test (count $answer) -eq 0; or printf '%s\\n' $answer
        case files
            __fish_complete_path (commandline -ct)
        case folders
            __fish_complete_directories (commandline -ct)
    end
end
complete -c forewarn -f -a '(__forewarn_complete)'
"""
SCRIPTS = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}
"""Completion script of each shell."""


def add_completion(app: typer.Typer) -> None:
    """Add the command `completion`."""

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

        Names of VMs and hosts, and ids, come from the service at --control-url or FOREWARN_CONTROL_URL.
        """
        sys.stdout.write(SCRIPTS[shell])


def print_candidates(root: Any, words: Sequence[str]) -> None:  # noqa: ANN401 - Typer's command
    """Answer a shell's script; stay silent on any error, since the user is in the middle of a line."""
    try:
        sys.stdout.write(find_candidates(root, words).encode())
    except Exception:  # noqa: BLE001 - a trace would only disturb the command line
        return
