"""What the trace of a maintenance is called follows from its id."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from forewarn.observability.tracing.trace_ids import derive_root_span_id, derive_trace_id, format_traceparent


def test_the_trace_id_is_what_a_shell_can_work_out() -> None:
    digest = hashlib.sha256(b"forewarn maintenance k3v9qd2m7x").hexdigest()
    assert f"{derive_trace_id('k3v9qd2m7x'):032x}" == digest[:32]


@given(st.text(max_size=40), st.text(max_size=40))
def test_ids_are_the_same_each_time_and_differ_between_maintenances(one: str, other: str) -> None:
    assert derive_trace_id(one) == derive_trace_id(one)
    assert derive_root_span_id(one) == derive_root_span_id(one)
    assert (one == other) is (derive_trace_id(one) == derive_trace_id(other))
    assert (one == other) is (derive_root_span_id(one) == derive_root_span_id(other))


@given(st.text(max_size=40), st.booleans())
def test_a_traceparent_is_one_of_w3c(id_: str, is_sampled: bool) -> None:
    text = format_traceparent(derive_trace_id(id_), derive_root_span_id(id_), is_sampled=is_sampled)
    match = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])", text)
    assert match is not None
    assert int(match[1], 16) == derive_trace_id(id_) != 0
    assert int(match[2], 16) == derive_root_span_id(id_) != 0
    assert (match[3] == "01") is is_sampled
