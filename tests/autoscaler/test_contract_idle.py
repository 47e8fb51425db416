"""Jobs with a contract beside nodes that are there: what is paid for is used before anything is bought."""

from __future__ import annotations

import pytest
from contract_world import DEAR, GPU, JOB, SPOT, H, Voyage

from tradewind.autoscaler.testing import make_offer
from tradewind.events import LaunchRequested
from tradewind.model import LABEL_INSTANCE_TYPE, LABEL_MARKET_TYPE, Contract, Offer

TWIN = make_offer("aws/us-east-1b/g6", usd_per_h=0.30, cpus=4, gpus=1)
CHEAPER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.20, cpus=4, gpus=1)
DEARER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.60, cpus=4, gpus=1)


def asked_for(v: Voyage, since_s: float) -> list[str]:
    events = (event for event in v.world.events if isinstance(event, LaunchRequested))
    return [event.offer.market.key for event in events if event.at_s >= v.began_s + since_s]


def voyage(workers: tuple[int, int] = (1, 4), offers: tuple[Offer, ...] = (SPOT, TWIN, DEAR)) -> Voyage:
    return Voyage(2.0, Contract(deadline_at_s=H, work_s=2 * H), workers=workers, offers=offers)


@pytest.mark.parametrize("notice_s", [None, 30.0])
@pytest.mark.parametrize("lets_go", [False, True])
def test_after_a_loss_one_node_is_bought_beside_those_that_are_left(lets_go: bool, notice_s: float | None) -> None:
    """A market of the same price that has lost nobody looks calmer, but all nodes would be bought anew there."""
    v = voyage().run(400)
    held = sorted(v.world.fleet.jobs[JOB].holdings)
    assert len(held) > 2
    v.cloud.preempt(held[0], notice_s)
    if lets_go:  # a job that starts again as a whole: for a moment it holds nothing
        v.ray.finish(JOB)
        v._asked = 0
    v.run(800)
    assert asked_for(v, 400) == [SPOT.market.key]
    assert len(v.world.fleet.jobs[JOB].holdings) == len(held)


def beside_idle(idle: Offer, number: int) -> Voyage:
    """When the job comes, somebody else has just left `number` nodes of this offer, and one more was taken."""
    v = voyage(workers=(3, 3), offers=(SPOT, TWIN, idle, DEAR))
    wishes, v.world.wishes = v.world.wishes, []
    others = {offer.market.key for offer in (SPOT, TWIN)} - {idle.market.key}
    for key in others:
        v.cloud.set_price(key, 9.00)
    v.ray.submit(GPU, number + 1)
    v.world.run(60, 5.0)
    v.ray.finish("ray-01000000")
    v.cloud.preempt(v.cloud.alive()[0].launch_id)
    v.world.run(10, 5.0)
    assert [node.offer for node in v.cloud.alive()] == [idle] * number
    for key in others:
        v.cloud.set_price(key, 0.30)
    v.world.wishes = wishes
    return v


@pytest.mark.parametrize("idle", [TWIN, CHEAPER])
@pytest.mark.parametrize(("number", "lacking"), [(3, 0), (2, 1)])
def test_idle_nodes_of_a_market_that_is_as_cheap_are_used_first(idle: Offer, number: int, lacking: int) -> None:
    v = beside_idle(idle, number)
    since_s = v.now_s
    v.run(since_s + 120)
    assert len(asked_for(v, since_s)) == lacking
    assert len(v.world.fleet.jobs[JOB].holdings) == 3


def test_who_uses_them_is_told() -> None:
    v = beside_idle(TWIN, 3)
    v.tick()
    assert v.choices == [f"{SPOT.market.key} x 3"]
    assert f"idle nodes of {TWIN.market.key} cost no more, and are used first" in v.decisions[0].reason


def test_beside_idle_nodes_no_other_accelerator_is_bought() -> None:
    """Idle are nodes of a market that has just lost some. What it has in common with the calmer one, others have, too:
    cheaper ones of a kind on which no step was ever measured."""
    calm = make_offer("aws/us-east-1b/gr6", usd_per_h=0.30, cpus=4, gpus=1)
    slow = make_offer("aws/us-east-1c/g4", usd_per_h=0.20, cpus=4, gpus=1, accelerator="T4")
    v = Voyage(2.0, Contract(deadline_at_s=1.2 * H, work_s=2 * H), workers=(1, 4), offers=(SPOT, calm, slow, DEAR))
    v.cloud.set_price(slow.market.key, 9.00)
    v.run(400)
    v.cloud.set_price(slow.market.key, 0.20)
    held = sorted(v.world.fleet.jobs[JOB].holdings)
    v.ray.submit(GPU, labels={LABEL_MARKET_TYPE: "spot", LABEL_INSTANCE_TYPE: "g6"}, job_id="other")
    v.run(480)
    for launch_id in held:
        v.cloud.preempt(launch_id)
    v.ray.finish(JOB)
    v.ray.finish("other")
    v._asked = 0
    v.run(800)
    assert asked_for(v, 480) == [calm.market.key] * (len(held) - 1)


def test_idle_nodes_that_are_dearer_are_left_to_others() -> None:
    v = beside_idle(DEARER, 3)
    since_s = v.now_s
    v.tick()
    assert asked_for(v, since_s) == [SPOT.market.key] * 3
    assert "used first" not in v.decisions[0].reason


def test_who_has_too_little_slack_to_leave_on_demand_buys_no_spot_beside_it() -> None:
    """However many markets and sizes would be cheaper than staying: nodes were bought for a move, and left idle when it
    was called off at the next look."""
    spot = (SPOT, TWIN, make_offer("aws/us-east-1c/g6", usd_per_h=0.30, cpus=4, gpus=1))
    closed = {offer.market.key: [(0.0, 300.0)] for offer in spot}
    contract = Contract(deadline_at_s=0.55 * H, work_s=1.5 * H)
    v = Voyage(1.5, contract, closed, workers=(1, 4), offers=(*spot, DEAR)).run(H)
    assert v.ended_s is not None
    assert v.ended_s <= 0.55 * H
    assert asked_for(v, 0.0) == [DEAR.market.key] * 4
    assert v.choices == ["on demand x 4"]


def test_expectations_that_read_alike_are_told_as_alike() -> None:
    v = voyage()
    v.tick()
    assert any(text.startswith(TWIN.market.key) and text.endswith(", as cheap") for text in v.decisions[0].alternatives)
    assert len(v.decisions[0].alternatives) == 3
