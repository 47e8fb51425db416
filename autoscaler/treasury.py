"""Whether money is left: asked before demand is planned for, and again before each launch. The controller answers.

Budgets are kept in `cost`, which this folder does not import: this Protocol stands between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing_rules import gang_source
from tradewind.autoscaler.packing_stock import jobs_in
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.withhold import source_of, subject_of
from tradewind.model import Offer


class Treasury(Protocol):
    """Called from the loops' threads."""

    def admit(self, offer: Offer, job_ids: Collection[str]) -> str:
        """Why one of these may not be bought on behalf of these jobs; empty: it may, and is counted."""
        ...

    def has_budgets(self) -> bool:
        """Whether anybody could be refused anything."""
        ...

    def refuses(self, offer: Offer, job_ids: Collection[str]) -> str:
        """As `admit`, before anything is planned: nothing is counted."""
        ...

    def closed(self) -> Mapping[str, str]:
        """Jobs for which nothing may be bought any more, each with the reason."""
        ...

    def left_uusd(self) -> Mapping[str, int]:
        """What the budgets of jobs leave, by job; those without one are not there."""
        ...


class Unlimited:
    """Nobody has a budget."""

    def admit(self, offer: Offer, job_ids: Collection[str]) -> str:  # noqa: ARG002
        return ""

    def has_budgets(self) -> bool:
        return False

    def refuses(self, offer: Offer, job_ids: Collection[str]) -> str:  # noqa: ARG002
        return ""

    def closed(self) -> Mapping[str, str]:
        return {}

    def left_uusd(self) -> Mapping[str, int]:
        return {}


def without_closed(demand: Demand, closed: Mapping[str, str]) -> tuple[Demand, tuple[Hold, ...]]:
    """What is planned for, and what is not because the budgets of all who ask for it are used."""
    gangs = {gang_source(gang): gang.job_id for gang in demand.gangs}
    holds: list[Hold] = []

    def is_planned(asked: Need | Gang) -> bool:
        job_ids = jobs_in(source_of(asked), gangs)
        if not job_ids or not all(job_id in closed for job_id in job_ids):
            return True
        why = closed[next(iter(job_ids))]
        holds.append(Hold(subject_of(asked), why, jobs=tuple(job_ids), cause=cause_of(why)))
        return False

    planned = Demand(
        tuple(need for need in demand.needs if is_planned(need)),
        tuple(gang for gang in demand.gangs if is_planned(gang)),
        tuple(need for need in demand.constraints if is_planned(need)),
    )
    return planned, tuple(holds)


def cause_of(reason: str) -> str:
    """Without the figures behind it, which change all the time."""
    return reason.split(": ")[0]
