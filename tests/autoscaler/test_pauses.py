"""Jobs that rest, through Loop.tick: their nodes go, nothing is bought for them, and they come back."""

from __future__ import annotations

from loop_world import GPU, alive, of_kind, world

from tradewind.autoscaler.testing import World
from tradewind.events import DecisionRecorded, JobSubmitted, PhaseChanged
from tradewind.model import JobSpec, Phase, Wish
from tradewind.states import NodeState

WHY = "better hours begin in 3.0 h"


def with_jobs(*job_ids: str) -> World:
    w = world()
    for job_id in job_ids:
        w.record(JobSubmitted(at_s=w.clock.now_s(), job_id=job_id, spec=JobSpec(job_id, "python train.py")))
        w.wishes.append(Wish(job_id, 1, 1, GPU))
        w.ray.submit(GPU, job_id=job_id)
    return w


def test_a_job_that_rests_lets_go_of_its_node_and_comes_back() -> None:
    w = with_jobs("train")
    w.run(60)
    assert alive(w) == ["n1"]
    assert w.ray.nodes_of("train")
    w.loop.resting = lambda: {"train": WHY}
    w.run(400)
    assert alive(w) == []
    assert w.loop.plan is not None
    assert [(hold.reason, hold.jobs) for hold in w.loop.plan.holds] == [(WHY, ("train",))]
    told = [event for event in of_kind(w, DecisionRecorded) if getattr(event, "action", "") == "drain"]
    assert [getattr(event, "reason", "") for event in told] == [f"train rests: {WHY}"]
    w.loop.resting = dict
    w.run(60)
    assert alive(w) == ["n2"]
    assert w.ray.waiting == 0


def test_a_job_that_has_not_begun_is_not_bought_for() -> None:
    w = with_jobs("train")
    w.loop.resting = lambda: {"train": WHY}
    w.run(60)
    assert alive(w) == []
    assert w.cloud.launch_calls == []


def test_the_nodes_of_others_stay() -> None:
    w = with_jobs("train", "other")
    w.run(60)
    before = set(w.ray.nodes_of("other"))
    w.loop.resting = lambda: {"train": WHY}
    w.run(400)
    assert set(w.ray.nodes_of("other")) == before
    assert len(alive(w)) == 1


def test_a_node_where_somebody_else_has_an_actor_stays() -> None:
    w = with_jobs("train")
    w.run(60)
    (ray_node_id,) = w.ray.nodes_of("train")
    w.ray.guests[ray_node_id] = frozenset({"train", "other"})
    w.loop.resting = lambda: {"train": WHY}
    w.run(400)
    assert alive(w) == ["n1"]
    w.ray.guests[ray_node_id] = frozenset({"train"})
    w.run(400)
    assert alive(w) == []


def tell(w: World, phase: Phase, workers: int, sequence: int) -> None:
    at_s = w.clock.now_s()
    w.record(PhaseChanged(at_s=at_s, job_id="train", attempt=1, sequence=sequence, phase=phase, workers=workers))


def test_nobody_loses_what_is_not_saved() -> None:
    """However long a save takes, or fails: its nodes stay as long as it holds something on them."""
    w = with_jobs("train")
    w.run(60)
    tell(w, Phase.TRAINING, 1, 1)
    w.loop.resting = lambda: {"train": WHY}
    w.run(2000)
    assert alive(w) == ["n1"]
    assert w.loop.plan is not None
    assert w.loop.plan.targets["train"].replicas == 0, "it is asked to save all the time"
    tell(w, Phase.RESTING, 0, 2)
    w.run(2)
    assert w.fleet.nodes["n1"].state in (NodeState.DRAINING, NodeState.TERMINATING)


def rested() -> World:
    """It has saved and let go."""
    w = with_jobs("train")
    w.run(100)
    tell(w, Phase.TRAINING, 1, 1)
    w.loop.resting = lambda: {"train": WHY}
    w.run(5)
    tell(w, Phase.RESTING, 0, 2)
    w.ray.finish("train")
    return w


def test_what_it_has_left_goes_at_once() -> None:
    w = rested()
    w.run(3)
    (told,) = [event for event in of_kind(w, DecisionRecorded) if getattr(event, "action", "") == "drain"]
    assert getattr(told, "reason", "").endswith(f"train rests: {WHY}")


def test_what_it_has_left_stays_where_others_want_it() -> None:
    w = rested()
    w.ray.submit(GPU, job_id="other")
    w.run(60)
    assert alive(w) == ["n1"]
