from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from forewarn.core.inventory import Inventory
from forewarn.dashboard.name_index import InventoryNameIndex, NameIndex
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.wire.imds import Dialect
from tests.unit.core.builders import availability_set, vm

words = st.text("aAbBİß-.0", max_size=4)


@given(st.lists(words, max_size=12), words.filter(bool), st.integers(1, 4))
def test_it_finds_what_looking_at_each_name_finds(names: list[str], part: str, most: int) -> None:
    expected = sorted({name for name in names if part.lower() in name.lower()})[:most]
    assert NameIndex(names).find_containing(part, most) == expected


def test_part_of_nothing_and_of_several_lines() -> None:
    names = NameIndex(["b", "a", "c"])
    assert names.find_containing("", 2) == ["a", "b"]
    assert names.find_containing("a\nb", 2) == []
    assert NameIndex([]).find_containing("a", 2) == []
    assert NameIndex([]).find_containing("", 2) == []


def test_a_directory_follows_the_inventory() -> None:
    identity = Identity(Feed(Dialect()))
    directory = InventoryNameIndex(identity)
    assert directory.find_containing("web", 5) == {"vms": [], "hosts": [], "scopes": []}
    identity.load_inventory(
        Inventory(scopes=(availability_set("web"),), vms=(vm("web-0", scope="web", host="rack-web"),))
    )
    assert directory.find_containing("WEB", 5) == {"vms": ["web-0"], "hosts": ["rack-web"], "scopes": ["web"]}
    identity.load_inventory(Inventory(vms=(vm("db"),)))
    assert directory.find_containing("web", 5)["vms"] == []
