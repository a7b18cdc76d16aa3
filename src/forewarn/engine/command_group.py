"""Commands that wait for the database at the same time, and share its next commit.

A commit waits for the disk, which takes as long for ten commands as for one. Each command of a group has a savepoint:
if it is refused, it alone is undone. Group only commands whose transaction reads nothing that is published after a
commit, since those before them in their group are not published yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from forewarn.errors import ForewarnError, ServerError, StoreUnavailable
from forewarn.store.contract import Transaction

__all__ = ["CommandGroups", "GroupFailedError", "WaitingCommand", "attempt"]

_COMMANDS_MAX = 8
"""Maximum number of commands in a group: an approval that comes next waits for all of them."""


@dataclass(slots=True, kw_only=True, eq=False)
class WaitingCommand:
    """A command from its issue to its answer.

    Attributes:
        work: What it does in a transaction.
        context: Context of its caller, in which it is published, for its trace.
        shares: True if it may share a commit.
        answer: Its answer, once it is published.
        error: What is raised in the place of the answer. None: it has an answer.
        is_taken: True once it is carried out, alone or in a group.
    """

    work: Callable[[Transaction], Any]
    context: Context
    shares: bool = False
    answer: Any = None
    error: BaseException | None = field(default_factory=lambda: StoreUnavailable("the change was interrupted"))
    is_taken: bool = False

    def get_answer(self) -> Any:  # noqa: ANN401 - of the command
        """Return the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.answer


class CommandGroups:
    """Commands that may share a commit and have not begun, in the order in which they were issued."""

    def __init__(self) -> None:
        self._waiting: deque[WaitingCommand] = deque()

    def add(self, command: WaitingCommand) -> None:
        """Add a command, if it may share a commit."""
        if command.shares:
            self._waiting.append(command)

    def take(self, command: WaitingCommand) -> list[WaitingCommand]:
        """Return the command, which is the first of those that wait, with others that are carried out in its commit."""
        group = [command]
        if command.shares:
            group = [self._waiting.popleft() for _ in range(min(_COMMANDS_MAX, len(self._waiting)))]
        for each in group:
            each.is_taken = True
        return group


class GroupFailedError(Exception):
    """Control flow, not an error: the commands of a group must be carried out one by one."""


def attempt(command: WaitingCommand, tx: Transaction) -> Any:  # noqa: ANN401 - of the command
    """Carry out one command of several; return its result, or its error if it is refused, with its changes undone.

    Raises:
        GroupFailedError: It has failed for another reason.
    """
    try:
        with tx.savepoint():
            return command.work(tx)
    except Exception as error:
        if isinstance(error, ForewarnError) and not isinstance(error, ServerError):
            return error
        raise GroupFailedError from error
