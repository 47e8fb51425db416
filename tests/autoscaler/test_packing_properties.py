"""Packing and buying over random clusters: what must hold whatever is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.packing import Packing, Slot, new_slots, slots_of, together
from tradewind.autoscaler.packing_kinds import by_kind
from tradewind.autoscaler.packing_rules import pieces_of
from tradewind.autoscaler.packing_stock import Cap
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.policies import idle, lost, notice
from tradewind.autoscaler.policies.buy import Buy
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.shape import Shape, take
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings, NodeView, View
from tradewind.events import DrainRequested, NodeJoined
from tradewind.model import LABEL_ACCELERATOR, LABEL_MARKET_TYPE, LABEL_REGION, Capacity, Offer
from tradewind.states import NodeState

ZONES = ("us-east-1a", "us-east-1b", "eu-west-1a", "ap-south-1c")
UNLIMITED = LoopSettings(fleet="test", limits=Limits(launches_per_minute=None))

shapes = st.builds(
    lambda cpus, gpus, spot: Shape.of({"CPU": cpus, "GPU": gpus}, {LABEL_MARKET_TYPE: "spot"} if spot else None),
    st.sampled_from([0.5, 1, 2, 3, 5]),
    st.sampled_from([0, 0, 0.25, 1, 2]),
    st.booleans(),
)
needs = st.lists(st.builds(Need, shapes, st.integers(1, 9), st.sampled_from("ab")), max_size=5)


def gangs_of(most: int) -> st.SearchStrategy[list[Gang]]:
    alike = st.builds(lambda shape, count: (shape,) * count, shapes, st.integers(1, 4))
    mixed = st.lists(shapes, min_size=1, max_size=3).map(tuple)
    one = st.tuples(st.sampled_from(list(Strategy)), alike | mixed, st.integers(1, 3))
    return st.lists(one, max_size=most).map(
        lambda kinds: [
            Gang(f"{k:02}{n}", strategy, bundles)
            for k, (strategy, bundles, many) in enumerate(kinds)
            for n in range(many)
        ]
    )


offers = st.lists(
    st.builds(
        lambda zone, cpus, gpus, price, capacity: make_offer(
            f"aws/{zone}/m{cpus}-{gpus}", cpus=cpus, gpus=gpus, usd_per_h=price, capacity=capacity
        ),  # a type has one size everywhere
        st.sampled_from(ZONES),
        st.integers(1, 9),
        st.sampled_from([0, 0, 1, 4]),
        st.sampled_from([0.05, 0.1, 0.11, 0.2, 0.5]),
        st.sampled_from(list(Capacity)),
    ),
    max_size=6,
    unique_by=lambda offer: offer.market.key,
)
rooms = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0, 0.5, 1, 2]), st.sampled_from(ZONES)), max_size=6)


def demand_with(needs: Sequence[Need], gangs: Sequence[Gang]) -> Demand:
    return Demand(tuple(needs), tuple(gangs))


def node_of(number: int, offer: Offer, ray: RayNode | None) -> NodeView:
    state = NodeState.READY if ray else NodeState.BOOTING
    joined_s = 1.0 if ray else None
    return NodeView(NodeRecord(f"n{number:03}", offer, "local", "t", state, 1.0, 1.0, joined_at_s=joined_s), None, ray)


def view_of(
    demand: Demand, offers: Sequence[Offer], rooms: Sequence[tuple[int, float, str]] = (), limits: Limits | None = None
) -> View:
    nodes = []
    for number, (cpus, gpus, zone) in enumerate(rooms):
        offer = make_offer(f"aws/{zone}/old", cpus=8, gpus=2, usd_per_h=1.0)
        free = {"CPU": float(cpus), "GPU": gpus}
        ray = RayNode(f"{number:056x}", f"n{number:03}", RayStatus.RUNNING, offer.resources, free, offer.labels)
        nodes.append(node_of(number, offer, ray))
    return View(
        now_s=100.0,
        settings=replace(UNLIMITED, limits=limits or UNLIMITED.limits),
        nodes=tuple(nodes),
        snapshot=RaySnapshot(nodes=tuple(node.ray for node in nodes if node.ray)),
        demand=demand,
        offers=tuple(offers),
    )


def with_launches(view: View, plan: Plan) -> View:
    """The next tick: what was bought is booting, nothing else has changed."""
    first = len(view.nodes)
    new = [node_of(first + number, launch.offer, None) for number, launch in enumerate(plan.launches)]
    return replace(view, nodes=(*view.nodes, *new))


# --- the reference --------------------------------------------------------------------------------------------------


class ReferencePacker:
    """First-fit as plain as it can be, one request at a time; one region, nothing is bought."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots, self.free = slots, [dict(slot.free) for slot in slots]
        self.used: set[str] = set()
        self.unplaced: list[tuple[str, int]] = []

    def fill(self, demand: Demand) -> ReferencePacker:
        for gang in (gang for _, gangs in by_kind(demand.gangs) for gang in gangs):
            if not self.place_gang(gang):
                self.unplaced.append((gang.gang_id, len(gang.bundles)))
        for need in demand.needs:
            left = sum(self.first(need.shape, range(len(self.slots))) is None for _ in range(need.count))
            self.unplaced += [(str(need.shape), left)] if left else []
        return self

    def first(self, shape: Shape, indices: Sequence[int]) -> int | None:
        for index in indices:
            if shape.allows(self.slots[index].labels) and shape.copies_in(self.free[index]):
                take(self.free[index], shape)
                self.used.add(self.slots[index].name)
                return index
        return None

    def place_gang(self, gang: Gang) -> bool:
        before, used, mine = [dict(free) for free in self.free], set(self.used), list[int]()
        for piece in [together(gang.bundles)] if gang.strategy is Strategy.STRICT_PACK else gang.bundles:
            others = [index for index in range(len(self.slots)) if index not in mine]
            index = self.first(piece, others if gang.strategy is Strategy.STRICT_SPREAD else [*sorted(mine), *others])
            if index is None:
                self.free, self.used = before, used
                return False
            mine.append(index)
        return True


