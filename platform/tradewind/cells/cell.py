"""One Ray cluster in one region of one cloud, as the controller has it: its head, its agent, its loop.

A local fleet has one cell, whose head is a process beside the controller. In a cloud the head is a node: the loop buys
it (autoscaler/policies/head.py), its agent calls (line.py), and from then on the cell is like any other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tradewind.agent import Agent
from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.policies.head import present_head
from tradewind.autoscaler.providers.base import Provider
from tradewind.cells.energy import EnergyWatch
from tradewind.cells.heads import HeadSource
from tradewind.cells.line import Line
from tradewind.errors import RayError, TradewindError
from tradewind.events import AnyEvent, JobStateChanged
from tradewind.model import Role
from tradewind.states import JobState, NodeState

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Cell:
    name: str
    cloud: str  # "local", "aws", "gcp", "azure"
    region: str
    head: HeadSource
    agent: Agent
    loop: Loop
    providers: Mapping[str, Provider] = field(default_factory=dict)  # by cloud; one may stand for several
    line: Line | None = None  # None: the head is not the loop's to keep
    plan: Plan | None = None
    wake: threading.Event = field(default_factory=threading.Event)
    _energy: EnergyWatch = field(default_factory=EnergyWatch)

    @property
    def fleet(self) -> FleetState:
        """The part of the record that is this cell's."""
        return self.loop.fleet

    def tick(self) -> None:
        """An error ends its part of this tick, never the loop: nodes cost money while Ray's Jobs API is away, too."""
        with survived():
            if self.line is None and not self.head.alive:
                raise RayError("the Ray head is gone", "another one is started; jobs resume")
            if self.line is not None:
                self._keep_head(self.line)
            if self.head.alive:
                with survived():
                    self.agent.sync(time.time())
                with survived():
                    self._measure()
            with survived():
                self.plan = self.loop.tick()
            if self.head.alive and self.plan is not None:
                with survived():
                    self.agent.grant(self.plan.targets)

    def _measure(self) -> None:
        """What nodes have measured goes on record. The local cloud's share this machine, and measure nothing."""
        if self.line is not None and self._energy.is_due(time.monotonic()):
            reports = self.line.call("node.energy")
            self.loop.record(*self._energy.news(reports, self.loop.clock.now_s()))

    # --- a head that is a node -----------------------------------------------------------------------------------

    @property
    def head_node(self) -> NodeRecord | None:
        return present_head([node for node in self.fleet.alive_nodes if node.role is Role.HEAD])

    def _keep_head(self, line: Line) -> None:
        """Only the agent on the head that is on record speaks for the cell."""
        head = self.head_node
        line.expect(head.launch_id if head else "none")
        if (words := line.present) is not None:
            self.loop.meet_head(words.launch_id, words.gcs_address)
        heads = [node for node in self.fleet.alive_nodes if node.role is Role.HEAD]
        if all(node.state in (NodeState.REQUESTED, NodeState.BOOTING) for node in heads):  # an old one is really gone
            self.loop.record(*lost_jobs(self.fleet, self.name, self.loop.clock.now_s()))

    def end(self, reason: str, timeout_s: float) -> list[str]:
        """Nodes first, so that the cloud lists none of them any more; heads are nodes. Their launch ids."""
        ended = self.loop.end_all(reason, timeout_s)
        self.loop.close()
        return ended


def lost_jobs(fleet: FleetState, cell: str, now_s: float) -> Iterator[AnyEvent]:
    """What ran under a head that is no more: ours go back to the queue and resume, foreign ones cannot."""
    reason = f"the head of cell {cell} was lost"
    for job in fleet.open_jobs:
        state = job.state
        if job.foreign:
            yield JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.FAILED, reason=reason)
        elif state is JobState.STOPPING:
            yield JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.STOPPED, reason=reason)
        elif state in (JobState.RUNNING, JobState.RECOVERING):
            yield JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.QUEUED, reason=reason)


@contextmanager
def survived() -> Iterator[None]:
    """What goes wrong is logged; whoever comes next goes on."""
    try:
        yield
    except TradewindError as error:
        log.error("%s", error)
    except Exception:
        log.exception("an error that nobody expected; the loop goes on")


def silence_of(line: Line) -> Callable[[], float | None]:
    """How long nothing was heard of the head's agent. Before its first words: since the controller looks (a controller
    that starts again must be found first)."""
    began_s = time.monotonic()

    def silent_s() -> float | None:
        found = line.silent_for_s()
        return time.monotonic() - began_s if found is None else found

    return silent_s
