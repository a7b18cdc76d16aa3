"""Small writes of other servers: the request to etcd, and the logs of the load generators."""

from __future__ import annotations

from bench.small_writes import encode_put, read_latencies_ms


def test_a_put_is_one_message_of_grpc_with_key_and_value() -> None:
    assert encode_put(b"ab", b"xyz") == b"\x00" + b"\x00\x00\x00\x09" + b"\x0a\x02ab" + b"\x12\x03xyz"


def test_the_log_of_pgbench_has_microseconds_in_its_third_column() -> None:
    assert read_latencies_ms(["0 199 2241 0 1175850568 995598", "1 200 964 0 1175850568 998079"]) == [2.241, 0.964]


def test_the_log_of_h2load_has_microseconds_in_its_third_column() -> None:
    assert read_latencies_ms(["1709540411000000\t200\t12500"]) == [12.5]
