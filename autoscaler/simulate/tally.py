"""What is counted while a simulation runs: sums and sketches by window of time, so that memory stays flat.

A window is a piece of the simulated time, all of equal length. When there are too many, each two neighbours become one.
What a job did counts in the window in which it was submitted; what nodes cost, in the window in which they did. Windows
are what confidence intervals are made of (compare.py): jobs that come together wait together, so single jobs would
promise too much.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.sketch import Sketch

FIRST_WINDOW_S = 3600.0
MOST_WINDOWS = 128


@dataclass(slots=True)
class Window:
    """Sums of one piece of time. GPU seconds that were paid for: `useful` and `lost` (done again, or restarting) lie in
    `busy`, which lies in `paid`."""

    cost: int = 0  # micro-dollars x milliseconds an hour: exact
    spot_cost: int = 0
    paid_gpu_s: float = 0.0
    busy_gpu_s: float = 0.0
    useful_gpu_s: float = 0.0
    lost_gpu_s: float = 0.0
    jobs: int = 0  # that are done
    wait_s: float = 0.0
    completion_s: float = 0.0
    pace: float = 0.0  # work / time from submission to end: 1 for who never waits
    pace_squared: float = 0.0
    deadlines: int = 0
    misses: int = 0
    waits: Sketch = field(default_factory=Sketch)
    completions: Sketch = field(default_factory=Sketch)

    def take_in(self, other: Window) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waits.take_in(other.waits)
        self.completions.take_in(other.completions)


_SUMS = [name for name in Window.__slots__ if name not in ("waits", "completions")]


@dataclass(slots=True)
class Tally:
    windows: list[Window] = field(default_factory=lambda: [Window()])
    window_s: float = FIRST_WINDOW_S
    tenants: dict[str, tuple[int, float]] = field(default_factory=dict)  # jobs, sum of their paces
    hopeless: int = 0  # deadlines that nobody could have kept
    never_fit: int = 0
    largest_gpus: int = 0  # of those
    preemptions: int = 0
    restarts: int = 0
    moves: int = 0  # of jobs, to cheaper nodes
    launches: int = 0
    refusals: int = 0
    plans: int = 0
    decisions: int = 0
    events: int = 0
    end_s: float = 0.0

    def at(self, at_s: float) -> Window:
        number = int(at_s / self.window_s)
        while number >= MOST_WINDOWS:
            self._halve()
            number = int(at_s / self.window_s)
        while len(self.windows) <= number:
            self.windows.append(Window())
        return self.windows[number]

    def boundary_s(self, at_s: float) -> float:
        """Where the window of a moment ends."""
        return (int(at_s / self.window_s) + 1) * self.window_s

    def finish(self, job: SimJob, wait_s: float, end_s: float) -> None:
        window, took_s = self.at(job.submit_s), end_s - job.submit_s
        pace = min(job.duration_s / took_s, 1.0) if took_s > 0 else 1.0
        window.jobs += 1
        window.wait_s += wait_s
        window.waits.add(wait_s)
        window.completion_s += took_s
        window.completions.add(took_s)
        window.pace += pace
        window.pace_squared += pace * pace
        number, paces = self.tenants.get(job.tenant, (0, 0.0))
        self.tenants[job.tenant] = (number + 1, paces + pace)
        if job.deadline_s is not None:
            window.deadlines += 1
            window.misses += end_s > job.deadline_s + 1e-3
            self.hopeless += job.is_hopeless

    def total(self) -> Window:
        whole = Window()
        for window in self.windows:
            whole.take_in(window)
        return whole

    def _halve(self) -> None:
        pairs = [self.windows[number : number + 2] for number in range(0, len(self.windows), 2)]
        for first, *second in pairs:
            for other in second:
                first.take_in(other)
        self.windows = [pair[0] for pair in pairs]
        self.window_s *= 2.0
