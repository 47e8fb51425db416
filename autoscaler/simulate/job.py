"""One job of a simulation, as a trace has it."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.autoscaler.limits import NOBODY
from tradewind.errors import JobError


@dataclass(frozen=True, slots=True, order=True)
class SimJob:
    """Asks for `gpus` at once, all or none, and has work for `duration_s` on them. Times count from the begin of the
    simulation."""

    submit_s: float
    duration_s: float
    gpus: int = 1
    deadline_s: float | None = None
    tenant: str = NOBODY

    def __post_init__(self) -> None:
        if not 0.0 < self.duration_s < float("inf") or self.gpus <= 0:
            raise JobError(f"a job of {self.gpus} GPUs for {self.duration_s:g} s", "both must be above 0, and finite")
        if self.deadline_s is not None and self.deadline_s <= self.submit_s:
            raise JobError("a deadline lies before the submission of its job", "a deadline is a time of the trace")

    @property
    def is_hopeless(self) -> bool:
        """Begun at once, it would be late all the same."""
        return self.deadline_s is not None and self.submit_s + self.duration_s > self.deadline_s + 1e-6
