"""Jobs with a deadline in a simulation: `contract.decide` says where each runs, and this makes it so.

A decision is asked for when a job comes, when it loses its machines, when a market opens for one that waits or runs on
demand (again when that has proved to stay), and after a while: a quarter of the work that is left for who runs, a tenth
of the slack for who waits. The policy is told how long that is, so that its safety net holds. A move saves, stops and
waits for the new machines.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.contract import ContractView, Running, SpotMarket, Watch, choose
from tradewind.autoscaler.contract.odds import YOUNG_H
from tradewind.autoscaler.limits import NOBODY, Bound, Limits, bounds_of
from tradewind.autoscaler.simulate.place import Place
from tradewind.autoscaler.simulate.run import Run
from tradewind.autoscaler.simulate.world import World
from tradewind.autoscaler.steer import Kept
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity

_OF_WORK, _OF_SLACK = 4.0, 10.0  # a look for each such part of what is left
_LONGEST_S = 6 * 3600.0
PROMISED = "contracts"  # they ask for machines as one


@dataclass(frozen=True, slots=True)
class Growth:
    """A job may take up to `replicas` times its GPUs; twice as many are 2 x `scaling` times as fast."""

    replicas: int = 1
    scaling: float = 0.9

    @property
    def speeds(self) -> tuple[float, ...]:
        from math import log2

        power = 1.0 + log2(max(self.scaling, 0.5))
        return tuple(float(number) ** power for number in range(1, self.replicas + 1))


class Contracts:
    def __init__(self, world: World, tick_s: float, growth: Growth, limits: Limits) -> None:
        self.world, self.tick_s, self.speeds = world, tick_s, growth.speeds
        self._bounds = [bound for bound in bounds_of(limits) if not bound.is_rate]
        places = world.places.values()
        self.spot = [place for place in places if place.offer.market.capacity is Capacity.SPOT]
        dear = [place for place in places if place.offer.market.capacity is Capacity.ON_DEMAND]
        if not dear:
            problem = Problem(
                "--policy", "contract", "needs on-demand offers in the fleet: its safety net is made of them"
            )
            raise ConfigError([problem], "allow on-demand in `offers` of the fleet file, or leave out this policy")
        self._dear = sorted(dear, key=_per_gpu)
        self._about = {place.key: [bound for bound in self._bounds if _is_about(bound, place)] for place in places}
        self._within = {bound.name: [place for place in places if _is_about(bound, place)] for bound in self._bounds}
        self._allowed: dict[tuple[str, int], bool] = {}  # by market and GPUs
        self.watch = Watch([place.key for place in self.spot])
        self.runs: dict[int, Run] = {}
        self._looks: list[tuple[float, int, Run]] = []
        self._order = itertools.count()
        self.on_course: Callable[[Run, float], None] | None = None  # told where each job goes from now on
        world.on_submit, world.on_stop, world.on_end, world.on_stock = self._submit, self._stop, self._end, self._see
        world.on_price.append(self._priced)
        self._see(0.0)
        for place in self.spot:
            self._priced(place, 0.0)

    @property
    def next_s(self) -> float:
        """When somebody is to be looked at."""
        while self._looks and self._looks[0][2].look_s != self._looks[0][0]:
            heapq.heappop(self._looks)
        return self._looks[0][0] if self._looks else float("inf")

    def look(self, now_s: float) -> None:
        """At all whose time has come."""
        if self.world.opened:
            self._call_others(now_s)
        while self.next_s <= now_s:
            run = heapq.heappop(self._looks)[2]
            run.look_s = None
            self._decide(run, now_s)

    # --- when -------------------------------------------------------------------------------------------------

    def _submit(self, run: Run) -> bool:
        if run.job.deadline_s is None:
            return True
        self.runs[run.number] = run
        self._look_at(run, run.job.submit_s)
        return False

    def _stop(self, run: Run, now_s: float) -> None:
        if run.number in self.runs:
            self._look_at(run, now_s)
        else:
            self.world.queue.add(run)
            self.world.is_news = True

    def _end(self, run: Run) -> None:
        self.runs.pop(run.number, None)
        run.look_s = None

    def _see(self, now_s: float) -> None:
        self.watch.changed(now_s, [place.stock > 0 for place in self.spot])

    def _priced(self, place: Place, now_s: float) -> None:
        if place.key in self.watch.markets and place.offer.price_uusd_per_h:
            self.watch.priced(now_s, place.key, place.offer.price_uusd_per_h)

    def _call_others(self, now_s: float) -> None:
        """A market has opened: who waits, or pays for on-demand, may want it now, or when it has grown old."""
        self.world.opened.clear()
        for run in self.runs.values():
            if not self._is_on_spot(run):
                self._look_at(run, now_s)

    def _look_at(self, run: Run, at_s: float) -> None:
        if run.look_s is None or at_s < run.look_s:
            run.look_s = at_s
            heapq.heappush(self._looks, (at_s, next(self._order), run))

    def _wait_s(self, run: Run, now_s: float, left_s: float) -> float:
        slack_s = (run.job.deadline_s or 0.0) - now_s - left_s
        found = [_LONGEST_S, left_s / _OF_WORK if run.is_running else slack_s / _OF_SLACK]
        found += [(YOUNG_H - age_h) * 3600.0 for age_h in ([] if self._is_on_spot(run) else self._young_h(now_s))]
        return max(min(found), self.tick_s)

    def _is_on_spot(self, run: Run) -> bool:
        return run.is_running and self.world.places[run.where].offer.market.capacity is Capacity.SPOT

    def _young_h(self, now_s: float) -> list[float]:
        ages_h = (seen.age_h(now_s) for seen in self.watch.markets.values() if seen.is_up)
        return [age_h for age_h in ages_h if age_h < YOUNG_H]

    # --- what -------------------------------------------------------------------------------------------------

    def _decide(self, run: Run, now_s: float) -> None:
        left_s = run.left_at(now_s)
        wait_s = self._wait_s(run, now_s, left_s)
        self._look_at(run, now_s + wait_s)
        if run.is_running and left_s / run.speed <= self.tick_s:
            return  # nearly done: nothing is worth a move
        choice = choose(self.view(run, now_s, left_s, wait_s))
        self.world.tally.decisions += 1
        gpus = run.job.gpus * max(choice.replicas, 1)
        if choice.key == run.where and gpus == run.gpus and (run.is_running or run.bucket is not None):
            return
        if run.is_running:
            self.world.stop(run, now_s)
            self.world.tally.restarts += 1
        self.world.queue.drop(run)
        run.where, run.gpus, run.speed = choice.key, gpus, self.speeds[max(choice.replicas, 1) - 1]
        if self.on_course is not None:
            self.on_course(run, now_s)
        if choice.key:
            self.world.enqueue(run, now_s)
        self._look_at(run, now_s + self._wait_s(run, now_s, run.left_s))

    def view(self, run: Run, now_s: float, left_s: float, wait_s: float) -> ContractView:
        physics, watch = self.world.physics, self.watch
        watch.see(now_s, [place.stock > 0 for place in self.spot])
        gpus, dear = run.job.gpus, self._net_now(run)
        return ContractView(
            now_s=now_s,
            work_left_s=left_s,
            restart_s=physics.boot_s * (1.0 + 2.0 * physics.boot_spread) + physics.restart_s + self.tick_s,
            tick_s=wait_s,
            on_demand_key=dear.key,
            on_demand_uusd_per_h=_price(dear, gpus),
            deadline_at_s=run.job.deadline_s,
            spot=tuple(self._offered(place, run, now_s) for place in self.spot),
            together=watch.any.tally,
            together_age_h=watch.any.age_h(now_s),
            running=self._where(run, now_s),
            speeds=self.speeds,
            reaction_s=self.tick_s,
        )

    def _net_of(self, run: Run) -> Place:
        """The cheapest on-demand of which the limits leave enough for it alone."""
        return next((place for place in self._dear if self._is_allowed(place, run.job.gpus)), self._dear[0])

    def _net_now(self, run: Run) -> Place:
        """The one that it is on; else the same, beside all others who are there now."""
        if run.is_running and not self._is_on_spot(run):
            return self.world.places[run.where]
        free = (
            place for place in self._dear if self._is_allowed(place, run.job.gpus) and self._leaves_room(place, run)
        )
        return next(free, None) or self._net_of(run)

    def _leaves_room(self, place: Place, run: Run) -> bool:
        """Whether the limits leave as much there as is lacking, beside what others hold: what it holds itself it lets
        go when it moves."""
        bounds = self._about[place.key]
        if not bounds or (run.is_running and run.where == place.key):
            return True
        lacking = max(math.ceil((run.job.gpus - place.free_gpus) / place.slots), 0)
        if all(self._taken(bound, run) + lacking * bound.weigh(place.offer) <= bound.most + 1e-6 for bound in bounds):
            return True
        coming = sum(node.joined_at_s is None for node in place.nodes.values())
        lacking = max(lacking - coming, 0)
        return all(
            self._taken(bound, run) + lacking * bound.weigh(place.offer) <= bound.most + 1e-6 for bound in bounds
        )

    def _taken(self, bound: Bound, run: Run) -> float:
        """By all but this one."""
        found = sum([len(each.nodes) * bound.weigh(each.offer) for each in self._within[bound.name] if each.nodes])
        mine = self.world.places[run.where] if run.is_running else None
        if mine is not None and bound.part.has(mine.offer):
            found -= math.ceil(run.gpus / mine.slots) * bound.weigh(mine.offer)
        return found

    def _is_allowed(self, place: Place, gpus: int) -> bool:
        """Whether the limits leave so many there, if nothing else runs."""
        found = self._allowed.get((place.key, gpus))
        if found is None:
            nodes, offer = math.ceil(gpus / place.slots), place.offer
            found = all(nodes * bound.weigh(offer) <= bound.most for bound in self._about[place.key])
            self._allowed[place.key, gpus] = found
        return found

    def kept(self, now_s: float) -> Kept:
        """What all who have a deadline would pay on demand, beyond what they pay now. Nothing for nets that the limits
        do not allow, or that would come too late."""
        found = 0
        for run in self.runs.values():
            is_late = run.job.deadline_s is not None and run.job.deadline_s <= now_s
            if is_late or not self._is_allowed(self._net_of(run), run.job.gpus):
                continue
            if not run.is_running:
                found += _price(self._net_of(run), run.job.gpus)
            elif self._is_on_spot(run):
                found += max(_price(self._net_of(run), run.gpus) - _price(self.world.places[run.where], run.gpus), 0)
        return Kept(found, frozenset({PROMISED}))

    def _where(self, run: Run, now_s: float) -> Running | None:
        """Who waits for machines in a market is on his way there."""
        if not run.is_running and run.bucket is None:
            return None
        place = self.world.places[run.where]
        boots = self.world.physics.boot_s + self.world.physics.restart_s
        warming_s = max(run.begin_s - now_s, 0.0) if run.is_running else boots
        return Running(run.where, place.offer.market.capacity, run.gpus // run.job.gpus, warming_s)

    def _offered(self, place: Place, run: Run, now_s: float) -> SpotMarket:
        seen = self.watch.markets[place.key]
        return SpotMarket(
            place.key, _price(place, run.job.gpus), self._is_open(place, run), seen.age_h(now_s), seen.tally
        )

    def _is_open(self, place: Place, run: Run) -> bool:
        """Whether there is room for it, after those who are waiting for the same."""
        if place.stock <= 0 or not self._is_allowed(place, run.job.gpus):
            return False
        if run.where == place.key and run.is_running:
            return True
        asked = self.world.queue.gpus.get(place.key, 0) - (run.gpus if run.bucket and run.where == place.key else 0)
        has_stock = place.room * place.slots + place.free_gpus - asked >= run.job.gpus
        return has_stock and self._leaves_room(place, run)


def _is_about(bound: Bound, place: Place) -> bool:
    return bound.is_about(place.offer, (NOBODY,))


def _price(place: Place, gpus: int) -> int:
    return max(round(_per_gpu(place) * gpus), 1)


def _per_gpu(place: Place) -> float:
    return (place.offer.price_uusd_per_h or 0) / place.slots


def refused(contracts: Contracts, keys: Sequence[str], now_s: float) -> None:
    """These markets had nothing after all: who waits for one of them is looked at again."""
    for run in contracts.runs.values():
        if run.bucket is not None and run.where in keys:
            contracts._look_at(run, now_s)
