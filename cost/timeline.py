"""What one job was doing at each moment, from the reports of its coordinator. Pure; feeds the ledger.

Reports come late, twice and out of order. They are kept in columns of numbers (60 bytes each) and put in order of
the time at which they begin; a report that is the newest, as nearly all are, extends what is known in constant time,
any other one has the story told again when it is next asked for. So the answer depends on the set of reports alone.

How a moment gets its label:
- inside [began, at] of committed steps: `useful`, or `recomputed` for step numbers that had been committed before
  (these are the first ones of the report, so they take the first part of its time);
- between two steps while training: as the step that follows;
- in any other phase: as the phase; `training` without a step yet still counts for the phase before it;
- from the last step to the phase that ends training: as that phase (the part of a step that was lost, and the time
  until the loss was seen, are the price of the restart). While that phase is not yet known: `unmeasured`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from tradewind.cost.labels import JOB_LABELS, Label
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
}
_PHASES = tuple(Phase)
_NO_TIME = (0,) * len(JOB_LABELS)

Totals = tuple[int, ...]  # milliseconds by JOB_LABELS


@dataclass(frozen=True, slots=True)
class Progress:
    """What the steps add up to. Work that was done twice counts once, and is told apart."""

    steps: int = 0
    recomputed_steps: int = 0
    samples: int = 0
    attempts: int = 0


@dataclass(slots=True)
class _Reports:
    """Reports as columns, in order of (start, attempt, sequence) unless `shuffled`."""

    start_ms: array[int] = field(default_factory=lambda: array("q"))
    attempt: array[int] = field(default_factory=lambda: array("q"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    end_ms: array[int] = field(default_factory=lambda: array("q"))
    first_step: array[int] = field(default_factory=lambda: array("q"))  # of a phase: -1 - its number
    last_step: array[int] = field(default_factory=lambda: array("q"))
    samples: array[int] = field(default_factory=lambda: array("q"))
    last_key: tuple[int, int, int] | None = None
    shuffled: bool = False

    def add(self, key: tuple[int, int, int], end_ms: int, first_step: int, last_step: int, samples: int) -> bool:
        """Whether it is the newest of all; one that is here already is left out."""
        newest = self.last_key is None or key > self.last_key
        if newest:
            self.last_key = key
        elif not self.shuffled and self._has(key):
            return False
        else:
            self.shuffled = True
        self.start_ms.append(key[0])
        self.attempt.append(key[1])
        self.sequence.append(key[2])
        self.end_ms.append(end_ms)
        self.first_step.append(first_step)
        self.last_step.append(last_step)
        self.samples.append(samples)
        return newest

    def rows(self) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        return zip(
            self.start_ms,
            self.attempt,
            self.sequence,
            self.end_ms,
            self.first_step,
            self.last_step,
            self.samples,
            strict=True,
        )

    def in_order(self) -> _Reports:
        """The same reports in order, each once."""
        ordered = _Reports()
        for start, attempt, sequence, *rest in sorted(self.rows()):
            key = (start, attempt, sequence)
            if key != ordered.last_key:
                ordered.add(key, *rest)
        return ordered

    def _has(self, key: tuple[int, int, int]) -> bool:
        i = bisect_left(self.start_ms, key[0])
        while i < len(self.start_ms) and self.start_ms[i] == key[0]:
            if (self.attempt[i], self.sequence[i]) == key[1:]:
                return True
            i += 1
        return False


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
            self.totals.append(self.until(self.until_ms))
            self.starts_ms.append(self.until_ms)
            self.labels.append(label)
        self.until_ms = to_ms

    def until(self, at_ms: int) -> Totals:
        """Milliseconds by label from the first report to `at_ms`, which is not after `until_ms`."""
        i = bisect_right(self.starts_ms, at_ms) - 1
        if i < 0:
            return _NO_TIME
        return _plus(self.totals[i], self.labels[i], at_ms - self.starts_ms[i])


@dataclass(slots=True)
class Timeline:
    """One job's reports, and what they say of any stretch of time."""

    foreign: bool = False
    version: int = 0
    _reports: _Reports = field(default_factory=_Reports)
    _story: _Story = field(default_factory=_Story)

    def add_phase(self, at_ms: int, attempt: int, sequence: int, phase: Phase) -> None:
        self._add((at_ms, attempt, sequence), at_ms, -1 - _PHASES.index(phase), 0, 0)

    def add_steps(
        self, began_ms: int, at_ms: int, attempt: int, sequence: int, first_step: int, last_step: int, samples: int
    ) -> None:
        if last_step >= first_step >= 0:  # an empty report says nothing
            self._add((began_ms, attempt, sequence), max(at_ms, began_ms), first_step, last_step, samples)

    def between(self, from_ms: int, until_ms: int) -> Totals:
        """Milliseconds by JOB_LABELS in [from, until): they add up to its length."""
        story = self._told()
        first_ms = story.first_ms
        if first_ms is None:
            return _plus(_NO_TIME, _UNMEASURED if self.foreign else _STARTING, until_ms - from_ms)
        known_from, known_until = (min(max(at, first_ms), story.until_ms) for at in (from_ms, until_ms))
        before, after = story.until(known_from), story.until(known_until)
        known = tuple(b - a for a, b in zip(before, after, strict=True))
        known = _plus(known, _STARTING, max(min(until_ms, first_ms) - from_ms, 0))
        tail = _UNMEASURED if story.stepped else story.waiting_as
        return _plus(known, tail, max(until_ms - max(from_ms, story.until_ms), 0))

    @property
    def progress(self) -> Progress:
        story = self._told()
        return Progress(story.steps, story.recomputed_steps, story.samples, story.attempts)

    def _add(self, key: tuple[int, int, int], end_ms: int, first_step: int, last_step: int, samples: int) -> None:
        newest = self._reports.add(key, end_ms, first_step, last_step, samples)
        self.version += 1
        if newest and not self._reports.shuffled:
            self._story.tell(key[0], key[1], end_ms, first_step, last_step, samples)

    def _told(self) -> _Story:
        if self._reports.shuffled:
            self._reports = self._reports.in_order()
            self._story = _Story()
            for start, attempt, _, end, first, last, samples in self._reports.rows():
                self._story.tell(start, attempt, end, first, last, samples)
        return self._story


def _plus(totals: Totals, label: int, more_ms: int) -> Totals:
    return (*totals[:label], totals[label] + more_ms, *totals[label + 1 :]) if more_ms else totals
