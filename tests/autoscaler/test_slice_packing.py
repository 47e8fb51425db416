"""Slices when packing: which are bought for what, where else, and that a constant demand buys once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.allocate import allocate
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.packing_stock import Cap
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.policies.buy import Buy
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RaySnapshot, RayStatus, Strategy, as_one
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.slices import LABEL_TPU_POD, LABEL_TPU_SLICE, LABEL_TPU_TOPOLOGY, LABEL_TPU_WORKER, tpu_hosts
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings, NodeView, View
from tradewind.events import LaunchRequested
from tradewind.model import Offer, Wish
from tradewind.states import NodeState

HOST = Shape.of({"CPU": 1, "TPU": 4})
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=30, min_node_life_s=20, boot_timeout_s=100)


def tpu(zone: str, hosts: int, usd_per_h: float) -> Offer:
    offer = make_offer(f"gcp/{zone}/tpu-v4-{8 * hosts}", usd_per_h=usd_per_h, cpus=8, memory_gib=400)
    return replace(offer, accelerator="TPU-V4", accelerator_count=4, hosts=hosts)


ONE, TWO, FOUR = (tpu("us-central2-b", hosts, 3.0 * hosts) for hosts in (1, 2, 4))


def view_of(offers: list[Offer], demand: Demand, nodes: tuple[NodeView, ...] = ()) -> View:
    return View(1000.0, SETTINGS, nodes, RaySnapshot(), demand, tuple(offers))


def bought(view: View) -> list[Offer]:
    return [launch.offer for launch in make_plan(view).launches]


def head(pod_type: str) -> Shape:
    return Shape.of({f"TPU-{pod_type}-head": 1}, {LABEL_TPU_WORKER: "0", LABEL_TPU_POD: pod_type})


def test_each_reservation_gets_a_slice_of_its_own() -> None:
    gangs = tuple(Gang(name, Strategy.PACK, (head("v4-16"),)) for name in "ab")
    assert bought(view_of([ONE, TWO, FOUR], Demand(gangs=gangs))) == [TWO, TWO]


def test_what_only_the_first_host_can_have_buys_no_second_slice_in_whatever_order_it_is_told() -> None:
    """As when a slice is taken away: what its hosts held is told by host, in no particular order."""
    first = Shape.of({"CPU": 1, "TPU": 4, "TPU-v4-16-head": 1})
    for bundles in ((first, HOST), (HOST, first)):
        demand = Demand(gangs=(Gang("g", Strategy.SPREAD, bundles),))
        assert bought(view_of([ONE, TWO, FOUR], demand)) == [TWO]
        assert bought(view_of([TWO], replace(demand, constraints=(Need(HOST, 2, "request_resources"),)))) == [TWO]


def test_a_slice_that_is_reserved_by_its_head_has_room_on_all_hosts() -> None:
    """As JaxTrainer asks: a reservation, and `request_resources` for each of its workers."""
    demand = Demand(gangs=(Gang("g", Strategy.PACK, (head("v4-16"),)),))
    for count, slices in ((1, 1), (2, 1), (3, 2)):
        wanted = replace(demand, constraints=(Need(HOST, count, "request_resources"),))
        assert bought(view_of([TWO], wanted)) == [TWO] * slices
        caps = [Cap("one", lambda _: True, max_nodes=1)]
        assert len(make_plan(view_of([TWO], wanted), policies=(Buy(caps=caps),)).launches) == 1


def test_a_slice_may_be_asked_for_by_its_topology() -> None:
    shape = Shape.of({"TPU": 4}, {LABEL_TPU_TOPOLOGY: "2x2x4"})
    assert bought(view_of([ONE, TWO, FOUR], Demand(gangs=(Gang("g", Strategy.SPREAD, (shape,) * 4),)))) == [FOUR]
    assert bought(view_of([ONE, TWO, FOUR], Demand((Need(shape, 1, "t"),)))) == [FOUR]


def test_wired_hosts_come_before_single_ones_for_a_gang_and_not_for_single_requests() -> None:
    dear = replace(TWO, price_uusd_per_h=9_000_000)
    assert bought(view_of([ONE, dear], Demand(gangs=(Gang("g", Strategy.SPREAD, (HOST, HOST)),)))) == [dear]
    assert bought(view_of([ONE, dear], Demand((Need(HOST, 2, "t"),)))) == [ONE, ONE]


def test_a_gang_larger_than_any_slice_gets_several_in_one_region() -> None:
    far = tpu("europe-west4-a", 2, 5.0)
    gang = Gang("g", Strategy.SPREAD, (HOST,) * 4)
    assert bought(view_of([TWO], Demand(gangs=(gang,)))) == [TWO, TWO]
    for offers in ([TWO, far], [TWO, far, make_offer("aws/us-east-1a/m5")]):
        regions = {offer.market.region for offer in bought(view_of(offers, Demand(gangs=(gang,))))}
        assert len(regions) == 1


def test_no_gang_is_bought_in_two_regions_although_each_has_half_of_it() -> None:
    far, gang = tpu("europe-west4-a", 2, 5.0), Gang("g", Strategy.SPREAD, (HOST,) * 4)
    caps = [Cap("one each", lambda offer, mine=mine: offer.market == mine.market, max_nodes=1) for mine in (TWO, far)]
    view = view_of([TWO, far], Demand(gangs=(gang,)))
    assert make_plan(view, policies=(Buy(caps=caps),)).launches == []


def test_a_reservation_is_bought_in_the_region_where_it_is_cheapest() -> None:
    cheap, gang = tpu("us-west4-a", 2, 5.0), Gang("g", Strategy.PACK, (head("v4-16"),))
    for others in ([], [make_offer("aws/us-east-1a/m5"), make_offer("gcp/us-west1-a/n2")]):
        assert bought(view_of([TWO, cheap, *others], Demand(gangs=(gang,)))) == [cheap]


def test_what_names_a_slice_is_bought_no_other() -> None:
    """The slice that was reserved is gone: nothing that is sold has its name, and its hosts are not to be replaced."""
    shape = Shape.of({"TPU": 4}, {LABEL_TPU_SLICE: "tw-gone"})
    assert bought(view_of([ONE, TWO], Demand(gangs=(Gang("g", Strategy.SPREAD, (shape, shape)),)))) == []


def test_a_half_used_slice_serves_what_fits_on_the_other_half() -> None:
    rays = tuple(
        RayNode(
            f"{host.number:056x}",
            "n1",
            RayStatus.RUNNING if host.number else RayStatus.IDLE,
            {**TWO.resources, **host.resources},
            {"CPU": 8.0} if host.number else {**TWO.resources, **host.resources},
            {**TWO.labels, **host.labels},
        )
        for host in tpu_hosts(TWO, "n1")
    )
    record = NodeRecord("n1", TWO, "local", "t", NodeState.READY, 1.0, 1.0, joined_at_s=1.0)
    node = NodeView(record, None, as_one(rays, 2), rays)
    assert bought(view_of([ONE, TWO], Demand((Need(HOST, 1, "t"),)), (node,))) == []
    gang = Gang("g", Strategy.STRICT_SPREAD, (HOST, HOST))
    assert bought(view_of([ONE, TWO], Demand(gangs=(gang,)), (node,))) == [TWO]


def test_a_sold_out_slice_is_had_in_another_zone_within_the_tick() -> None:
    other = tpu("us-central2-c", 2, 8.0)
    w = World((TWO, other), SETTINGS)
    w.cloud.sold_out.add(TWO.market.key)
    w.ray.submit_gang([dict(HOST.resources)] * 2, Strategy.SPREAD)
    w.loop.tick()
    assert [node.offer for node in w.cloud.alive()] == [other]


def test_a_training_job_is_granted_the_hosts_of_a_slice() -> None:
    wish = Wish("job-1", 1, 8, {"TPU": 4.0})
    assert allocate([wish], Limits(max_nodes=1), [TWO])["job-1"].replicas == 2
    assert allocate([wish], Limits(max_uusd_per_h=12_000_000), [FOUR])["job-1"].replicas == 4


REQUESTS = st.lists(st.sampled_from(["head-2", "head-4", "gang-2", "gang-4", "host", "chip"]), min_size=1, max_size=4)


@settings(max_examples=15)
@given(REQUESTS, st.sampled_from([0.0, 4.0]))
def test_every_demand_is_bought_for_once_served_and_given_back(requests: list[str], host_gap_s: float) -> None:
    w = World((ONE, TWO, FOUR), SETTINGS)
    w.ray.host_gap_s = host_gap_s
    for request in requests:
        kind, _, size = request.partition("-")
        if kind == "head":
            shape = head(f"v4-{8 * int(size)}")
            w.ray.submit_gang([dict(shape.resources)], Strategy.PACK, {LABEL_TPU_POD: f"v4-{8 * int(size)}"})
        elif kind == "gang":
            w.ray.submit_gang([dict(HOST.resources)] * int(size), Strategy.STRICT_SPREAD)
        else:
            w.ray.submit({"TPU": 4.0 if kind == "host" else 1.0})
    w.loop.tick()
    first = len([event for event in w.events if isinstance(event, LaunchRequested)])
    w.run(90)
    assert w.ray.waiting == 0
    assert len([event for event in w.events if isinstance(event, LaunchRequested)]) == first
    assert all(node.state is NodeState.READY for node in w.fleet.alive_nodes)
    w.ray.finish()
    w.run(60, interval_s=2)
    assert w.cloud.alive() == []
