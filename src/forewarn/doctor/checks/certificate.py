"""The TLS certificate of the control API is not near its end."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from forewarn.doctor.finding import Finding, fail, ok, skip, warn
from forewarn.doctor.situation import Situation

__all__ = ["check_certificate"]

_SOON = timedelta(days=14)
_TIMEOUT_S = 30
_ADVICE = "Renew the certificate, and restart the service."


def check_certificate(situation: Situation) -> Finding:
    """Check the end of the certificate in the settings."""
    assert situation.settings is not None  # noqa: S101 - see `Check.needs_settings`
    path = situation.settings.tls_certificate
    if path is None:
        return skip("the control API has no TLS certificate here")
    openssl = shutil.which("openssl")
    if openssl is None:
        return skip("the command openssl is not installed, so the certificate cannot be read")
    end = _read_end(openssl, path)
    if end is None:
        return fail(f"{path} is not a readable certificate", "Check tls_certificate, and the permissions of the file.")
    if end <= situation.now:
        return fail(f"{path} ended on {end:%Y-%m-%d}", _ADVICE)
    if end - situation.now < _SOON:
        return warn(f"{path} ends on {end:%Y-%m-%d}", _ADVICE)
    return ok(f"{path} is valid until {end:%Y-%m-%d}")


def _read_end(openssl: str, path: Path) -> datetime | None:
    command = [openssl, "x509", "-noout", "-enddate", "-in", str(path)]
    try:
        # The path of the program is absolute, and no shell is involved.
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)  # noqa: S603
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(done.stdout.strip().partition("=")[2]), UTC)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
