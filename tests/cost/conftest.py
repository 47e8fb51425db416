"""A builder of small histories for the tests of the ledger. Times are seconds; reports count their own sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tradewind.cost.ledger import Ledger
from tradewind.events import (
    AnyEvent,
    ControllerStarted,
    DecisionRecorded,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    PriceChanged,
    StepCommitted,
)
from tradewind.model import Capacity, EndReason, JobSpec, Market, Offer, Phase
from tradewind.states import JobState

GPU_MARKET = Market("aws", "us-east-1", "use1-az4", "g5.xlarge", Capacity.SPOT)
# One dollar an hour is 1,000,000 uusd / 3600 s: prices of 3.6 dollars make 1000 uusd a second.
GPU_OFFER = Offer(GPU_MARKET, 4.0, 16.0, "A10G", 1.0, 1, 3_600_000, 7_200_000)


@dataclass
class History:
    events: list[AnyEvent] = field(default_factory=list)
    sequence: int = 0

    def simulated(self) -> History:
        return self._add(ControllerStarted(at_s=0.0, fleet="f", pid=1, version="0", simulated=True))

    def node(
        self,
        name: str,
        launched_s: float,
        joined_s: float | None = None,
        gone_s: float | None = None,
        end: EndReason = EndReason.TERMINATED,
        offer: Offer = GPU_OFFER,
    ) -> History:
        self._add(LaunchRequested(at_s=launched_s - 0.5, launch_id=name, offer=offer, reason="test"))
        self._add(NodeLaunched(at_s=launched_s, launch_id=name, instance_id=f"i-{name}"))
        if joined_s is not None:
            self._add(NodeJoined(at_s=joined_s, launch_id=name, ray_node_id=f"r-{name}"))
        return self if gone_s is None else self._add(NodeGone(at_s=gone_s, launch_id=name, end=end))

    def bought_for(self, name: str, *jobs: str) -> History:
        return self._add(DecisionRecorded(at_s=0.0, action="launch", subject=name, reason="test", jobs=jobs))

    def gone(self, name: str, at_s: float, end: EndReason) -> History:
        return self._add(NodeGone(at_s=at_s, launch_id=name, end=end))

    def notice(self, name: str, at_s: float) -> History:
        return self._add(NoticeReceived(at_s=at_s, launch_id=name, deadline_s=at_s + 120.0))

    def price(self, at_s: float, uusd_per_h: int, market: Market = GPU_MARKET) -> History:
        return self._add(PriceChanged(at_s=at_s, market=market.key, price_uusd_per_h=uusd_per_h))

    def job(self, job_id: str, at_s: float = 0.0, foreign: bool = False, tenant: str = "default") -> History:
        spec = JobSpec(name=f"name-{job_id}", entrypoint="true", tenant=tenant, min_workers=1, max_workers=1)
        return self._add(JobSubmitted(at_s=at_s, job_id=job_id, spec=spec, foreign=foreign))

    def state(self, job_id: str, at_s: float, state: JobState) -> History:
        return self._add(JobStateChanged(at_s=at_s, job_id=job_id, state=state))

    def hold(self, job_id: str, node: str, at_s: float, resources: Mapping[str, float] | None = None) -> History:
        held = {"CPU": 1.0, "GPU": 1.0} if resources is None else resources
        return self._add(HoldingChanged(at_s=at_s, job_id=job_id, launch_id=node, resources=held))

    def release(self, job_id: str, node: str, at_s: float) -> History:
        return self._add(HoldingChanged(at_s=at_s, job_id=job_id, launch_id=node))

    def phase(self, job_id: str, at_s: float, phase: Phase, attempt: int = 1) -> History:
        self.sequence += 1
        return self._add(
            PhaseChanged(at_s=at_s, job_id=job_id, attempt=attempt, sequence=self.sequence, phase=phase, workers=1)
        )

    def steps(self, job_id: str, began_s: float, at_s: float, first: int, last: int, attempt: int = 1) -> History:
        self.sequence += 1
        return self._add(
            StepCommitted(
                at_s=at_s,
                job_id=job_id,
                attempt=attempt,
                sequence=self.sequence,
                began_s=began_s,
                first_step=first,
                last_step=last,
                workers=1,
                samples=10 * (last - first + 1),
            )
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger.fold(self.events, minimum_ms={})  # so that short lives can be counted by hand

    def _add(self, event: AnyEvent) -> History:
        self.events.append(event)
        return self


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def gpu_offer() -> Offer:
    return GPU_OFFER
