"""What a choice must leave open: a sure way to the end, on demand, in time and paid. Pure; no belief has a say in it.

A choice is held against what may be lost with it until the next decision: time without progress, and what that time
costs. After it there must be a number of replicas with which on-demand, begun then, keeps the deadline and is paid to
the end by what is left of the budget. Where there is no budget, the fastest size and the present one are asked alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from tradewind.autoscaler.contract.view import ContractView

EPSILON_S = 1e-3


class Nets:
    def __init__(self, view: ContractView) -> None:
        self.view = view
        self._sizes = (view.fastest, *self._others()) if view.budget_left_uusd is not None else (view.fastest,)

    def _others(self) -> Iterable[int]:
        return (size for size in self.view.sure_sizes if size != self.view.fastest)

    def holds(self, replicas: int, price_uusd_per_h: float, lost_s: float, reaction_s: float = 0.0) -> bool:
        """`price_uusd_per_h`: of one of them; `lost_s`: paid without progress; `reaction_s`: lost and not paid."""
        here = (replicas,) if replicas in self.view.sure_sizes else ()
        return any(
            self._in_time(size, replicas, lost_s + reaction_s) and self._paid(size, replicas, price_uusd_per_h, lost_s)
            for size in dict.fromkeys((*self._sizes, *here))
        )

    def to_the_end(self, replicas: int, lost_s: float) -> bool:
        """Whether on-demand of this size, which begins its work after so long, is sure."""
        view = self.view
        in_time = replicas in view.sure_sizes and view.slack_s(replicas) + EPSILON_S >= lost_s
        return in_time and self._pays(view.on_demand_rate_uusd_per_h(replicas) * (self._work_s(replicas) + lost_s))

    def _in_time(self, size: int, replicas: int, lost_s: float) -> bool:
        """Work at a slower size than the one that will be asked for takes slack of that one."""
        view = self.view
        behind = max(0.0, 1.0 - view.speeds[replicas - 1] / view.speeds[size - 1])
        behind_s = behind * max(0.0, view.tick_s - lost_s)
        return view.slack_s(size) - view.restart_s + EPSILON_S - behind_s >= lost_s

    def _paid(self, size: int, replicas: int, price_uusd_per_h: float, lost_s: float) -> bool:
        """Work that is dearer than on-demand of the other size takes money from it."""
        view = self.view
        if view.budget_left_uusd is None:
            return True
        rate = price_uusd_per_h * replicas
        sure_rate = view.on_demand_rate_uusd_per_h(size)
        beyond = max(0.0, rate - sure_rate * view.speeds[replicas - 1] / view.speeds[size - 1])
        spent = rate * lost_s + beyond * max(0.0, view.tick_s - lost_s)
        return self._pays(spent + sure_rate * (self._work_s(size) + view.restart_s))

    def _work_s(self, replicas: int) -> float:
        return self.view.work_left_s / self.view.speeds[replicas - 1]

    def _pays(self, uusd_seconds: float) -> bool:
        left = self.view.budget_left_uusd
        return left is None or uusd_seconds / 3600.0 <= left