@settings(max_examples=100, deadline=None)
@given(needs=needs, gangs=gangs_of(4), rooms=rooms)
def test_the_packer_agrees_with_a_plain_one(
    needs: list[Need], gangs: list[Gang], rooms: list[tuple[int, float, str]]
) -> None:
    one_region = [(cpus, gpus, ZONES[0]) for cpus, gpus, _ in rooms]
    by_shape = {need.shape: need for need in needs}  # needs of one shape share a look: told apart only by who asks
    demand = demand_with(list(by_shape.values()), gangs)
    slots = slots_of(view_of(demand, [], one_region))
    ours, plain = Packing(slots).fill(demand), ReferencePacker(slots).fill(demand)
    assert ours.used == plain.used
    left = [
        (str(each.shape), each.count) if isinstance(each, Need) else (each.gang_id, len(each.bundles))
        for each in ours.unplaced
    ]
    assert left == plain.unplaced
    for index, free in enumerate(plain.free):
        for key, amount in free.items():
            assert abs(ours.rooms.column(key)[index] - amount) < 1e-6


# --- plans ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(needs=needs, gangs=gangs_of(3), offers=offers, rooms=rooms)
def test_what_was_bought_is_not_bought_again(
    needs: list[Need], gangs: list[Gang], offers: list[Offer], rooms: list[tuple[int, float, str]]
) -> None:
    view = view_of(demand_with(needs, gangs), offers, rooms)
    plan = make_plan(view)
    again = make_plan(with_launches(view, plan))
    assert again.launches == []
    assert [hold.subject for hold in again.holds] == [hold.subject for hold in plan.holds]


