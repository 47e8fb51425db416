"""The policy that ships, as a player of world.py: it sees what the others see, and learns on the way."""

from __future__ import annotations

import time

from contracting.world import NOTHING, ON_DEMAND, Sight, Task

from tradewind.autoscaler.contract import ContractView, Running, SpotMarket, Watch, decide
from tradewind.model import Capacity

USD = 1_000_000


class Ours:
    """`watch` is what was seen of the markets before; none: it starts without any knowledge. `budget` is in the price
    of on-demand x second."""

    def __init__(self, task: Task, markets: int = 1, watch: Watch | None = None, budget: float | None = None) -> None:
        self.task, self.budget = task, budget
        self.keys = [f"market-{number}" for number in range(markets)]
        self.watch = watch or Watch(self.keys)
        self.took_s: list[float] = []

    def __call__(self, sight: Sight) -> int:
        self.watch.see(sight.elapsed_s, sight.has_spot.tolist())
        view = self.view(sight)
        begin_s = time.thread_time()
        key = decide(view).key
        self.took_s.append(time.thread_time() - begin_s)
        return NOTHING if not key else ON_DEMAND if key == "on-demand" else self.keys.index(key)

    def view(self, sight: Sight) -> ContractView:
        task, watch = self.task, self.watch
        markets = tuple(
            SpotMarket(key, round(task.spot_price * USD), bool(is_open), seen.age_h(sight.elapsed_s), seen.tally)
            for (key, seen), is_open in zip(watch.markets.items(), sight.has_spot, strict=True)
        )
        running = None
        if sight.place != NOTHING:
            is_spot = sight.place >= 0
            key = self.keys[sight.place] if is_spot else "on-demand"
            running = Running(key, Capacity.SPOT if is_spot else Capacity.ON_DEMAND, 1, sight.warming_s)
        return ContractView(
            now_s=sight.elapsed_s,
            work_left_s=sight.work_left_s,
            restart_s=task.restart_s,
            tick_s=task.gap_s,
            on_demand_key="on-demand",
            on_demand_uusd_per_h=USD,
            deadline_at_s=task.deadline_s if task.deadline_s < float("inf") else None,
            budget_left_uusd=None if self.budget is None else round((self.budget - sight.spent) / 3600.0 * USD),
            spot=markets,
            together=watch.any.tally,
            together_age_h=watch.any.age_h(sight.elapsed_s),
            running=running,
            reaction_s=0.0,  # in a trace, machines are lost between ticks
        )
