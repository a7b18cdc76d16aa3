"""A whole cluster in one process: three replicas, hosts, VMs with agents, an operator, and faults drawn from a seed.

To replay a seed with its trace: ``make simulate ARGS="--seed 17"``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TWICE = """
import sys, pathlib, logging, structlog
from forewarn.auth.authenticator import load_operator_token
from forewarn.testing.simulation.world import Size, simulate
folder = pathlib.Path(sys.argv[1])
load_operator_token(folder)
logging.disable(logging.CRITICAL)
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
for _ in range(2):
    print(simulate(7, folder, Size(vms=3, span_s=60.0))[1].digest())
"""


# In processes of their own: a killed process of the simulation leaves coroutines behind that never end.
def run(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def test_a_cluster_keeps_its_promises() -> None:
    """Invariants 3 to 9, in three seeds."""
    done = run("-m", "forewarn.testing.simulation", "--seeds", "3", "--from", "13", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 seeds, from 13" in done.stdout


def test_the_same_seed_gives_the_same_trace_in_any_process(tmp_path: Path) -> None:
    digests = [run("-c", TWICE, str(tmp_path), hash_seed=number).stdout.split() for number in ("1", "2")]
    assert [len(each) for each in digests] == [2, 2]
    assert len({digest for each in digests for digest in each}) == 1
