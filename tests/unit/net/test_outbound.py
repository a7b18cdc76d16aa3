"""Which addresses receivers may have."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from pathlib import Path

import pytest

from forewarn.errors import ConfigError, InvalidRequest
from forewarn.net.outbound import (
    OutboundOptions,
    PostOutcome,
    check_options,
    check_receiver_url,
    explain_refusal,
    redact_url,
)

METADATA = [
    "169.254.169.254",
    "fe80::1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd20:ce::254",
    "192.0.0.192",
    "64:ff9b:1::a9fe:a9fe",
    "::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:5db8:d822::5601:5601",
]
PRIVATE = ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "fd00::1", "::ffff:10.0.0.1", "100.64.0.1"]
PUBLIC = ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"]


def refusal(address: str, scheme: str = "https", *, allows_private: bool = True) -> str:
    return explain_refusal(ipaddress.ip_address(address), scheme, allows_private=allows_private) or ""


@pytest.mark.parametrize("address", METADATA)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_where_machines_find_their_metadata_nothing_is_posted_to(address: str, scheme: str) -> None:
    assert "is the address of a metadata service" in refusal(address, scheme)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_asked_unless_the_setting_says_otherwise(address: str) -> None:
    assert refusal(address) == refusal(address, "http") == ""
    assert "is private (notify_private_addresses)" in refusal(address, allows_private=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_want_https(address: str) -> None:
    assert refusal(address, allows_private=False) == ""
    assert refusal(address, "http") == f"{address} is public: use https"


@pytest.mark.parametrize("address", ["224.0.0.1", "0.0.0.0", "::", "ff02::1", "::ffff:0.0.0.0"])
def test_what_is_no_address_of_one_machine_is_refused(address: str) -> None:
    assert refusal(address)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "begin with https:// or http://"),
        ("ftp://receiver.example/", "begin with https:// or http://"),
        ("https://", "begin with https:// or http://"),
        ("https://user:secret@receiver.example/", "must not contain a user or password"),
        ("https://receiver.example/#top", "must not contain '#'"),
        ("http://receiver.example:0/", "port 0"),
        ("http://169.254.169.254/metadata", "metadata"),
        ("http://[fe80::1]/", "metadata"),
        ("https://receiver.example/" + "a" * 2000, "at most 2000 characters"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_one_line(url: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        check_receiver_url(url)
    assert "\n" not in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["https://receiver.example/a?b=c", "http://10.0.0.1:8080", "http://localhost/x"])
def test_a_url_that_can_be_used_is_taken(url: str) -> None:
    check_receiver_url(url)


def test_a_path_and_a_query_may_be_keys() -> None:
    assert redact_url("https://hooks.example:8443/services/T0/B0?key=1") == "https://hooks.example:8443/…"


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (OutboundOptions(proxy="proxy:3128"), "setting notify_proxy: expected a URL like"),
        (
            OutboundOptions(ca_file=Path("/nowhere/ca.pem")),
            "setting notify_ca_file: cannot read the certificates of /nowhere/ca.pem",
        ),
        (OutboundOptions(ca_file=Path(__file__)), "setting notify_ca_file: cannot read the certificates"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_the_first_request(terms: OutboundOptions, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_options(terms)


def test_only_2xx_is_taken_and_only_410_is_gone() -> None:
    assert [PostOutcome(status=s, error="").is_accepted for s in (200, 204, 299, 300, 404, 500)] == [True] * 3 + [
        False
    ] * 3
    assert not PostOutcome(status=None, error="no answer", retry_after=timedelta(seconds=1)).is_accepted
    assert PostOutcome(status=410, error="").is_gone
