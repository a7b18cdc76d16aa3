"""An earlier version of Forewarn: the commit that changed the first migration last, since nothing has been released."""

from __future__ import annotations

import subprocess

from tests.support.documents import ROOT

__all__ = ["EARLIER", "has_earlier"]

EARLIER = "5e7878bc82ce"


def has_earlier() -> bool:
    """Return whether this checkout has that commit, which a shallow clone or an unpacked archive has not."""
    try:
        found = subprocess.run(["git", "cat-file", "-e", EARLIER], check=False, capture_output=True, cwd=ROOT)
    except OSError:  # no git
        return False
    return found.returncode == 0
