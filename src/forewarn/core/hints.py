"""What to do about an error, in the words of each surface: `forewarn.errors.Hint`.

The command line and the API name a command. The dashboard has a link to the page that serves the same purpose, or none.
"""

from __future__ import annotations

from urllib.parse import quote

from forewarn.errors import Hint

__all__ = ["SEE_HOSTS", "SEE_MAINTENANCES", "SEE_ROLLOUTS", "SEE_SCOPES", "SEE_VMS", "suggest_recovery"]

SEE_HOSTS = Hint("see 'forewarn host list'", "See all hosts", "/hosts")
SEE_SCOPES = Hint("see 'forewarn scope list'")
SEE_VMS = Hint("see 'forewarn vm list'", "See all VMs", "/vms")
SEE_MAINTENANCES = Hint("see 'forewarn maintenance list'", "See active maintenances", "/")
SEE_ROLLOUTS = Hint("see 'forewarn rollout list'", "See all rollouts", "/rollouts")


def suggest_recovery(host: str) -> Hint:
    """Return the hint about a host that is marked as failed."""
    command = f"leave it out, or run 'forewarn host recover {host}' once it works"
    return Hint(command, "Leave it out, or mark it as recovered once it works", f"/hosts/{quote(host, safe='')}")
