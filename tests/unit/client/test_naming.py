"""Names of scale-set instances: in documents, and on the network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.client.naming import scale_set_hostname, scale_set_name


@pytest.mark.parametrize(
    ("hostname", "scale_set", "name"),
    [
        ("web000000", "web", "web_0"),
        ("web00000A", "web", "web_10"),
        ("web00000a", "Web", "Web_10"),
        ("prefix-000010", "workers", "workers_36"),
        ("p0000ZZ.internal.cloudapp.net", "a_b", "a_b_1295"),
        ("123456000001", "web", "web_1"),
        ("webZZZZZZ", "web", "web_2176782335"),
    ],
)
def test_an_instance_is_named_by_its_number(hostname: str, scale_set: str, name: str) -> None:
    """R106."""
    assert scale_set_name(hostname, scale_set) == name


@pytest.mark.parametrize(
    "hostname", ["", "web", "000001", "web-0000_1", "web00000é", ".web000001", "web00000\u0661", "web\n000001"]
)
def test_a_host_name_of_another_form_is_refused(hostname: str) -> None:
    """R106: a wrong name would make a VM take its own events for another's."""
    with pytest.raises(ValueError, match="is not the host name of an instance: expected a prefix and 6 digits"):
        scale_set_name(hostname, "web")


def test_a_scale_set_has_a_name() -> None:
    """R106."""
    with pytest.raises(ValueError, match="of scale set '' is not"):
        scale_set_name("web000001", "")


@pytest.mark.parametrize(
    "name", ["", "web", "web_", "_1", "web_x", "web_01", "web_-1", "web_\u0663", "web_2176782336", "web-1"]
)
def test_a_name_of_another_form_is_refused(name: str) -> None:
    """R106."""
    with pytest.raises(ValueError, match="is not the name of an instance: expected the scale set, an underscore and"):
        scale_set_hostname(name, "web")


def test_a_number_of_any_length_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="is not the name of an instance"):
        scale_set_hostname("web_" + "9" * 10_000, "web")


def test_a_host_name_has_a_prefix() -> None:
    """R106."""
    with pytest.raises(ValueError, match="with prefix '' is not the name"):
        scale_set_hostname("web_1", "")


@given(
    number=st.integers(0, 36**6 - 1),
    prefix=st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
    scale_set=st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True),
)
def test_a_name_leads_to_the_host_name_and_back(number: int, prefix: str, scale_set: str) -> None:
    """R106."""
    hostname = scale_set_hostname(f"{scale_set}_{number}", prefix)
    assert len(hostname) == len(prefix) + 6
    assert scale_set_name(hostname, scale_set) == f"{scale_set}_{number}"
    assert scale_set_name(hostname.lower(), scale_set) == f"{scale_set}_{number}"
