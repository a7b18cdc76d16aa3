"""What one VM's agents did about one event, replayed fact by fact. Whatever must not be is complained of."""

from __future__ import annotations

from enum import StrEnum

from forewarn.agent.record import StepRun
from forewarn.agent.rule import EventStep, Rule
from tests.support.agents.history import (
    Accepted,
    Fact,
    Heard,
    Posted,
    Remembered,
    StepBegan,
    StepEnded,
    Told,
)

__all__ = ["Phase", "Story"]

_AT_ONCE_S = 1e-5
"""The service writes down microseconds."""


class Phase(StrEnum):
    """How far a step came, as far as the disk knows."""

    NONE = "none"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CUT = "cut"
    """The agent died meanwhile, or before it had saved how the step ended."""


class Story:
    """One event on one VM.

    An event that is gone and comes back, because somebody was shown an older document, begins a new life.

    Attributes:
        rule: The one that is to decide.
        prepare: How far preparing came.
        undo: How far recovering came.
        prepared: From and to when it was prepared; in seconds.
        undoing: From when to when it was being undone, with the time in which that had failed.
        running: Of each run of the preparation: its begin, its end, and how it ended.
        undo_running: Of each run of the recovery: its begin and its end.
        told: When an operator approved it, as it is since it came back last.
        endings: When that happened while the disk knew of it.
        posted: When its approval was sent.
        accepted: When the agent was told that it was taken.
        started_seen: When a document showed it started, and to which process.
        appearances: When a document had it, and the one before did not.
        absences: When a document lacked it that had been there.
        is_reported: The agent said that it started unprepared.
        given_up_s: When preparing was given up without being begun, or begun again; None when it was not.
        is_marked: Preparing was interrupted, and is not begun again.
        has_other_rule: The agent goes by another rule, and knows its name.
        is_misnamed: It goes by another rule, and does not know its name.
        has_acted_by_it: It has done something by another rule.
        is_on_disk: The disk knows of it.
        is_begun_on_disk: The disk knows of a preparation that has not ended.
        is_excused: The disk was full, and the power went: nobody can know.
    """

    def __init__(self, vm: str, event_id: str, rule: Rule) -> None:
        self.vm = vm
        self.event_id = event_id
        self.rule = rule
        self.complaints: list[str] = []
        self.facts: list[Fact] = []
        self.prepare = Phase.NONE
        self.undo = Phase.NONE
        self.prepared: list[tuple[float, float]] = []
        self.undoing: list[tuple[float, float]] = []
        self.running: list[tuple[float, float, str]] = []
        self.undo_running: list[tuple[float, float]] = []
        self.posted: list[float] = []
        self.accepted: list[float] = []
        self.told: list[float] = []
        self.shown_s: float | None = None
        self.started_seen: list[tuple[float, int]] = []
        self.appearances: list[float] = []
        self.absences: list[float] = []
        self.endings: list[float] = []
        self.is_reported = False
        self.given_up_s: float | None = None
        self.is_marked = False
        self.has_other_rule = False
        self.is_misnamed = False
        self.has_acted_by_it = False
        self.is_on_disk = False
        self.is_begun_on_disk = False
        self.is_excused = False
        self._shown: str | None = None
        self._is_leaving = False
        self._was_stopping = False
        self._has_started = False
        self._was_absent = False
        self._is_cut_short = False
        self._was_back = False
        self._absent_s = 0.0
        self._undoing_s = 0.0
        self._begun_s = 0.0
        self._step_begun_s = 0.0
        self._prepared_s: float | None = None
        self._unsaved: set[str] = set()
        self._is_begin_unsaved = False
        self._is_accepted = False
        self._is_accepted_saved = False
        self._is_told = False
        self._is_to_recover = False

    def complain(self, fact: Fact, text: str) -> None:
        if not self.is_excused:
            self.complaints.append(f"{fact.at_s:.3f} s: {self.vm}, event {self.event_id}: {text}")

    # What the agent is shown

    def hear(self, fact: Heard) -> None:
        event = fact.document.get(self.event_id)
        if event is None:
            if self.shown_s is not None:
                self._was_absent = True
                self._absent_s = fact.at_s
                self.absences.append(fact.at_s)
                if self.is_on_disk:
                    self.endings.append(fact.at_s)
            self._shown = ""
            return
        if self.shown_s is None:
            self.shown_s = fact.at_s
        if not self.appearances or self._absent_s > self.appearances[-1]:
            self.appearances.append(fact.at_s)
            self._unsaved.add("appearance")
        if self._was_absent:
            self._was_back = True
            if self.undo is Phase.NONE and self.prepare is Phase.NONE:
                self._begin_life()
        self._shown = event.status
        if event.is_started:
            self._has_started = True
            self.started_seen.append((fact.at_s, fact.process))

    def _begin_life(self) -> None:
        self.prepare = self.undo = Phase.NONE
        self._was_absent = self._was_back = self._is_accepted = self._is_cut_short = self._is_told = False
        self.told.clear()
        self._unsaved.clear()

    # What it does

    def take(self, fact: Fact) -> None:  # noqa: C901, PLR0912 - one branch for each kind of fact
        """Take in a fact about this event."""
        self.facts.append(fact)
        if isinstance(fact, StepBegan) and fact.step is not EventStep.ALERT:
            self._step_begun_s = fact.at_s
        elif isinstance(fact, StepEnded) and fact.step not in {EventStep.RECOVER, EventStep.CANCELED, EventStep.ALERT}:
            # What was told to end because the event was gone comes to its end, though the event may be back by then.
            self._is_cut_short = self.was_absent_between(self._step_begun_s, fact.at_s)
        match fact:
            case StepBegan(step=EventStep.PREPARE):
                self._begin_prepare(fact)
            case StepBegan(step=EventStep.RECOVER | EventStep.CANCELED):
                self._begin_undo(fact)
            case StepBegan(step=EventStep.BEFORE_APPROVAL):
                if not self._may_approve():
                    self.complain(fact, "the approval was made ready before the VM was")
            case StepBegan(step=EventStep.STARTED):
                if not self._has_started:
                    self.complain(fact, "the step started ran, and it had not")
            case StepEnded(step=EventStep.PREPARE):
                self._end_prepare(fact)
            case StepEnded(step=EventStep.RECOVER | EventStep.CANCELED):
                self.undo = self._ended(fact, "undo")
                self.undo_running.append((self._step_begun_s, fact.at_s))
                if self.undo is Phase.DONE:
                    self.undoing.append((self._undoing_s, fact.at_s))
            case Posted():
                self._post(fact)
            case Accepted():
                self.accepted.append(fact.at_s)
                self._is_accepted = True
                self._is_accepted_saved = False
            case Remembered(is_saved=False):
                self.complain(fact, "the agent said that it will remember, and the disk does not know")
            case Told(word="approve"):
                if self.undo is Phase.DONE and self._was_back:
                    self._begin_life()  # it is of this one that somebody says so
                self._is_told = True
                self.told.append(fact.at_s)
                self._unsaved.add("told")
            case Told():
                self._is_to_recover = True
                self._unsaved.add("mended")
            case _:
                pass
        if isinstance(fact, StepBegan) and not fact.is_saved:
            if fact.is_disk_behind:
                self._is_begin_unsaved = True
            else:
                self.complain(fact, f"step {fact.step} began before the disk knew of it")

    def _begin_prepare(self, fact: StepBegan) -> None:
        if self._shown == "" or (self._shown is None and self.shown_s is None):
            self.complain(fact, "it was prepared for, and is not there")
        if self.undo is Phase.DONE and self._was_back:
            self._begin_life()
        if self.undo is not Phase.NONE:
            self.complain(fact, f"it was prepared for while undoing was {self.undo}")
        if self.prepare not in {Phase.NONE, Phase.CUT}:
            self.complain(fact, f"it was prepared for again; before it was {self.prepare}")
        if self.prepare is Phase.CUT and self.rule.interrupted == "mark":
            self.complain(fact, "it was prepared for again after an interruption, and the rule forbids that")
        if self.is_marked and self.prepare is Phase.CUT and self._shown == "Started":
            self.complain(fact, "it was prepared for again after the start, and had been stopped before")
        self.prepare = Phase.RUNNING
        self._begun_s = fact.at_s

    def _end_prepare(self, fact: StepEnded) -> None:
        self.prepare = self._ended(fact, "prepare")
        self.running.append((self._begun_s, fact.at_s, "left" if self.prepare is Phase.CUT else fact.how))
        if self.prepare is Phase.DONE:
            self._prepared_s = fact.at_s

    def _ended(self, fact: StepEnded, which: str) -> Phase:
        self._unsaved.add(which)
        if fact.how == "done":
            return Phase.DONE
        return Phase.CUT if fact.how == "stopped" and self._is_leaving else Phase.FAILED

    def _begin_undo(self, fact: StepBegan) -> None:
        if self.prepare is Phase.RUNNING:
            self.complain(fact, "it was undone while it was being prepared for")
        if self.undo is Phase.DONE and self._was_back:
            is_cut_short = self._is_cut_short
            self._begin_life()
            self._was_absent, self._is_cut_short = True, is_cut_short
        if self.undo is Phase.FAILED and self._is_to_recover:
            self.undo = Phase.CUT
        if self.undo not in {Phase.NONE, Phase.CUT}:
            self.complain(fact, f"it was undone again; before it was {self.undo}")
        is_gone = self._was_absent if self._shown is None else self._shown == "" or self._is_cut_short
        if self.undo is Phase.NONE and not is_gone:
            self.complain(fact, "it was undone, and is still there")
        self._is_to_recover = False
        if self.undo is Phase.NONE and not self._is_cut_short:
            self._was_back = False
        self._end_prepared(fact.at_s)
        if self.undo is Phase.NONE:
            self._undoing_s = fact.at_s
        self.undo = Phase.RUNNING

    def _end_prepared(self, at_s: float) -> None:
        if self._prepared_s is not None:
            self.prepared.append((self._prepared_s, at_s))
            self._prepared_s = None

    def _may_approve(self) -> bool:
        if self._is_told or not self.rule.has_preparation or self.prepare is Phase.DONE:
            return True
        return self.rule.on_failure == "approve" and self.prepare is not Phase.RUNNING

    def _post(self, fact: Posted) -> None:
        self.posted.append(fact.at_s)
        if self.undo is Phase.DONE and self._was_back:
            self._begin_life()
        if self.rule.approve in {"never", "by-hand"} and not self._is_told:
            self.complain(fact, f"it was approved, and the rule says {self.rule.approve}")
        if not self._may_approve():
            self.complain(fact, f"it was approved when preparing was {self.prepare}")
        if "prepare" in self._unsaved and not self._is_told:
            self.complain(fact, "it was approved, and the disk did not know what was prepared")
        if self._shown == "" and fact.at_s - self._absent_s > _AT_ONCE_S:
            self.complain(fact, "it was approved, and is not there")
        if self._is_accepted:
            self.complain(fact, "it was approved again, and the first approval had been answered with 200")

    def note_failed(self, at_s: float, run: StepRun) -> None:
        """The disk knows that preparing has failed; if nobody saw it end, it was given up."""
        if self.prepare not in {Phase.NONE, Phase.CUT}:
            return
        if run.tries and (self._was_stopping or self.rule.interrupted == "mark"):
            self.is_marked = True
        elif self.given_up_s is None:
            self.given_up_s = at_s

    def note_stopping(self) -> None:
        """The disk knows that preparing was told to end."""
        self._was_stopping = True

    # What becomes of the agent

    def save(self) -> None:
        """The disk knows all."""
        self._unsaved.clear()
        self._is_begin_unsaved = False
        self._is_accepted_saved = True

    def leave(self) -> None:
        self._is_leaving = True

    def die(self, at_s: float) -> None:
        """The agent is no more; what it had not saved may happen again."""
        self.is_excused |= self._is_begin_unsaved
        self.is_marked |= self.is_begun_on_disk and self.rule.interrupted == "mark"
        if self.prepare is Phase.RUNNING:
            self.running.append((self._begun_s, at_s, "died"))
        if self.undo is Phase.RUNNING:
            self.undo_running.append((self._step_begun_s, at_s))
        if "prepare" in self._unsaved or self.prepare is Phase.RUNNING:
            self.prepare = Phase.CUT
        if "undo" in self._unsaved or self.undo is Phase.RUNNING:
            self.undo = Phase.CUT
        if self.prepare is Phase.CUT:
            self._end_prepared(at_s)
        if "told" in self._unsaved:
            self.told.pop()
            self._is_told = bool(self.told)
        if "appearance" in self._unsaved:
            self.appearances.pop()
        if "mended" in self._unsaved:
            self._is_to_recover = False
        if not self._is_accepted_saved:
            self._is_accepted = False
        self._shown = None
        self._is_leaving = False
        self._unsaved.clear()

    def end(self, at_s: float) -> None:
        """Nothing comes after this."""
        self._end_prepared(at_s)
        if self.undo not in {Phase.NONE, Phase.DONE}:
            self.undoing.append((self._undoing_s, at_s))
        is_left_failed = self.undo is Phase.FAILED and not self._is_to_recover
        if self.prepare is not Phase.NONE and self.undo is not Phase.DONE and not (is_left_failed or self.is_excused):
            self.complaints.append(
                f"{self.vm}, event {self.event_id}: preparing was {self.prepare}, and undoing is {self.undo} at the end"
            )
        if self.undo in {Phase.CUT, Phase.RUNNING} and not self.is_excused:
            self.complaints.append(f"{self.vm}, event {self.event_id}: undoing is {self.undo} at the end")

    def was_absent_between(self, begin_s: float, end_s: float) -> bool:
        """Whether a document lacked it then."""
        return any(begin_s <= at_s <= end_s for at_s in self.absences)

    def is_prepared_at(self, at_s: float) -> bool:
        """Whether it was prepared at that moment."""
        return any(begin - _AT_ONCE_S <= at_s <= end for begin, end in self.prepared)

    @property
    def keeps_out(self) -> bool:
        """Whether the VM has to be out of service now, because of this event."""
        is_other = self.has_other_rule or self.has_acted_by_it or self.is_misnamed
        is_prepared = self.prepare is Phase.DONE and self.undo is Phase.NONE
        return bool(self.rule.handlers) and is_prepared and not is_other and not self.is_excused

    @property
    def is_undone_in_part(self) -> bool:
        """Whether something may be left that nobody mended, or that nobody can know of."""
        return self.is_excused or self.undo is Phase.FAILED

    @property
    def may_hold(self) -> bool:
        """Whether this VM may have told its peers to wait."""
        has_failed = self.is_marked or self.given_up_s is not None or any(how != "done" for *_, how in self.running)
        return self.rule.approve in {"by-hand", "never"} or (has_failed and self.rule.on_failure == "hold")

    def prepared_after(self, at_s: float) -> float | None:
        """When it was prepared first after that moment; None: never."""
        return min((begin for begin, _ in self.prepared if begin > at_s), default=None)

    def is_undoing_at(self, at_s: float) -> bool:
        """Whether a recovery that had not come to its end stood in the way then, though the event was back."""
        return any(begin <= at_s <= end for begin, end in self.undoing)
