"""The Debian packages that the benchmark needs are named where a reader looks for them."""

from __future__ import annotations

import pytest

from bench.process import ROOT, missing_packages

ALL = ("get", "commits", "watches")


def _find_nothing(_program: str) -> str | None:
    return None


def test_only_the_packages_of_the_chosen_parts_are_missing() -> None:
    assert missing_packages(["watches"], _find_nothing) == ["util-linux"]
    assert missing_packages(["commits"], _find_nothing) == ["etcd-server", "nghttp2-client", "util-linux"]
    assert missing_packages(["get"], _find_nothing) == ["golang-go", "haproxy", "nginx-light", "util-linux", "wrk"]


def test_an_installed_program_is_not_missing() -> None:
    assert missing_packages(ALL, lambda program: None if program == "etcd" else f"/usr/bin/{program}") == [
        "etcd-server"
    ]


@pytest.mark.parametrize("page", ["docs/benchmarks.md", "CONTRIBUTING.md"])
def test_a_page_names_all_packages(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    needed = set(missing_packages(ALL, _find_nothing)) - {"util-linux"}  # essential on Debian
    assert [package for package in sorted(needed) if package not in text] == []
