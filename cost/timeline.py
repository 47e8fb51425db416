"""What one job was doing at each moment, from the reports of its coordinator. Pure; feeds the ledger.

Reports come late, twice and out of order; what is told of a job depends on the set of them alone. `reports.py` keeps
them in order of the time at which they begin. The newest one, as nearly all are, extends the story in constant time;
for a late one the story goes back to a mark before it and is told again from there.

How a moment gets its label:
- inside [began, at] of committed steps: `useful`, or `recomputed` for step numbers that had been committed before
  (these are the first ones of the report, so they take the first part of its time);
- between two steps while training: as the step that follows;
- in any other phase: as the phase; `training` without a step yet still counts for the phase before it;
- from the last step to the phase that ends training: as that phase (the part of a step that was lost, and the time
  until the loss was seen, are the price of the restart). While that phase is not yet known: `unmeasured`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import sub
from typing import NamedTuple

from tradewind.cost.labels import JOB_LABELS, Label
from tradewind.cost.reports import ReportKey, Reports
from tradewind.model import Phase

_POSITION = {label: i for i, label in enumerate(JOB_LABELS)}
_USEFUL, _RECOMPUTED = _POSITION[Label.USEFUL], _POSITION[Label.RECOMPUTED]
_STARTING, _RESTARTING = _POSITION[Label.STARTING], _POSITION[Label.RESTARTING]
_RESIZING, _UNMEASURED = _POSITION[Label.RESIZING], _POSITION[Label.UNMEASURED]
_OF_PHASE = {
    Phase.STARTING: _STARTING,
    Phase.CHECKPOINTING: _POSITION[Label.CHECKPOINTING],
    Phase.RESIZING: _RESIZING,
    Phase.RESTARTING: _RESTARTING,
    Phase.DONE: _POSITION[Label.ENDING],
    Phase.RESTING: _RESIZING,  # what it still holds then; a planned change of size, to none
}
_PHASES = tuple(Phase)
_NO_TIME = (0,) * len(JOB_LABELS)

_MARK_EVERY = 1024  # reports
_FEW_MARKS = 12  # a shorter story is looked at report by report
_FEW_SPANS = 12  # up to here, adding spans up is faster than taking the difference of two totals

Totals = tuple[int, ...]  # milliseconds by JOB_LABELS
Spell = tuple[int, int]  # a position in JOB_LABELS, and milliseconds


@dataclass(frozen=True, slots=True)
class Progress:
    """What the steps add up to. Work that was done twice counts once, and is told apart."""

    steps: int = 0
    recomputed_steps: int = 0
    samples: int = 0
    attempts: int = 0


class _Mark(NamedTuple):
    """The state of a story at some report."""

    spans: int
    first_ms: int | None
    until_ms: int
    waiting_as: int
    training: bool
    stepped: bool
    highest_step: int
    steps: int
    recomputed_steps: int
    samples: int
    attempts: int


@dataclass(slots=True)
class _Story:
    """The labels from the first report to `until_ms`: spans without gaps, each with the totals at its start."""

    starts_ms: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)
    first_ms: int | None = None  # when the first report begins
    until_ms: int = 0
    waiting_as: int = _STARTING  # the label of time in which no step is taken
    training: bool = False
    stepped: bool = False  # since training began
    highest_step: int = 0
    steps: int = 0
    recomputed_steps: int = 0
    samples: int = 0
    attempts: int = 0

    def tell(self, start_ms: int, attempt: int, end_ms: int, first_step: int, last_step: int, samples: int) -> None:
        if self.first_ms is None:
            self.first_ms = self.until_ms = start_ms
        if attempt > self.attempts:
            self.attempts = attempt
        if first_step < 0:
            self._tell_phase(start_ms, _PHASES[-1 - first_step])
        else:
            self._tell_steps(start_ms, end_ms, first_step, last_step, samples)

    def _tell_phase(self, at_ms: int, phase: Phase) -> None:
        if phase is Phase.TRAINING:
            if not self.training:
                self._extend(at_ms, self.waiting_as)
                self.training, self.stepped = True, False
            return
        label = self._label_of(phase)
        self._extend(at_ms, label if self.stepped else self.waiting_as)
        self.waiting_as, self.training, self.stepped = label, False, False

    def _label_of(self, phase: Phase) -> int:
        """Only the first start is a start: a later one belongs to the resize or restart that made it necessary."""
        if phase is not Phase.STARTING:
            return _OF_PHASE[phase]
        if not self.training and self.waiting_as in (_RESIZING, _RESTARTING):
            return self.waiting_as
        return _RESTARTING if self.highest_step else _STARTING

    def _tell_steps(self, start_ms: int, end_ms: int, first_step: int, last_step: int, samples: int) -> None:
        count = last_step - first_step + 1
        if self.stepped and first_step > self.highest_step:  # nearly always: the next steps
            self._extend(end_ms, _USEFUL)
            self.highest_step = last_step
            self.steps += count
            self.samples += samples
            return
        again = min(max(self.highest_step - first_step + 1, 0), count)
        label = _RECOMPUTED if again else _USEFUL
        self._extend(start_ms, label if self.stepped else self.waiting_as)
        if again:
            self._extend(start_ms + (end_ms - start_ms) * again // count, _RECOMPUTED)
        if again < count:
            self._extend(end_ms, _USEFUL)
            self.highest_step = last_step
        self.training = self.stepped = True
        self.steps += count - again
        self.recomputed_steps += again
        self.samples += samples - samples * again // count

    def _extend(self, to_ms: int, label: int) -> None:
        """Time up to `to_ms` that has no label yet gets this one. Time that overlaps stays with the earlier report."""
        if to_ms <= self.until_ms:
            return
        if not self.labels or self.labels[-1] != label:
            self.totals.append(self._totals(-1, self.until_ms) if self.labels else _NO_TIME)
            self.starts_ms.append(self.until_ms)
            self.labels.append(label)
        self.until_ms = to_ms

    def between(self, from_ms: int, until_ms: int) -> list[Spell]:
        """Milliseconds by label in a stretch between the first report and `until_ms`. A label may occur twice."""
        first = bisect_right(self.starts_ms, from_ms) - 1
        last = bisect_left(self.starts_ms, until_ms, first) - 1
        if first == last:
            return [(self.labels[first], until_ms - from_ms)]
        if last - first > _FEW_SPANS:
            before, after = self._totals(first, from_ms), self._totals(last, until_ms)
            return [(label, after[label] - before[label]) for label in range(len(_NO_TIME))]
        edges_ms = [from_ms, *self.starts_ms[first + 1 : last + 1], until_ms]
        lengths_ms = map(sub, edges_ms[1:], edges_ms)
        return list(zip(self.labels[first : last + 1], lengths_ms, strict=True))

    def _totals(self, span: int, at_ms: int) -> Totals:
        """Milliseconds by label from the first report to `at_ms`, which lies in (or ends) that span."""
        known, label = self.totals[span], self.labels[span]
        return (*known[:label], known[label] + at_ms - self.starts_ms[span], *known[label + 1 :])

    def mark(self) -> _Mark:
        return _Mark(
            len(self.starts_ms),
            self.first_ms,
            self.until_ms,
            self.waiting_as,
            self.training,
            self.stepped,
            self.highest_step,
            self.steps,
            self.recomputed_steps,
            self.samples,
            self.attempts,
        )

    def rewind(self, mark: _Mark) -> None:
        """Forget what was told after the mark. The last span that is kept ends at the mark's `until_ms` again."""
        del self.starts_ms[mark.spans :], self.labels[mark.spans :], self.totals[mark.spans :]
        self.first_ms, self.until_ms, self.waiting_as = mark.first_ms, mark.until_ms, mark.waiting_as
        self.training, self.stepped, self.highest_step = mark.training, mark.stepped, mark.highest_step
        self.steps, self.recomputed_steps = mark.steps, mark.recomputed_steps
        self.samples, self.attempts = mark.samples, mark.attempts


