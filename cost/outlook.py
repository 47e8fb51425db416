"""What a job will have cost at its end, by the pace and the prices that it has had. Pure; on receipts and for budgets.

The pace is wall time for each new step, with all that came between the steps. It is taken over blocks of the job's
past; their spread gives the range. Prices are taken as they are now. A job that does not say how many steps it will
take has no forecast.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tradewind.cost.history import WHOLE_PPM, Held, NodeHistory
from tradewind.cost.ledger import Ledger
from tradewind.cost.timeline import Timeline
from tradewind.units import MS_PER_H, to_ms

BLOCKS = 12  # of the past, of equal numbers of steps
QUANTILE = 1.2816  # eight of ten outcomes lie within
UNSURE = 0.5  # the relative spread while fewer than three blocks are known


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of the whole job, what it has cost so far included. Eight of ten such jobs end between low and high."""

    total_uusd: int
    low_uusd: int
    high_uusd: int
    ends_at_s: float
    steps_left: int


def forecast(ledger: Ledger, job_id: str, spent_uusd: int, now_s: float) -> Forecast | None:
    """None: it is over, has not said how many steps it takes, or has taken too few to tell."""
    job, timeline = ledger.job(job_id), ledger.timelines[job_id]
    steps_left = (timeline.total_steps or 0) - timeline.highest_step
    paces = _paces(timeline)
    rate_uusd_per_h = job_rate(ledger, job_id, now_s) if paces else 0
    if steps_left <= 0 or not rate_uusd_per_h or job.ended_ms is not None:
        return None
    block = timeline.highest_step / len(paces)
    pace_ms = statistics.fmean(paces)
    spread = statistics.stdev(paces) / pace_ms if len(paces) > 2 else UNSURE
    # What is left is a sum of blocks like those of the past, whose mean is itself not known exactly.
    error = min(QUANTILE * spread * math.sqrt(1 / len(paces) + min(block / steps_left, 1.0)), 0.9)
    left_uusd = steps_left * pace_ms * rate_uusd_per_h / MS_PER_H
    return Forecast(
        total_uusd=spent_uusd + round(left_uusd),
        low_uusd=spent_uusd + round(left_uusd * (1 - error)),
        high_uusd=spent_uusd + round(left_uusd * (1 + error)),
        ends_at_s=now_s + steps_left * pace_ms / 1000,
        steps_left=steps_left,
    )


def job_rate(ledger: Ledger, job_id: str, now_s: float) -> int:
    """What the job pays for an hour as it stands: its shares of the nodes that it holds, at their prices."""
    now_ms, total = to_ms(now_s), 0
    for launch_id in ledger.job(job_id).nodes:
        node = ledger.nodes[launch_id]
        held = _held(node, job_id, now_ms)
        prices = ledger.prices.get(node.offer.market.key)
        price = prices.at(node, now_ms) if prices else node.offer.price_uusd_per_h
        if held is not None:
            total += (price or 0) * held.share_ppm
    return total // WHOLE_PPM


def _held(node: NodeHistory, job_id: str, now_ms: int) -> Held | None:
    if node.launched_ms is None or node.launched_ms > now_ms or (node.ended_ms is not None and node.ended_ms <= now_ms):
        return None
    mine = [held for at_ms, job, held in node.changes if job == job_id and at_ms <= now_ms]
    return mine[-1] if mine else None


def _paces(timeline: Timeline) -> Sequence[float]:
    """Milliseconds for each new step, of blocks of the past."""
    curve = timeline.curve()
    if len(curve) < 2:
        return ()
    stride = max(1, len(curve) // BLOCKS)
    corners = [*curve[:-1:stride], curve[-1]]
    found = [(end[0] - begin[0]) / (end[1] - begin[1]) for begin, end in pairwise(corners) if end[1] > begin[1]]
    return [pace for pace in found if pace > 0]
