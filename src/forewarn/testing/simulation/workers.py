"""Worker processes for runs: killed processes of the simulation leave memory and coroutines behind."""

from __future__ import annotations

import gc
import logging
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import structlog

__all__ = ["run_in_worker", "run_in_workers"]

_CALLS_OF_ONE_PROCESS = 12
"""Average number of calls after which a worker is replaced. A run of the default size leaves some 45 MB behind."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_function: Callable[[Any], Any]
"""The function that this worker calls."""


def run_in_workers(
    function: Callable[[_Item], _Result], items: Sequence[_Item], jobs: int
) -> Generator[_Result, None, None]:
    """Yield the result for each item, in order.

    Args:
        function: Any function, also one that cannot be pickled: the workers are forked.
        items: Arguments; they and the results are pickled.
        jobs: Number of processes.

    Raises:
        BrokenProcessPool: A worker has died; a `multiprocessing.Pool` would wait for its result forever.
        ValueError: The system cannot fork.
    """
    batch = jobs * _CALLS_OF_ONE_PROCESS
    for first in range(0, len(items), batch):
        # The workers leave Ctrl-C to this process, which ends them.
        pool = ProcessPoolExecutor(
            jobs, mp_context=get_context("fork"), initializer=_prepare_worker, initargs=(function,)
        )
        waiting = deque[Future[_Result]]()
        try:
            for item in items[first : first + batch]:
                # Few at a time: if the caller stops early, calls that have begun must end first.
                if len(waiting) > jobs:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(_call, item))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_in_worker(function: Callable[[_Item], _Result], item: _Item) -> _Result:
    """Return the result of one call; see `run_in_workers`."""
    return next(run_in_workers(function, [item], 1))


def _prepare_worker(function: Callable[[Any], Any]) -> None:
    global _function  # noqa: PLW0603 - of this process
    _function = function
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # To collect killed coroutines takes a third of the time, because their cleanup runs then. The end of the worker
    # does not run it.
    gc.disable()
    sys.unraisablehook = lambda _: None
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(item: Any) -> Any:  # noqa: ANN401 - what the function takes and returns
    return _function(item)
