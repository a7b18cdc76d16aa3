"""The table of api-versions and the switches that change it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forewarn.core.model import EventType
from forewarn.wire.imds import VERSIONS, Dialect, Version, encode_versions

IMPACTS = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
BOTH = frozenset({"GET", "POST"})
NEITHER: frozenset[str] = frozenset()

# As in the table of R16: types, members after NotBefore, underscore, methods that need the header.
TABLE: dict[str, tuple[frozenset[EventType], tuple[str, ...], bool, frozenset[str]]] = {
    "2017-03-01": (IMPACTS, (), True, NEITHER),
    "2017-08-01": (IMPACTS, (), False, BOTH),
    "2017-11-01": (IMPACTS | {EventType.PREEMPT}, (), False, BOTH),
    "2019-01-01": (frozenset(EventType), (), False, BOTH),
    "2019-04-01": (frozenset(EventType), ("Description",), False, BOTH),
    "2019-08-01": (frozenset(EventType), ("Description", "EventSource"), False, BOTH),
    "2020-07-01": (frozenset(EventType), ("Description", "EventSource", "DurationInSeconds"), False, BOTH),
}


def named(versions: tuple[Version, ...], name: str) -> Version:
    return next(version for version in versions if version.name == name)


def test_seven_versions_are_supported_oldest_first() -> None:
    """R16, R17: 2017-11-01 is one of them."""
    assert [version.name for version in VERSIONS] == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_each_version_shows_what_its_row_says(name: str) -> None:
    """R12, R16, R18, R20."""
    version = named(VERSIONS, name)
    assert (version.types, version.members, version.prefixes_names, version.requires_metadata) == TABLE[name]


def test_each_version_includes_everything_that_older_ones_show() -> None:
    """R16."""
    pairs = list(pairwise(VERSIONS))
    assert len(pairs) == 6
    for older, newer in pairs:
        assert older.types <= newer.types
        assert newer.members[: len(older.members)] == older.members


@pytest.mark.parametrize("name", ["", "latest", "{latest}", "2020-07-01 ", "2020-7-1", "2016-07-01"])
def test_latest_and_other_words_are_no_version(name: str) -> None:
    """R15, R22, A4."""
    assert name not in {version.name for version in Dialect().list_versions()}


@pytest.mark.parametrize("name", ["2017-04-02", "2017-12-01", "2018-02-01", "2019-11-01", "2020-09-01", "2021-02-01"])
def test_a_version_of_the_instance_metadata_alone_is_no_version_here(name: str) -> None:
    """R24."""
    assert name not in {version.name for version in Dialect().list_versions()}


def test_the_default_dialect_is_the_table_itself() -> None:
    """R16: no switch is set by default."""
    assert Dialect().list_versions() == VERSIONS


def test_the_defaults_are_the_resolutions_of_the_specification() -> None:
    """A1, A2, A3, A4, A11, A13."""
    dialect = Dialect()
    assert dialect.notbefore_2017_03_01 == "iso"
    assert dialect.cloud == "public"
    assert dialect.require_metadata_2017_03_01 == "none"
    assert dialect.legacy_latest is False
    assert dialect.unknown_event == 400
    assert dialect.post_body == "empty"


@pytest.mark.parametrize(
    ("setting", "methods"), [("none", NEITHER), ("get", frozenset({"GET"})), ("all", BOTH)], ids=["none", "get", "all"]
)
def test_the_preview_asks_for_the_metadata_header_as_its_switch_says(setting: str, methods: frozenset[str]) -> None:
    """R12, A3."""
    versions = Dialect(require_metadata_2017_03_01=setting).list_versions()
    assert named(versions, "2017-03-01").requires_metadata == methods


@pytest.mark.parametrize("setting", ["none", "get", "all"])
def test_every_later_version_needs_the_metadata_header_whatever_the_switch_says(setting: str) -> None:
    """R10, A3."""
    later = Dialect(require_metadata_2017_03_01=setting).list_versions()[1:]
    assert [version.requires_metadata for version in later] == [BOTH] * 6


def test_the_china_cloud_lacks_2017_11_01() -> None:
    """R17, A2."""
    names = [version.name for version in Dialect(cloud="china").list_versions()]
    assert names == [name for name in TABLE if name != "2017-11-01"]


def test_the_china_cloud_shows_preempt_in_no_version() -> None:
    """A2."""
    versions = Dialect(cloud="china").list_versions()
    assert all(EventType.PREEMPT not in version.types for version in versions)
    assert EventType.TERMINATE in named(versions, "2019-01-01").types


def test_the_china_cloud_changes_nothing_else_in_a_version() -> None:
    """A2: members, underscore and header are those of R16."""
    for version in Dialect(cloud="china").list_versions():
        assert (version.members, version.prefixes_names, version.requires_metadata) == TABLE[version.name][1:]


def test_the_list_of_versions_names_each_oldest_first() -> None:
    """X2."""
    assert encode_versions(VERSIONS) == (
        b'{"apiVersions":["2017-03-01","2017-08-01","2017-11-01","2019-01-01","2019-04-01","2019-08-01","2020-07-01"]}'
    )


def test_the_list_of_versions_is_that_of_the_dialect() -> None:
    """X2, A2."""
    assert b"2017-11-01" not in encode_versions(Dialect(cloud="china").list_versions())
