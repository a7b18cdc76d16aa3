"""Suggestions for unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

__all__ = ["suggest_name"]

_COMPARED_MAX = 2000
_LISTED_MAX = 30


def suggest_name(unknown: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'web-0'?``, or ``expected one of web-0, web-1`` if no known name is similar.

    Args:
        unknown: The unknown name.
        known: Known names. The first 2,000 are compared, without regard to case; the first 30 are listed.
    """
    names = list(islice(known, _COMPARED_MAX))
    by_folded = {name.casefold(): name for name in names}
    # Cut, because difflib takes quadratic time and the name may come from a stranger.
    close = difflib.get_close_matches(unknown[:200].casefold(), by_folded, n=1)
    if close:
        return f"did you mean {by_folded[close[0]]!r}?"
    if not names:
        return "expected none"
    more = f", … ({len(names)} in all)" if len(names) > _LISTED_MAX else ""
    return f"expected one of {', '.join(names[:_LISTED_MAX])}{more}"
