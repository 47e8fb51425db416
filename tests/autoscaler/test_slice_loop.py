"""Slices through Loop.tick, on the shipped fakes: bought whole, used by host, drained, lost and billed as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tradewind.autoscaler.ray_snapshot import DrainReason, RayStatus, Strategy
from tradewind.autoscaler.slices import LABEL_TPU_POD, LABEL_TPU_SLICE, LABEL_TPU_WORKER
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.cost.ledger import Ledger
from tradewind.events import (
    AnyEvent,
    DrainRefused,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    TerminateRequested,
)
from tradewind.model import EndReason, JobSpec, Offer
from tradewind.states import JobState, NodeState

SETTINGS = LoopSettings(fleet="test", idle_timeout_s=30, min_node_life_s=20, boot_timeout_s=100, drain_timeout_s=40)


def tpu(kind: str, hosts: int, usd_per_h: float) -> Offer:
    offer = make_offer(f"gcp/us-central2-b/{kind}", usd_per_h=usd_per_h, cpus=240, memory_gib=400)
    return replace(offer, accelerator="TPU-V4", accelerator_count=4, hosts=hosts)


ONE, TWO, FOUR = tpu("tpu-v4-8", 1, 3.0), tpu("tpu-v4-16", 2, 7.0), tpu("tpu-v4-32", 4, 15.0)
HEAD = {"TPU-v4-16-head": 1.0}
HEAD_LABELS = {LABEL_TPU_WORKER: "0", LABEL_TPU_POD: "v4-16"}
HOST = {"CPU": 1.0, "TPU": 4.0}
JOB = "job-1"


def world(*offers: Offer, host_gap_s: float = 0.0) -> World:
    made = World(offers or (ONE, TWO, FOUR), SETTINGS)
    made.ray.host_gap_s = host_gap_s
    made.record(JobSubmitted(at_s=made.clock.now_s(), job_id=JOB, spec=JobSpec(JOB, "train.py")))
    made.record(JobStateChanged(at_s=made.clock.now_s(), job_id=JOB, state=JobState.RUNNING))
    return made


def reserve(w: World, until_s: float = 30) -> str:
    """As `slice_placement_group` does: first the head of a slice, then a bundle on each host of that one."""
    w.ray.submit_gang([HEAD], Strategy.PACK, HEAD_LABELS, JOB)
    w.run(until_s)
    [launch_id] = [node.launch_id for node in w.cloud.alive()]
    w.ray.submit_gang([HOST, HOST], Strategy.SPREAD, {LABEL_TPU_SLICE: launch_id}, JOB)
    return launch_id


def of_kind(w: World, kind: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in w.events if isinstance(event, kind)]


def launched(w: World) -> list[str]:
    return [event.offer.market.instance_type for event in w.events if isinstance(event, LaunchRequested)]


def test_a_reserved_slice_is_bought_by_its_topology_used_and_goes_as_one() -> None:
    w = world()
    reserve(w)
    w.run(5)
    assert w.ray.waiting == 0
    w.run(60)
    assert launched(w) == ["tpu-v4-16"]
    assert len(of_kind(w, NodeJoined)) == 1
    [holding] = [event for event in of_kind(w, HoldingChanged) if isinstance(event, HoldingChanged)][-1:]
    assert holding.resources == {"CPU": 2.0, "TPU": 8.0, "TPU-v4-16-head": 1.0}  # of both hosts
    w.ray.finish()
    w.run(60)
    assert [reason for _, reason in w.ray.drains] == [DrainReason.IDLE] * 2
    assert {node.state for node in w.fleet.nodes.values()} == {NodeState.GONE}
    assert w.cloud.terminate_calls == ["n1"]


@pytest.mark.parametrize(("jobs", "shares"), [((JOB, JOB), {JOB: 1.0}), ((JOB, "job-2"), {JOB: 0.5, "job-2": 0.5})])
def test_a_slice_is_billed_once_and_split_over_its_hosts(jobs: tuple[str, str], shares: dict[str, float]) -> None:
    w = world(TWO)
    w.record(JobSubmitted(at_s=w.clock.now_s(), job_id="job-2", spec=JobSpec("job-2", "train.py")))
    for job_id in jobs:
        w.ray.submit(HOST, job_id=job_id)
    w.run(30)
    began_s = w.clock.now_s()
    w.run(600, interval_s=10)
    ledger = Ledger.fold(w.events)
    [before], [after] = ledger.accounts(began_s), ledger.accounts(w.clock.now_s())
    assert after.cost_uusd == pytest.approx(after.duration_ms / 3_600_000 * 7_000_000, rel=1e-6)
    for job_id, share in shares.items():
        paid = sum(e.cost_uusd for e in after.entries if e.job_id == job_id)
        paid -= sum(e.cost_uusd for e in before.entries if e.job_id == job_id)
        assert paid == pytest.approx(share * (after.cost_uusd - before.cost_uusd), rel=0.01)


def test_half_a_slice_is_not_a_node_and_nothing_is_bought_twice_while_hosts_join() -> None:
    w = world(host_gap_s=20)
    launch_id = reserve(w, until_s=15)  # the first host has joined, and is reserved
    assert len([node for node in w.ray.snapshot().nodes if node.launch_id == launch_id]) == 1
    w.run(5)
    assert w.fleet.nodes[launch_id].state is NodeState.BOOTING
    assert w.loop.plan is not None
    assert w.loop.plan.actions == ()  # what is asked of the second host waits for it
    w.run(30)
    assert w.fleet.nodes[launch_id].state is NodeState.READY
    assert w.ray.waiting == 0
    assert launched(w) == ["tpu-v4-16"]


def test_a_slice_with_a_host_that_never_joins_is_ended_and_replaced() -> None:
    w = world(host_gap_s=10_000)
    w.ray.submit_gang([HOST, HOST], Strategy.SPREAD, None, JOB)
    w.run(130)
    assert launched(w) == ["tpu-v4-16", "tpu-v4-32"]  # a market whose nodes do not boot is avoided for a while
    [asked] = of_kind(w, TerminateRequested)
    assert isinstance(asked, TerminateRequested)
    assert asked.reason.startswith("did not join Ray within")


def test_a_slice_is_lost_with_any_of_its_hosts() -> None:
    w = world()
    reserve(w)
    w.run(5)
    w.ray.kill("n1", host=1)
    w.run(5)
    assert "n1" in w.cloud.terminate_calls
    [gone] = of_kind(w, NodeGone)
    assert isinstance(gone, NodeGone)
    assert (gone.launch_id, gone.end) == ("n1", EndReason.TERMINATED)


def test_a_slice_that_the_cloud_takes_drains_all_hosts_and_another_is_bought_meanwhile() -> None:
    w = world()
    reserve(w)
    w.run(30)
    w.cloud.preempt("n1", notice_s=60)
    w.run(30)
    assert [reason for _, reason in w.ray.drains] == [DrainReason.PREEMPTION] * 2
    assert len({ray_node_id for ray_node_id, _ in w.ray.drains}) == 2
    assert launched(w) == ["tpu-v4-16"] * 2  # what lies on two hosts is wanted on one slice again
    assert w.fleet.nodes["n2"].state is NodeState.READY
    w.run(40)
    assert launched(w) == ["tpu-v4-16"] * 2
    assert w.fleet.nodes["n1"].end is EndReason.PREEMPTED


def test_a_host_that_has_drained_does_not_end_the_work_on_the_others() -> None:
    w = world(TWO)
    w.ray.submit(HOST, job_id=JOB)
    w.run(30)
    w.cloud.preempt("n1", notice_s=60)
    w.run(20)  # the second host had nothing to do: Ray has let it go
    assert {node.status for node in w.ray.snapshot().nodes if node.launch_id == "n1"} == {
        RayStatus.DEAD,
        RayStatus.DRAINING,
    }
    assert w.fleet.nodes["n1"].state is NodeState.DRAINING
    assert "n1" not in w.cloud.terminate_calls


def test_a_slice_is_idle_only_when_all_hosts_are() -> None:
    w = world(TWO)
    w.ray.submit(HOST, 2, job_id=JOB)
    w.ray.submit({"CPU": 1.0}, labels={LABEL_TPU_WORKER: "1"}, job_id="other")
    w.run(30)
    w.ray.finish(JOB)
    w.run(120)
    assert w.ray.drains == []
    w.ray.finish("other")
    w.run(60)
    assert {node.state for node in w.fleet.nodes.values()} == {NodeState.GONE}


@pytest.mark.parametrize(
    ("worker", "drains"), [("0", []), ("1", [DrainReason.IDLE, DrainReason.PREEMPTION])], ids=["first", "another"]
)
def test_work_that_comes_during_an_idle_drain(worker: str, drains: list[DrainReason]) -> None:
    """On the first host it keeps the slice. On another it comes too late, and is given time to end."""
    w = world(TWO)
    w.ray.submit_gang([HOST, HOST], Strategy.SPREAD, None, JOB)
    w.run(20)
    w.ray.finish()
    w.run(28)
    snapshot = w.ray.snapshot()
    w.ray.submit(HOST, labels={LABEL_TPU_WORKER: worker}, job_id=JOB)
    w.ray.schedule()
    old = replace(snapshot, nodes=tuple(replace(node, idle_s=99.0) for node in snapshot.nodes))
    w.ray.snapshot = lambda: old  # type: ignore[method-assign]
    w.loop.tick()
    assert [reason for _, reason in w.ray.drains] == drains
    assert bool(of_kind(w, DrainRefused)) is not bool(drains)


def test_a_single_host_request_uses_a_free_host_of_a_slice() -> None:
    w = world()
    w.ray.submit_gang([HOST, HOST], Strategy.SPREAD, None, JOB)
    w.run(30)
    w.ray.finish(JOB)
    w.ray.submit(HOST, 2, job_id="other")
    w.run(10)
    assert w.ray.waiting == 0
    assert launched(w) == ["tpu-v4-16"]


def test_a_single_host_request_buys_no_slice_where_a_host_is_cheaper() -> None:
    w = world()
    w.ray.submit(HOST, job_id=JOB)
    w.run(30)
    assert launched(w) == ["tpu-v4-8"]


def test_a_single_tpu_machine_is_a_slice_of_its_own() -> None:
    w = world()
    w.ray.submit_gang([{"TPU-v4-8-head": 1.0}], Strategy.PACK, {LABEL_TPU_POD: "v4-8"}, JOB)
    w.run(30)
    assert w.ray.waiting == 0
    assert launched(w) == ["tpu-v4-8"]