tied_shapes = st.builds(
    lambda cpus, gpus, labels: Shape.of({"CPU": cpus, "GPU": gpus}, labels),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 0, 0.5, 1, 2]),
    st.sampled_from(
        [
            None,
            {LABEL_MARKET_TYPE: "spot"},
            {LABEL_MARKET_TYPE: "on-demand"},
            {LABEL_REGION: "us-east-1"},
            {LABEL_REGION: "eu-west-1"},
            {LABEL_ACCELERATOR: "L4"},
            {LABEL_ACCELERATOR: "H100"},
        ]
    ),
)
tied_offers = st.lists(
    st.builds(
        lambda zone, kind, size, capacity, listed: replace(
            make_offer(
                f"aws/{zone}/{kind or 'cpu'}{size}",
                cpus=4 * size,
                gpus=size if kind else 0,
                accelerator=kind,
                capacity=capacity,
                usd_per_h=size * listed * (0.4 if capacity is Capacity.SPOT else 1.0),
            ),
            on_demand_uusd_per_h=round(size * listed * 1e6),
        ),
        st.sampled_from(ZONES),
        st.sampled_from(["", "L4", "H100"]),
        st.sampled_from([1, 2, 4]),
        st.sampled_from(list(Capacity)),
        st.sampled_from([0.2, 1.0, 1.1, 5.0]),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda offer: offer.market.key,
)


@settings(max_examples=200, deadline=None)
@given(
    needs=st.lists(st.builds(Need, tied_shapes, st.integers(1, 30), st.just("a")), max_size=8),
    offers=tied_offers,
    used=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3)), min_size=2, max_size=8),
    moves=st.lists(st.sampled_from([0.25, 0.9, 1.0, 1.1, 4.0]), min_size=8, max_size=8),
)
def test_what_is_tied_to_labels_is_not_bought_again_when_spot_prices_move(
    needs: list[Need], offers: list[Offer], used: list[tuple[int, int]], moves: list[float]
) -> None:
    """Neither while what was bought is coming, nor when half of it has joined."""
    view = view_of(demand_with(needs, []), offers)
    there = [offers[kind % len(offers)] for kind, _ in used]
    nodes = [joined(number, offer, used[number][1]) for number, offer in enumerate(there)]
    view = replace(view, nodes=tuple(nodes), snapshot=RaySnapshot(nodes=tuple(node.ray for node in nodes if node.ray)))
    plan = make_plan(view)
    later = replace(with_launches(view, plan), offers=tuple(map(moved, offers, moves)))
    assert make_plan(later).launches == []
    half = [
        joined(number, node.requested.offer, 0) if node.ray is None and number % 2 else node
        for number, node in enumerate(later.nodes)
    ]
    seen = RaySnapshot(nodes=tuple(node.ray for node in half if node.ray))
    assert make_plan(replace(later, nodes=tuple(half), snapshot=seen)).launches == []


def joined(number: int, offer: Offer, used_cpus: int) -> NodeView:
    free = {**offer.resources, "CPU": offer.resources["CPU"] - used_cpus}
    ray = RayNode(f"{number:056x}", f"n{number:03}", RayStatus.RUNNING, offer.resources, free, offer.labels)
    return node_of(number, offer, ray)


def moved(offer: Offer, move: float) -> Offer:
    """Lists stay as they are; spot prices do not."""
    is_spot = offer.market.capacity is Capacity.SPOT
    return replace(offer, price_uusd_per_h=round((offer.price_uusd_per_h or 0) * move)) if is_spot else offer


