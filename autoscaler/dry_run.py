"""A dry run: look and decide as ever, and do nothing. What would be done is on the plan as holds, and so on record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tradewind.autoscaler.actions import Drain, Hold, Launch, Plan, Terminate
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.reconcile import Reconciler
from tradewind.model import Target

DRY_RUN = "dry run"  # the reason of its holds: the same at every tick, so that each is recorded once


class DryReconciler(Reconciler):
    """In the place of the real one. Nodes of an earlier run are watched, and left alone."""

    def act(self, plan: Plan) -> None:
        pass

    def send(self, node: NodeRecord) -> None:
        pass

    def end(self, launch_ids: Iterable[str], clouds: Mapping[str, str] | None = None) -> None:
        pass

    def end_all(self, reason: str) -> None:
        pass

    def give_up(self, launch_ids: Iterable[str], reason: str) -> None:
        pass


def would(plan: Plan, targets: Mapping[str, Target] | None = None) -> Plan:
    """The same plan with a hold in the place of every action, and what is really granted. Launches in one market are
    one hold, whatever their reasons: holds are told apart by their subject, so two of a market would be read as one.
    What is told of a hold begins with why it would be done."""
    launches: dict[str, list[Launch]] = {}
    holds: list[Hold] = list(plan.holds)
    for action in plan.actions:
        match action:
            case Launch():
                launches.setdefault(action.offer.market.key, []).append(action)
            case Drain():
                holds.append(Hold(f"would drain {action.launch_id}", DRY_RUN, (action.reason, *action.alternatives)))
            case Terminate():
                holds.append(Hold(f"would end {action.launch_id}", DRY_RUN, (action.reason, *action.alternatives)))
    for market, alike in launches.items():
        jobs = tuple(dict.fromkeys(job_id for launch in alike for job_id in launch.jobs))
        told = ("; ".join(dict.fromkeys(launch.reason for launch in alike)), *alike[0].alternatives)
        holds.append(Hold(f"would launch {len(alike)} x {market}", DRY_RUN, told, jobs=jobs))
    return Plan(plan.at_s, tuple(holds), plan.targets if targets is None else dict(targets))
