"""The safety net: on demand always there, the deadline is kept whatever the markets do and whatever is believed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.contract import Choice, ContractDecision, ContractView, Running, SpotMarket, Tally, decide
from tradewind.model import Capacity

TICK_S = 600.0
USD = 1_000_000


@dataclass(frozen=True)
class Case:
    flags: list[tuple[bool, bool]]  # by tick: which of two markets has machines
    slack_ticks: float
    restart_ticks: float
    ends: float  # what is believed: so many in ten hours
    speeds: tuple[float, ...]
    is_sudden: bool  # machines are lost just after a decision, and a whole tick with them; else between ticks
    price: float
    work_ticks: float = 20.0
    priced: tuple[float, float] = (1.0, 1.0)  # what the price is believed to tell


CASES = st.builds(
    Case,
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    st.floats(0.0, 40.0),
    st.floats(0.0, 2.5),
    st.floats(0.0, 100.0),
    st.lists(st.floats(0.5, 2.0), min_size=0, max_size=3).map(lambda more: (1.0, *more)),
    st.booleans(),
    st.floats(0.05, 1.5),
    st.floats(0.1, 20.0),
    st.tuples(st.floats(0.25, 4.0), st.floats(0.25, 4.0)),
)


@dataclass
class End:
    finish_s: float
    spent_uusd: float
    decisions: list[ContractDecision]


def played(case: Case, work_s: float, deadline_s: float | None, budget_uusd: float | None = None) -> End:
    """Until it is done, or late. What was lost suddenly is not paid; what is not needed of the last tick neither."""
    left_s, now_s, tick, spent_uusd = work_s, 0.0, 0, 0.0
    running: Running | None = None
    told: list[ContractDecision] = []
    while now_s <= (9e6 if deadline_s is None else deadline_s):
        here, after = (case.flags[number % len(case.flags)] for number in (tick, tick + 1))
        running = running if _stays(running, here) else None
        seen = _view(case, now_s, left_s, deadline_s, here, running)
        left_uusd = None if budget_uusd is None else int(budget_uusd - spent_uusd)
        told.append(decide(replace(seen, budget_left_uusd=left_uusd)))
        running = _begun(told[-1].choice, running, case)
        if running and not (case.is_sudden and not _stays(running, after)):
            lost_s = min(running.warming_s, TICK_S)
            done_s = lost_s + left_s / case.speeds[running.replicas - 1]
            spent_uusd += _rate(case, running) * min(done_s, TICK_S) / 3600.0
            if done_s <= TICK_S + 1e-6:
                return End(now_s + done_s, spent_uusd, told)
            left_s -= (TICK_S - lost_s) * case.speeds[running.replicas - 1]
            running = replace(running, warming_s=running.warming_s - lost_s)
        now_s, tick = now_s + TICK_S, tick + 1
    raise AssertionError("it is late, and still at work")


def _rate(case: Case, running: Running) -> float:
    price = USD if running.capacity is Capacity.ON_DEMAND else round(case.price * USD)
    return float(price * running.replicas)


def _view(
    case: Case, now_s: float, left_s: float, deadline_s: float | None, here: tuple[bool, bool], running: Running | None
) -> ContractView:
    tally = Tally((10.0,) * 4, (case.ends,) * 4, priced=case.priced)
    spot = tuple(SpotMarket(key, round(case.price * USD), up, seen=tally) for key, up in zip("ab", here, strict=True))
    return ContractView(
        now_s=now_s,
        work_left_s=left_s,
        restart_s=case.restart_ticks * TICK_S,
        tick_s=TICK_S,
        on_demand_key="on-demand",
        on_demand_uusd_per_h=USD,
        deadline_at_s=deadline_s,
        spot=spot,
        together=tally,
        running=running,
        speeds=case.speeds,
        reaction_s=None if case.is_sudden else 0.0,
    )


def _stays(running: Running | None, here: tuple[bool, bool]) -> bool:
    return running is not None and (running.capacity is Capacity.ON_DEMAND or here["ab".index(running.key)])


def _begun(choice: Choice, running: Running | None, case: Case) -> Running | None:
    if choice.capacity is None:
        return None
    if running and (running.key, running.replicas) == (choice.key, choice.replicas):
        return running
    return Running(choice.key, choice.capacity, choice.replicas, case.restart_ticks * TICK_S)


@settings(max_examples=60, deadline=None)
@given(CASES)
@example(Case([(True, True), (False, False)], 3.0, 0.3, 0.0, (1.0, 0.5, 2.0), False, 0.05))
@example(Case([(True, False), (False, True)], 2.0, 1.0, 0.0, (1.0, 1.9), True, 0.05))
@example(Case([(True, True)] * 5 + [(False, False)], 0.0, 1.0, 0.0, (1.0, 2.0), True, 0.05))
@example(
    Case([(True, True), (False, False)], 0.6, 0.5, 0.0, (1.0, 1.0, 2.0), False, 0.05, 1.2)
)  # slow work takes slack
def test_never_late_where_on_demand_from_the_start_is_not(case: Case) -> None:
    work_s = case.work_ticks * TICK_S
    shortest_s = work_s / max(case.speeds) + case.restart_ticks * TICK_S
    deadline_s = shortest_s + case.slack_ticks * TICK_S
    end = played(case, work_s, deadline_s)
    assert end.finish_s <= deadline_s + 0.1  # the net itself allows a millisecond a tick
