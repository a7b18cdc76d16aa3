from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.toml_lines import Keys, find_line, find_unfinished_line
from tests.support.parsing import parsed_lengths

TEXT = """\
# x
name = "a" # y
"a=b" = '''
[[rule]]
'''

[[rule]]
name = "r"
types = ["Freeze",
 "Reboot"] # c

[together]
mode = "x"
peers.a = 3
[[rule]]
prepare = [
  # c
  ["a", "b"], ["c"],

  ["e",
   "f"
  ],
  { command = ["a",
     "g"], timeout = "x" },
]
[[rule.recover]]
command = ["x"]
[[rule.recover]]
webhook = "x"
[rule.recover.headers]
a = 1
[[rule]]
handlers = [{use="file"},
{use="b"}]
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("name",), 2),
        (("a=b",), 3),
        (("rule",), 7),
        (("rule", 0), 7),
        (("rule", 0, "name"), 8),
        (("rule", 0, "types"), 9),
        (("rule", 0, "types", 0), 9),
        (("rule", 0, "types", 1), 10),
        (("together",), 12),
        (("together", "mode"), 13),
        (("together", "peers"), 14),
        (("together", "peers", "a"), 14),
        (("rule", 1), 15),
        (("rule", 1, "prepare"), 16),
        (("rule", 1, "prepare", 0), 18),
        (("rule", 1, "prepare", 1, 0), 18),
        (("rule", 1, "prepare", 2), 20),
        (("rule", 1, "prepare", 2, 1), 21),
        (("rule", 1, "prepare", 3), 23),
        (("rule", 1, "prepare", 3, "command", 1), 24),
        (("rule", 1, "prepare", 3, "timeout"), 24),
        (("rule", 1, "recover"), 26),
        (("rule", 1, "recover", 0, "command"), 27),
        (("rule", 1, "recover", 1), 28),
        (("rule", 1, "recover", 1, "headers"), 30),
        (("rule", 1, "recover", 1, "headers", "a"), 31),
        (("rule", 2, "handlers", 1, "use"), 34),
        # What is not there: the deepest part of it that is.
        (("together", "stagger"), 12),
        (("rule", 1, "prepare", 3, "retries"), 23),
        (("rule", 2, "handlers", 5), 33),
        (("rule", 3), 7),
        (("name", "x"), 2),
        (("other",), 1),
        ((), 1),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_value_begins_at_that_line(keys: Keys, line: int, line_end: str) -> None:
    assert find_line(TEXT.replace("\n", line_end), keys) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = [\n1,\n", 2),
        ("a = 1\nb = '''\nc = 1\n", 2),
        ("a = 1\nb = \n", 2),
        ("a = 1\n'b=c' = [\n", 2),
        ("a = 1\n\n# c", 1),
        ("", 1),
        ("=", 1),
        ("a = 1\n" + "=" * 500, 2),
    ],
)
def test_a_statement_without_an_end_is_found_by_its_beginning(text: str, line: int) -> None:
    assert find_unfinished_line(text) == line


def test_an_element_of_a_very_long_array_is_told_by_the_beginning_of_the_array() -> None:
    text = "\nb = [\n" + "  'x',\n" * 500 + "]\n"
    assert find_line(text, ("b", 400)) == 2
    text = "\nb = [\n" + f"  '{'x' * 1000}',\n" * 20 + "]\n"
    assert find_line(text, ("b", 19)) == 2


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("".join(f"[[rule]]\nname = 'r{n}'\nprepare = [['a', '{n}']]\n" for n in range(5_000)), ("rule", 4_999, "x")),
        ("a = [\n" + "  ['b', 'c'],  # xxxxxxxxxxxx\n" * 8_000 + "]\nb = 1\n", ("b",)),
        ("".join(f"a{n} = 1\n" for n in range(20_000)), ("a19999",)),
        ("".join(f"[a{n}]\n" for n in range(20_000)), ("a19999",)),
        ("\n" * (1 << 18), ("a",)),
    ],
    ids=["rules", "an array", "values", "tables", "nothing"],
)
def test_the_work_grows_no_faster_than_the_text(text: str, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the greatest file that is read; parsing every beginning of it would take minutes."""
    parsed = parsed_lengths(monkeypatch)
    find_line(text, keys)
    assert sum(parsed) <= 10 * len(text)


# Texts of which it is known where everything stands

names = st.sampled_from(["a", "b", '"c=d"', "'e # f'", "g-h"])


@st.composite
def a_value(draw: st.DrawFn) -> list[str]:
    """The lines of a value."""
    return draw(
        st.sampled_from(
            [
                ["1 # [[a]]"],
                ['"x = [ # "'],
                ["[1, [2, 3]]"],
                ["[", "  # ]", "  1,", "", "  2 ]"],
                ["[ 'a', # b", "  '''", "[[c]]", "d = 1", "''', ]"],
                ['"""', "[a]", 'b = 1"""'],
                ["'''", "'''"],
                ["{ x = [", "1 ], y = 2 }"],
            ]
        )
    )


@st.composite
def a_text(draw: st.DrawFn) -> list[str]:
    """The lines of a text that is TOML but for keys that are there twice."""
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["value", "value", "table", "array", "comment"]))
        name = draw(names)
        if kind == "value":
            first, *rest = draw(a_value())
            lines += [f"{draw(st.sampled_from(['', '  ']))}{name} = {first}", *rest]
        else:
            lines.append({"table": f"[{name}]", "array": f"[[{name}.{name}]]", "comment": f"# {name} = ["}[kind])
    return lines


def paths(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:  # noqa: ANN401 - TOML
    yield keys
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths(each, (*keys, key))


def holds(content: Any, keys: Keys) -> bool:  # noqa: ANN401 - TOML
    for key in keys:
        try:
            content = content[key]
        except (LookupError, TypeError):
            return False
    return True


def beginnings(lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every beginning of the text that is TOML by itself, and how many lines it has."""
    for end in range(len(lines) + 1):
        try:
            yield end, tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue


@given(a_text())
def test_a_value_stands_in_the_statement_that_sets_it(lines: list[str]) -> None:
    """Held against the slow way: parsing every beginning of the text."""
    parsed = list(beginnings(lines))
    end, content = parsed[-1]
    text = "\n".join(lines[:end])
    for keys in paths(content):
        if keys:
            before, after = next(
                (parsed[n - 1][0], parsed[n][0]) for n in range(1, len(parsed)) if holds(parsed[n][1], keys)
            )
            assert before < find_line(text, keys) <= after, keys
