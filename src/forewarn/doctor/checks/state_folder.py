"""The state folder exists, and only its owner can read the operator's token in it."""

from __future__ import annotations

import os
import stat

from forewarn.doctor.finding import Finding, fail, ok, skip, warn
from forewarn.doctor.situation import Situation
from forewarn.util.secrets import TOKEN_FILE

__all__ = ["check_state_folder"]

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_state_folder(situation: Situation) -> Finding:
    """Check the permissions of the state folder and of the token in it."""
    assert situation.settings is not None  # noqa: S101 - see `Check.needs_settings`
    folder = situation.settings.state_dir
    if os.name != "posix":
        return skip("this system has no such permissions")
    try:
        if stat.S_IMODE(folder.stat().st_mode) & _WRITABLE_BY_OTHERS:
            return fail(f"others can write to {folder}", f"Run 'chmod go-w {folder}'.")
        token = folder / TOKEN_FILE
        mode = stat.S_IMODE(token.stat().st_mode)
    except FileNotFoundError as error:
        advice = "Name the state folder of the service with --config or FOREWARN_STATE_DIR, or start the service once."
        return warn(f"{error.filename} does not exist", advice)
    except OSError as error:
        return skip(f"cannot read {error.filename}: {error.strerror}; run this as the user of the service")
    if mode & _OTHERS:
        return fail(
            f"others can use {token}, which gives full access (mode {mode:04o})",
            f"Delete {token} and restart the service, which makes a new token: others may know this one.",
        )
    return ok(f"only its owner can read the token in {folder}")