@settings(max_examples=100, deadline=None)
@given(
    needs=needs,
    gangs=gangs_of(3),
    offers=offers,
    rooms=rooms,
    limits=st.builds(Limits, st.none() | st.integers(0, 12), st.none() | st.integers(0, 3_000_000), st.integers(0, 9)),
    quota=st.integers(0, 4),
    region_uusd=st.integers(0, 1_000_000),
    share=st.none() | st.sampled_from([0.3, 0.5]),
)
def test_no_cap_is_passed(
    needs: list[Need],
    gangs: list[Gang],
    offers: list[Offer],
    rooms: list[tuple[int, float, str]],
    limits: Limits,
    quota: int,
    region_uusd: int,
    share: float | None,
) -> None:
    caps = (
        Cap("quota", offers=lambda offer: offer.vcpus == 4, max_nodes=quota),
        Cap("region", offers=lambda offer: offer.market.region == "us-east-1", max_uusd_per_h=region_uusd),
        Cap("tenant", sources=lambda source: source == "a", max_nodes=2, used_nodes=0),
    )
    view = view_of(demand_with(needs, gangs), offers, rooms, limits)
    policies = (lost.decide, notice.decide, Buy(caps=caps, max_market_share=share), idle.decide)
    launches = make_plan(view, policies=policies).launches
    old_uusd = len(rooms) * 1_000_000
    new_uusd = sum(launch.offer.price_uusd_per_h or 0 for launch in launches)
    assert limits.max_nodes is None or not launches or len(launches) + len(rooms) <= limits.max_nodes
    assert limits.max_uusd_per_h is None or not launches or old_uusd + new_uusd <= limits.max_uusd_per_h
    assert len(launches) <= (limits.launches_per_minute or 0)
    assert sum(launch.offer.vcpus == 4 for launch in launches) <= quota
    here = [launch.offer.price_uusd_per_h or 0 for launch in launches if launch.offer.market.region == "us-east-1"]
    old_here = sum(1_000_000 for _, _, zone in rooms if zone.startswith("us-east-1"))
    assert not here or old_here + sum(here) <= region_uusd


@settings(max_examples=100, deadline=None)
@given(gangs=gangs_of(4), offers=offers, rooms=rooms, limits=st.builds(Limits, st.none() | st.integers(0, 9)))
def test_a_gang_lies_as_a_whole_in_one_region_or_not_at_all(
    gangs: list[Gang], offers: list[Offer], rooms: list[tuple[int, float, str]], limits: Limits
) -> None:
    view = view_of(demand_with([], gangs), offers, rooms, limits)
    plan = make_plan(view)
    slots = [*slots_of(view), *new_slots([launch.offer for launch in plan.launches], view)]
    packing = Packing(slots).fill(view.demand)
    waiting = {left.gang_id for left in packing.unplaced if isinstance(left, Gang)}
    assert {hold.subject.split()[1] for hold in plan.holds} == waiting
    for gang in gangs:
        if gang.gang_id not in waiting:
            _check_lies_together(gang, packing, slots)


