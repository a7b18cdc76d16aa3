"""What a start of the service finds, it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import served

INVENTORY = {
    "hosts": [{"name": "host-7"}],
    "vms": [{"name": "one", "host": "host-7"}, {"name": "two", "host": "host-7", "addresses": ["127.0.0.12"]}],
}


@pytest.mark.slow
def test_a_start_without_an_inventory_keeps_the_one_that_was_applied(tmp_path: Path) -> None:
    """R2: only a database that has none gets the sample of a single VM."""
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps(INVENTORY))
    with served(tmp_path, "--inventory", str(path)) as service:
        assert [vm["name"] for vm in service.forewarn("vm", "list")] == ["one", "two"]
    with served(tmp_path) as service:
        assert [vm["name"] for vm in service.forewarn("vm", "list")] == ["one", "two"]
