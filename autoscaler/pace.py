"""What the log tells of one job's progress: how long a step takes by number of workers, how long a start takes. Pure;
folded event by event, for jobs with a contract alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tradewind.events import CheckpointCommitted, PhaseChanged, StepCommitted
from tradewind.model import Phase

_KEPT_S = 900.0  # of steps at one size: older ones count ever less
_STARTS = 5  # the newest
_GAPS = 3
_BEGINNING = (Phase.STARTING, Phase.RESTARTING)
_WORKING = (Phase.TRAINING, Phase.CHECKPOINTING)


@dataclass(slots=True)
class Pace:
    sequence: int = 0  # of the last report that counted
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)  # by workers: (number, seconds), faded
    worked_s: dict[int, float] = field(default_factory=dict)  # by workers: in all
    starts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_STARTS))  # from having machines to training
    gaps: deque[int] = field(default_factory=lambda: deque(maxlen=_GAPS))  # steps between two saves
    accelerator: str = ""  # of the machines on which the last steps were taken
    phase: Phase | None = None
    phase_since_s: float = 0.0
    held_s: float = 0.0  # when it last got room on a machine; 0: never
    _last: tuple[int, int, float] = (0, 0, 0.0)  # attempt, workers and time of the last steps

    def step_s(self, workers: int) -> float | None:
        """What one step takes with so many; None: not measured."""
        number, seconds = self.steps.get(workers, (0.0, 0.0))
        return seconds / number if number and seconds > 0.0 else None

    @property
    def is_working(self) -> bool:
        return self.phase in _WORKING

    @property
    def measured_s(self) -> float:
        return sum(self.worked_s.values())

    def stepped(self, event: StepCommitted, accelerator: str) -> None:
        """Time between two reports counts, too, as far as it is no longer than the steps themselves: what is lost to
        saves is part of the speed, a stop in between is not."""
        if event.sequence <= self.sequence:
            return  # a repetition
        self.sequence = event.sequence
        attempt, workers, last_s = self._last
        is_next = (attempt, workers) == (event.attempt, event.workers)
        own_s = max(0.0, event.at_s - event.began_s)
        seconds = own_s + (min(own_s, max(0.0, event.began_s - last_s)) if is_next else 0.0)
        self._last = (event.attempt, event.workers, event.at_s)
        number, before_s = self.steps.get(event.workers, (0.0, 0.0))
        kept = min(1.0, _KEPT_S / before_s) if before_s else 1.0
        self.steps[event.workers] = (
            number * kept + event.last_step - event.first_step + 1,
            before_s * kept + seconds,
        )
        self.worked_s[event.workers] = self.worked_s.get(event.workers, 0.0) + seconds
        self.accelerator = accelerator or self.accelerator

    def held(self, at_s: float) -> None:
        """It has got room on a machine."""
        self.held_s = at_s

    def changed(self, event: PhaseChanged) -> None:
        if event.sequence <= self.sequence:
            return
        self.sequence = event.sequence
        if event.phase is Phase.TRAINING and self.phase in _BEGINNING:
            began_s = max(self.phase_since_s, min(self.held_s, event.at_s))  # waiting for machines is no start
            self.starts_s.append(max(0.0, event.at_s - began_s))
        if event.phase is not self.phase:
            self.phase, self.phase_since_s = event.phase, event.at_s

    def saved(self, event: CheckpointCommitted, before: int) -> None:
        """`before`: the step of the last save."""
        if event.sequence > self.sequence:
            self.sequence = event.sequence
            self.gaps.append(max(0, event.step - before))

    def shift(self, jump_s: float) -> None:
        """The clock was set."""
        self.phase_since_s += jump_s
        self.held_s += jump_s
        self._last = (*self._last[:2], self._last[2] + jump_s)
