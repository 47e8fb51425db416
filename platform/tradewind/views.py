"""From what the log knows (FleetState) to what people are shown (api). Pure; used by every controller, real or fake."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tradewind.api import (
    About,
    CellInfo,
    ContractInfo,
    DecisionLine,
    DemandLine,
    EventLine,
    JobInfo,
    NodeInfo,
    job_not_found,
    node_not_found,
    pick,
)
from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.fleet import FleetState, JobRecord, NodeRecord
from tradewind.cost.ledger import Ledger
from tradewind.events import AnyEvent, DecisionRecorded, encode
from tradewind.model import Role
from tradewind.states import NodeState

if TYPE_CHECKING:
    from tradewind.cells.cell import Cell


def job_info(job: JobRecord, cost_uusd: int = 0, contract: ContractInfo | None = None) -> JobInfo:
    return JobInfo(
        job_id=job.job_id,
        name=job.spec.name,
        tenant=job.spec.tenant,
        state=job.state,
        phase=job.phase,
        foreign=job.foreign,
        workers=job.workers,
        min_workers=job.spec.min_workers,
        max_workers=job.spec.max_workers,
        step=job.step,
        total_steps=job.total_steps,
        # JSON has no NaN; a loss that is none is told as missing.
        loss=job.loss if job.loss is not None and math.isfinite(job.loss) else None,
        submitted_at_s=job.submitted_at_s,
        started_at_s=job.started_at_s,
        ended_at_s=job.ended_at_s,
        reason=job.reason or job.phase_reason,
        cost_uusd=cost_uusd,
        nodes=tuple(sorted(job.holdings)),
        attempts=job.attempt,
        cell=job.cell,
        contract=contract,
    )


def node_info(
    node: NodeRecord,
    jobs: Iterable[JobRecord] = (),
    *,
    price_uusd_per_h: int | None = None,
    cost_uusd: int = 0,
) -> NodeInfo:
    """`price_uusd_per_h` is today's price where it differs from the one at the launch."""
    offer = node.offer
    return NodeInfo(
        launch_id=node.launch_id,
        cloud=offer.market.cloud,
        zone=offer.market.zone,
        instance_type=offer.market.instance_type,
        capacity=offer.market.capacity,
        accelerator=offer.accelerator,
        accelerator_count=offer.accelerator_count,
        hosts=offer.hosts,
        state=node.state,
        since_s=node.state_since_s,
        price_uusd_per_h=offer.price_uusd_per_h if price_uusd_per_h is None else price_uusd_per_h,
        jobs=tuple(job.job_id for job in jobs if node.launch_id in job.holdings),
        cost_uusd=cost_uusd,
        end=node.end,
        detail=node.detail,
        reason=node.reason,
        cell=node.cell,
        role=node.role,
    )


def cell_info(cell: Cell) -> CellInfo:
    """`head` is "ready", or what is the matter with it."""
    node = cell.head_node
    state = "ready" if cell.head.alive else ("gone" if cell.line is None else "none")
    if node is not None and not cell.head.alive:
        state = "not heard" if node.state is NodeState.READY else str(node.state)
    workers = [each for each in cell.fleet.alive_nodes if each.role is Role.WORKER]
    return CellInfo(
        cell=cell.name,
        cloud=cell.cloud,
        region=cell.region,
        head=state,
        head_node=node.launch_id if node else "",
        ray_address=cell.head.gcs_address,
        nodes=len(workers),
        jobs=len(cell.fleet.open_jobs),
    )


def found_job(fleet: FleetState, job_id: str) -> JobRecord:
    job = fleet.jobs.get(job_id)
    if job is None:
        raise job_not_found(job_id, fleet.jobs)
    return job


def picked(fleet: FleetState, about: About, subject: str) -> str:
    """The id that a beginning of it means."""
    if about == "now":
        return ""
    return pick(subject, fleet.nodes, node_not_found) if about == "node" else pick(subject, fleet.jobs, job_not_found)


def node_infos(fleet: FleetState, costs: Costs) -> list[NodeInfo]:
    jobs = fleet.open_jobs
    return [
        node_info(
            node,
            jobs,
            price_uusd_per_h=costs.prices.get(node.launch_id),
            cost_uusd=costs.by_node.get(node.launch_id, 0),
        )
        for node in fleet.nodes.values()
    ]


def demand_lines(plan: Plan | None) -> tuple[DemandLine, ...]:
    return tuple(DemandLine(what=hold.subject, hold=hold.reason) for hold in plan.holds) if plan else ()


def whole_plan(plans: Sequence[Plan]) -> Plan | None:
    """Of all cells: what is held back and granted there."""
    if len(plans) < 2:
        return plans[0] if plans else None
    actions = tuple(action for plan in plans for action in plan.actions)
    targets = {job_id: target for plan in plans for job_id, target in plan.targets.items()}
    return Plan(max(plan.at_s for plan in plans), actions, targets)


def event_line(sequence: int, event: AnyEvent) -> EventLine:
    return EventLine(sequence=sequence, event=json.loads(encode(event)))


def decision_line(event: DecisionRecorded) -> DecisionLine:
    return DecisionLine(
        at_s=event.at_s,
        action=event.action,
        subject=event.subject,
        reason=event.reason,
        alternatives=event.alternatives,
    )


@dataclass(frozen=True, slots=True)
class Costs:
    """What a screen needs of the ledger at one moment."""

    total_uusd: int
    rate_uusd_per_h: int  # of the nodes that are billed now
    by_job: Mapping[str, int]
    by_node: Mapping[str, int]
    prices: Mapping[str, int | None]  # by node: the last one

    @classmethod
    def at(cls, ledger: Ledger, now_s: float) -> Costs:
        by_job: dict[str, int] = {}
        for cell in ledger.cells(now_s):
            by_job[cell.job_id] = by_job.get(cell.job_id, 0) + cell.cost_uusd
        nodes = list(ledger.node_costs(now_s))
        return cls(
            total_uusd=sum(node.cost_uusd for node in nodes),
            rate_uusd_per_h=sum(node.price_uusd_per_h or 0 for node in nodes if not node.is_over),
            by_job=by_job,
            by_node={node.launch_id: node.cost_uusd for node in nodes},
            prices={node.launch_id: node.price_uusd_per_h for node in nodes},
        )
