"""Which jobs rest in this hour, because better hours for electricity come before their deadlines. Pure.

Stands between the ledger, which knows how much of a job is left, and carbon.py, which finds the best hours. A job rests
only if it has a deadline, has taken steps and says how many it will take: what is left of it is then known. Within a
clock hour a job that runs is left alone; one that rests may be called back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.cost.carbon import HOUR_S, Window, Work, carbon_window
from tradewind.cost.carbon_forecast import GridModel, fit, forecast
from tradewind.cost.grid_file import Grid
from tradewind.cost.labels import JOB_LABELS, Label
from tradewind.cost.ledger import Ledger
from tradewind.units import to_ms

HORIZON_H = 72  # a job with a later deadline is planned to be done by then
STALE_H = 3  # hours without news of the grid: nobody rests on old figures
REFIT_H = 24
_WORKING = tuple(JOB_LABELS.index(each) for each in (Label.USEFUL, Label.RECOMPUTED, Label.CHECKPOINTING))


@dataclass(frozen=True, slots=True)
class CleanHours:
    """A fleet's wish to run in clean (or cheap) hours."""

    restart_s: float = 300.0  # of running that each start costs
    margin_s: float = 1800.0  # before a deadline, kept free
    zones: Mapping[str, str] = field(default_factory=dict)  # a cloud's region -> a zone of the grid
    zone: str = ""  # for regions that `zones` does not name


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job with a deadline."""

    job_id: str
    deadline_at_s: float
    running: bool  # it holds nodes
    ran_this_hour: bool


@dataclass(slots=True)
class Models:
    """Forecasts are fitted once a day for each zone: that takes a tenth of a second."""

    known: dict[str, tuple[int, GridModel | None]] = field(default_factory=dict)

    def of(self, zone: str, grid: Grid, hour: int) -> GridModel | None:
        found = self.known.get(zone)
        if found is None or hour - found[0] >= REFIT_H:
            found = self.known[zone] = (hour, fit(grid.past(zone, hour), HORIZON_H))
        return found[1]


def window_of(
    job: Candidate, ledger: Ledger, grid: Grid, wish: CleanHours, now_s: float, models: Models
) -> Window | None:
    """None: nothing is known by which it could rest."""
    zone, left_s = zone_of(ledger, job.job_id, wish), left_of(ledger, job.job_id)
    hour = int(now_s // HOUR_S)
    if not zone or left_s is None or hour - grid.newest_hour(zone) > STALE_H:
        return None
    if job.running and job.ran_this_hour:
        return Window(True, "an hour that is begun is run on")
    if left_s <= 0.0:
        return Window(True, "all of its steps are taken: it comes to its end")
    hours = math.ceil((job.deadline_at_s - now_s) / HOUR_S) + 1
    if hours < 2:
        return Window(True, "the deadline is near")
    told = forecast(grid.past(zone, hour), min(hours, HORIZON_H), models.of(zone, grid, hour))
    work = Work(left_s, job.deadline_at_s, wish.restart_s, job.running)
    return carbon_window(now_s, work, told, wish.margin_s)


def left_of(ledger: Ledger, job_id: str) -> float | None:
    """Seconds of running, at the pace that it has had while it ran. None: it has not said, or taken no step yet."""
    timeline = ledger.timelines.get(job_id)
    steps = timeline.progress.steps if timeline else 0
    if timeline is None or timeline.total_steps is None or not steps:
        return None
    curve = timeline.curve()
    spells = timeline.between(curve[0][0], curve[-1][0]) if curve[-1][0] > curve[0][0] else []
    worked_ms = sum(length_ms for label, length_ms in spells if label in _WORKING)
    return max(timeline.total_steps - timeline.highest_step, 0) * worked_ms / steps / 1000


def zone_of(ledger: Ledger, job_id: str, wish: CleanHours) -> str:
    """Where it runs, or ran last. In several zones at once: the one that comes first by name."""
    found: dict[str, int] = {}
    for launch_id in ledger.job(job_id).nodes if job_id in ledger.jobs else ():
        node = ledger.nodes[launch_id]
        zone = wish.zones.get(node.offer.market.region, wish.zone)
        ended_ms = to_ms(1e12) if node.ended_ms is None else node.ended_ms
        found[zone] = max(ended_ms, found.get(zone, 0))
    return min(found, key=lambda zone: (-found[zone], zone)) if found else wish.zone
