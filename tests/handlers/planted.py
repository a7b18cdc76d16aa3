"""Handlers with one planted fault each: what the fault is, and how `forewarn try` has to find it.

A folder for each holds a ``fault.toml``: ``what`` it does wrong, in one sentence; the ``scenario`` that shows it, by
its name, or a file in the folder;
the code of the ``finding`` that must be wrong, or the words of a ``step`` that must fail; what the text ``says``, at
least; and for each language the ``edits`` that plant it in the correct handler of `examples/handlers`. Where the file
is a ``harmless.toml``, the handler only does it in another way, and has to pass.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["CORRECT", "Edit", "PlantedFault", "correct_source", "planted_faults"]

FOLDER = Path(__file__).parent
CORRECT = {
    language: FOLDER.parents[1] / "examples" / "handlers" / f"handler.{ending}"
    for language, ending in {"python": "py", "bash": "sh", "node": "mjs", "perl": "pl", "go": "go"}.items()
}
"""The correct handler of each language."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Edit(_Strict):
    """A change of a source."""

    old: str
    """What stands there, exactly once."""

    new: str
    """What stands there instead."""


class PlantedFault(_Strict):
    """One fault, or a harmless difference, in several languages."""

    name: str
    what: str
    scenario: str
    finding: str = ""
    step: str = ""
    says: str = ""
    is_harmless: bool = False
    edits: dict[str, tuple[Edit, ...]]

    @model_validator(mode="after")
    def _is_whole(self) -> PlantedFault:
        if bool(self.finding) + bool(self.step) + self.is_harmless != 1 or bool(self.says) == self.is_harmless:
            msg = f"{self.name}: say either finding or step, and what the text says; where it is harmless, neither"
            raise ValueError(msg)
        if not self.edits or not self.edits.keys() <= CORRECT.keys():
            raise ValueError(f"{self.name}: edits are for some of {', '.join(CORRECT)}")
        return self

    @property
    def scenario_file(self) -> str:
        """The scenario as `load_scenario` takes it."""
        own = FOLDER / self.name / self.scenario
        return str(own) if own.is_file() else self.scenario

    def source(self, language: str) -> str:
        """The correct handler of that language, with this fault.

        Raises:
            ValueError: What an edit replaces is not there exactly once.
        """
        source = correct_source(language)
        for edit in self.edits[language]:
            if (count := source.count(edit.old)) != 1:
                raise ValueError(f"{self.name}, {language}: found {count} times: {edit.old!r}")
            source = source.replace(edit.old, edit.new)
        return source


def correct_source(language: str) -> str:
    """The correct handler of that language."""
    return CORRECT[language].read_text(encoding="utf-8")


def planted_faults() -> list[PlantedFault]:
    """All of them, by name."""
    return [
        PlantedFault(
            name=file.parent.name,
            is_harmless=file.name == "harmless.toml",
            **tomllib.loads(file.read_text(encoding="utf-8")),
        )
        for file in sorted(FOLDER.glob("*/*.toml"))
    ]