@dataclass(slots=True)
class Timeline:
    """One job's reports, and what they say of any stretch of time."""

    foreign: bool = False
    total_steps: int | None = None  # as last told
    _reports: Reports = field(default_factory=Reports)
    _story: _Story = field(default_factory=_Story)
    _told: int = 0  # how many of the reports the story has
    _marks: list[_Mark] = field(default_factory=lambda: [_Story().mark()])  # one before every _MARK_EVERY reports
    _changed_ms: int | None = 0  # labels from here on are not as they were when somebody last asked

    def add_phase(self, at_ms: int, attempt: int, sequence: int, phase: Phase) -> None:
        self._add((at_ms, attempt, sequence), at_ms, -1 - _PHASES.index(phase), 0, 0)

    def add_steps(
        self, began_ms: int, at_ms: int, attempt: int, sequence: int, first_step: int, last_step: int, samples: int
    ) -> None:
        if not last_step >= first_step >= 0:  # an empty report says nothing
            return
        story = self._story
        if (  # nearly always: the next steps, in order, while nothing else is waiting. Millions of these are folded
            story.stepped
            and first_step > story.highest_step
            and attempt == story.attempts
            and story.until_ms <= began_ms < at_ms
            and story.labels
            and story.labels[-1] == _USEFUL
            and self._changed_ms is not None
            and self._reports.put_next(began_ms, attempt, sequence, at_ms, first_step, last_step, samples)
        ):
            story.until_ms, story.highest_step = at_ms, last_step
            story.steps += last_step - first_step + 1
            story.samples += samples
            self._told += 1
            if self._told % _MARK_EVERY == 0:
                self._marks.append(story.mark())
            return
        self._add((began_ms, attempt, sequence), max(at_ms, began_ms), first_step, last_step, samples)

    def between(self, from_ms: int, until_ms: int) -> list[Spell]:
        """What the job did in [from, until): spells that add up to its length."""
        story = self._up_to_date()
        if story.first_ms is not None and story.first_ms <= from_ms < until_ms <= story.until_ms:
            return story.between(from_ms, until_ms)
        if story.first_ms is None:
            return [(_UNMEASURED if self.foreign else _STARTING, until_ms - from_ms)]
        found: list[Spell] = []
        if from_ms < story.first_ms:
            found.append((_STARTING, min(until_ms, story.first_ms) - from_ms))
        known_from, known_until = max(from_ms, story.first_ms), min(until_ms, story.until_ms)
        if known_until > known_from:
            found += story.between(known_from, known_until)
        tail_ms = until_ms - max(from_ms, story.until_ms)
        if tail_ms > 0:
            found.append((_UNMEASURED if story.stepped else story.waiting_as, tail_ms))
        return found

    @property
    def progress(self) -> Progress:
        story = self._up_to_date()
        return Progress(story.steps, story.recomputed_steps, story.samples, story.attempts)

    @property
    def highest_step(self) -> int:
        return self._up_to_date().highest_step

    def curve(self) -> list[tuple[int, int]]:
        """How far it was when: (milliseconds, highest step), oldest first. Of a long story, not every point."""
        story = self._up_to_date()
        found = [(mark.until_ms, mark.highest_step) for mark in self._marks if mark.first_ms is not None]
        if len(found) < _FEW_MARKS:
            found, highest = [], 0
            for start_ms, _, _, end_ms, first_step, last_step, _ in self._reports.rows():
                if first_step >= 0:
                    found += [] if found else [(start_ms, first_step - 1)]
                    highest = max(highest, last_step)
                    found.append((end_ms, highest))
        elif story.until_ms > found[-1][0]:
            found.append((story.until_ms, story.highest_step))
        return found

    def taught(self, foreign: bool) -> None:
        """Its submission says whether it is one of ours."""
        self.foreign, self._changed_ms = foreign, 0

    def changed_since_asked_ms(self) -> int | None:
        """From when on labels may differ from those at the last call; None: nothing was heard since."""
        self._up_to_date()
        found, self._changed_ms = self._changed_ms, None
        return found

    def _add(self, key: ReportKey, end_ms: int, first_step: int, last_step: int, samples: int) -> None:
        known_ms = 0 if self._story.first_ms is None else self._story.until_ms
        if self._changed_ms is None or known_ms < self._changed_ms:
            self._changed_ms = known_ms
        if self._reports.add(key, end_ms, first_step, last_step, samples) and self._told == len(self._reports) - 1:
            self._story.tell(key[0], key[1], end_ms, first_step, last_step, samples)
            self._count()

    def _count(self) -> None:
        self._told += 1
        if self._told % _MARK_EVERY == 0:
            self._marks.append(self._story.mark())

    def _up_to_date(self) -> _Story:
        if self._reports.late:
            unchanged = self._reports.merge_late()
            del self._marks[min(unchanged, self._told) // _MARK_EVERY + 1 :]
            self._story.rewind(self._marks[-1])
            self._changed_ms = min(self._changed_ms or 0, self._story.until_ms)
            self._told = (len(self._marks) - 1) * _MARK_EVERY
        if self._told < len(self._reports):
            for start, attempt, _, end, first, last, samples in self._reports.rows(self._told):
                self._story.tell(start, attempt, end, first, last, samples)
                self._count()
        return self._story