def _check_lies_together(gang: Gang, packing: Packing, slots: Sequence[Slot]) -> None:
    mine: list[int] = []
    for lay in packing.lays:
        sources = [*lay.sources] * (len(lay.slots) // len(lay.sources))
        mine += [
            index for index, source in zip(lay.slots.tolist(), sources, strict=True) if source == f"gang {gang.gang_id}"
        ]
    assert len(mine) == len(pieces_of(gang))
    assert len({slots[index].labels[LABEL_REGION] for index in mine}) == 1
    if gang.strategy is Strategy.STRICT_SPREAD:
        assert len(set(mine)) == len(mine)


@settings(max_examples=100, deadline=None)
@given(needs=needs, gangs=gangs_of(3), offers=offers, rooms=rooms)
def test_what_an_offer_can_serve_is_served(
    needs: list[Need], gangs: list[Gang], offers: list[Offer], rooms: list[tuple[int, float, str]]
) -> None:
    view = view_of(demand_with(needs, gangs), offers, rooms)
    for hold in make_plan(view).holds:
        name = hold.subject.split()[1]
        gang = next((gang for gang in gangs if gang.gang_id == name and hold.subject.startswith("gang")), None)
        if gang is None:
            assert hold.shape is not None
            assert not any(hold.shape.allows(o.labels) and hold.shape.copies_in(o.resources) for o in offers)
        else:
            for region in {offer.market.region for offer in offers}:
                here = [offer for offer in offers if offer.market.region == region]
                fits = [any(p.allows(o.labels) and p.copies_in(o.resources) for o in here) for p in pieces_of(gang)]
                assert not all(fits)


@settings(max_examples=15, deadline=None)
@given(needs=needs, gangs=gangs_of(2), offers=offers)
def test_a_node_is_not_sold_within_its_minimum_life_and_constant_demand_settles(
    needs: list[Need], gangs: list[Gang], offers: list[Offer]
) -> None:
    world = World(offers, replace(UNLIMITED, idle_timeout_s=4, min_node_life_s=30))
    for need in needs:
        labels = {LABEL_MARKET_TYPE: "spot"} if need.shape.selectors else None
        world.ray.submit(dict(need.shape.resources), need.count, labels)
    for gang in gangs:
        world.ray.submit_gang([dict(bundle.resources) for bundle in gang.bundles], gang.strategy)
    world.run(100, interval_s=4)
    calls, alive = len(world.cloud.launch_calls), len(world.cloud.alive())
    world.run(100, interval_s=4)
    assert (len(world.cloud.launch_calls), len(world.cloud.alive())) == (calls, alive)
    joined_s = {event.launch_id: event.at_s for event in world.events if isinstance(event, NodeJoined)}
    drained_s = {event.launch_id: event.at_s for event in world.events if isinstance(event, DrainRequested)}
    assert all(at_s - joined_s[launch_id] >= 30 for launch_id, at_s in drained_s.items())


def submitted(needs: Sequence[Need], gangs: Sequence[Gang], offers: Sequence[Offer], settings: LoopSettings) -> World:
    world = World(offers, settings)
    for need in needs:
        labels = {LABEL_MARKET_TYPE: "spot"} if need.shape.selectors else None
        world.ray.submit(dict(need.shape.resources), need.count, labels)
    for gang in gangs:
        world.ray.submit_gang([dict(bundle.resources) for bundle in gang.bundles], gang.strategy)
    return world


@settings(max_examples=15, deadline=None)
@given(needs=needs, gangs=gangs_of(2), offers=offers, stockout=st.integers(0, 5))
def test_one_need_is_one_launch_while_nodes_boot_prices_move_and_markets_sell_out(
    needs: list[Need], gangs: list[Gang], offers: list[Offer], stockout: int
) -> None:
    world = submitted(needs, gangs, offers, UNLIMITED)
    world.loop.tick()
    calls = len(world.cloud.launch_calls)
    for number, offer in enumerate(offers):
        if number == stockout:
            world.cloud.sold_out.add(offer.market.key)
        world.cloud.set_price(offer.market.key, 0.05 * (1 + (number * 7 + stockout) % 5))
        world.run(2, interval_s=1)  # less than booting takes
    assert len(world.cloud.launch_calls) == calls


@settings(max_examples=30, deadline=None)
@given(needs=needs, gangs=gangs_of(3), offers=offers, rate=st.integers(1, 4))
def test_the_rate_of_launches_delays_and_changes_nothing_else(
    needs: list[Need], gangs: list[Gang], offers: list[Offer], rate: int
) -> None:
    """Minute after minute a part is bought, until the same is served as at once; what cannot be had is not begun."""
    view = view_of(demand_with(needs, gangs), offers)
    at_once = make_plan(view)
    slow = replace(view, settings=replace(UNLIMITED, limits=Limits(launches_per_minute=rate)))
    plan = make_plan(slow)
    while plan.launches:
        assert len(plan.launches) <= rate
        slow = with_launches(slow, plan)
        plan = make_plan(slow)
    assert [hold.subject for hold in plan.holds] == [hold.subject for hold in at_once.holds]
