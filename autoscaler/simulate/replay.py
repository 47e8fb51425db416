"""One replay: events of the trace, a tick after each, `make_plan` on a view of the moment, its actions on the cluster.

The policies are those of the loop. Ticks lie on a grid of `tick_s`; one at which nothing can have changed is left out,
which changes nothing, since policies are functions of the view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.actions import Drain, Launch, Plan
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.expected import spare_timeout_s
from tradewind.autoscaler.forecast import SeriesKey
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate.cluster import Cluster
from tradewind.autoscaler.simulate.foresight import Foresight
from tradewind.autoscaler.simulate.trace import TraceJob
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.errors import TradewindError
from tradewind.model import Offer


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that is the same for every policy. Limits, idle time-out and boot time stand in the settings."""

    shape: Shape  # of one worker
    offers: tuple[Offer, ...]
    settings: LoopSettings
    tick_s: float = 60.0

    @property
    def key(self) -> SeriesKey:
        return SeriesKey("default", self.shape)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Nodes are paid from the launch on, until the last submission at the latest."""

    waits_s: tuple[float, ...]  # by job
    uusd: int
    node_h: float
    launches: int
    plans: int

    @property
    def mean_wait_s(self) -> float:
        return float(np.mean(self.waits_s)) if self.waits_s else 0.0

    def wait_quantile_s(self, level: float) -> float:
        return float(np.quantile(self.waits_s, level)) if self.waits_s else 0.0


def replay(jobs: Sequence[TraceJob], scenario: Scenario, foresight: Foresight) -> Outcome:
    return _Replay(sorted(jobs), scenario, foresight).run()


class _Replay:
    def __init__(self, jobs: Sequence[TraceJob], scenario: Scenario, foresight: Foresight) -> None:
        self.scenario, self.foresight = scenario, foresight
        self.cluster = Cluster(scenario.shape, scenario.settings.usual_boot_s, jobs)
        self.until_s = jobs[-1].submit_s if jobs else 0.0
        self.launched_s: list[float] = []
        self.plans = 0

    def run(self) -> Outcome:
        now_s = self._next_tick_s(-math.inf)
        while now_s is not None and not self.cluster.has_started_all:
            self.cluster.advance(now_s)
            plan = make_plan(self._look(now_s))
            self._act(plan, now_s)
            self.plans += 1
            # The limit on launches per minute may have held something back: it gives way by itself.
            is_held = bool(plan.holds) and bool(self.launched_s)
            now_s = now_s + self.scenario.tick_s if is_held else self._next_tick_s(now_s)
        if not self.cluster.has_started_all:
            left = len(self.cluster.waiting)
            raise TradewindError(f"{left} jobs can never start", "raise the limits, or add an offer that fits")
        self.cluster.end_all(self.until_s)
        return self._outcome()

    # --- time -------------------------------------------------------------------------------------------------

    def _next_tick_s(self, now_s: float) -> float | None:
        """The first tick after something that policies could heed: an event, a time-out, a step of the forecast."""
        events_s = self.cluster.next_event_s
        if events_s is None:
            return None
        moments = [events_s]
        if math.isfinite(now_s):
            settings, idle_since_s = self.scenario.settings, self.cluster.idle_since_s()
            for timeout_s in (settings.idle_timeout_s, spare_timeout_s(settings), settings.min_node_life_s):
                moments += [since_s + timeout_s for since_s in idle_since_s if since_s + timeout_s > now_s]
            if self.foresight.step_s is not None:
                moments.append((math.floor(now_s / self.foresight.step_s) + 1) * self.foresight.step_s)
        tick = math.ceil(min(moments) / self.scenario.tick_s)
        if math.isfinite(now_s):
            tick = max(tick, math.floor(now_s / self.scenario.tick_s) + 1)
        return tick * self.scenario.tick_s

    # --- observe, act -----------------------------------------------------------------------------------------

    def _look(self, now_s: float) -> View:
        cluster, scenario = self.cluster, self.scenario
        nodes = cluster.views(now_s)
        waiting = sum(cluster.jobs[number].workers for number in cluster.waiting)
        wanted = {scenario.key: float(cluster.wanted)}
        self.launched_s = [at_s for at_s in self.launched_s if at_s > now_s - 60.0]
        return View(
            now_s=now_s,
            settings=scenario.settings,
            nodes=nodes,
            snapshot=RaySnapshot(tuple(node.ray for node in nodes if node.ray is not None)),
            demand=Demand((Need(scenario.shape, waiting, "the trace"),) if waiting else ()),
            offers=scenario.offers,
            launched_last_minute=len(self.launched_s),
            wanted=wanted,
            forecasts=self.foresight.forecasts(now_s, wanted),
        )

    def _act(self, plan: Plan, now_s: float) -> None:
        for action in plan.actions:
            if isinstance(action, Launch):
                self.launched_s.append(now_s)
                self.cluster.launch(action.offer, now_s, self.scenario.shape.copies_in(action.offer.resources))
            elif isinstance(action, Drain):
                self.cluster.end_node(action.launch_id, now_s)

    def _outcome(self) -> Outcome:
        hours = [
            (offer.price_uusd_per_h or 0, max(min(until_s, self.until_s) - from_s, 0.0) / 3600.0)
            for offer, from_s, until_s in self.cluster.bills
        ]
        return Outcome(
            waits_s=tuple(wait_s for _, wait_s in sorted(self.cluster.waits_s.items())),
            uusd=round(sum(price * spent for price, spent in hours)),
            node_h=sum(spent for _, spent in hours),
            launches=len(hours),
            plans=self.plans,
        )
