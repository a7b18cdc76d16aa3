from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from forewarn.core.inventory import Inventory
from forewarn.dashboard.names import Directory, Names
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.wire.imds import Dialect
from tests.unit.core.builders import availability_set, vm

words = st.text("aAbBİß-.0", max_size=4)


@given(st.lists(words, max_size=12), words.filter(bool), st.integers(1, 4))
def test_it_finds_what_looking_at_each_name_finds(names: list[str], part: str, most: int) -> None:
    expected = sorted({name for name in names if part.lower() in name.lower()})[:most]
    assert Names(names).containing(part, most) == expected


def test_part_of_nothing_and_of_several_lines() -> None:
    names = Names(["b", "a", "c"])
    assert names.containing("", 2) == ["a", "b"]
    assert names.containing("a\nb", 2) == []
    assert Names([]).containing("a", 2) == []
    assert Names([]).containing("", 2) == []


def test_a_directory_follows_the_inventory() -> None:
    identity = Identity(Feed(Dialect()))
    directory = Directory(identity)
    assert directory.containing("web", 5) == {"vms": [], "hosts": [], "scopes": []}
    identity.load(Inventory(scopes=(availability_set("web"),), vms=(vm("web-0", scope="web", host="rack-web"),)))
    assert directory.containing("WEB", 5) == {"vms": ["web-0"], "hosts": ["rack-web"], "scopes": ["web"]}
    identity.load(Inventory(vms=(vm("db"),)))
    assert directory.containing("web", 5)["vms"] == []
