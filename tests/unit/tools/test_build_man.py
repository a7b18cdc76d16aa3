"""The manual pages say what the help says, and no formatter complains about them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from forewarn.config.settings import Settings
from tools.build_man import pages, roff
from tools.commands import leaves, names_of, nouns, words_of

PAGES = pages()


def test_there_is_a_page_for_each_noun_and_the_settings() -> None:
    wanted = {f"forewarn-{noun}.1" for noun, _ in nouns()}
    assert set(PAGES) == wanted | {"forewarn.1", "forewarn.toml.5"}


@pytest.mark.parametrize("noun", [noun for noun, _ in nouns()])
def test_a_page_names_every_option_of_its_commands(noun: str) -> None:
    text = PAGES[f"forewarn-{noun}.1"].replace("\\-", "-")
    for words, leaf in leaves(dict(nouns())[noun], ("forewarn", noun)):
        assert " ".join(words) in text
        for parameter in words_of(leaf):
            names, _ = names_of(parameter)
            assert all(f"\\fB{name}\\fR" in text for name in names), parameter.name


def test_every_setting_stands_in_the_page_of_the_file() -> None:
    text = PAGES["forewarn.toml.5"]
    assert [name for name in Settings.model_fields if f".B {name}\n" not in text] == []


def test_no_text_is_taken_for_a_request_or_an_escape() -> None:
    assert roff(".br") == "\\&.br"
    assert roff("'x' a\\b --c") == "\\&'x' a\\eb \\-\\-c"
    assert roff("`code`  and\nmore") == "code and more"
    assert not [line for line in roff("word .word 'word " * 20).splitlines() if line[0] in ".'"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs mandoc")
def test_mandoc_has_nothing_to_say(tmp_path: Path) -> None:
    for name, text in PAGES.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["mandoc", "-T", "lint", *sorted(PAGES)], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
