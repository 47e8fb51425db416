"""Random clusters, demands and price lists for plan_scale.py, all drawn from one seed. Not a benchmark itself.

Machines are of the families that clouds sell (general, CPU, memory, GPU), in many regions of three clouds, on-demand
and spot. Prices are near the real ones of 2026: a family's price per vCPU and per GPU, times a factor of the region,
times the discount of spot, which differs by market. Nodes that exist are mostly full, as they are when requests wait;
the rest has some room.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from tradewind.autoscaler.demand import demand_of
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.providers.base import CloudNode, CloudState
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.shape import LabelRule, Shape
from tradewind.autoscaler.view import Limits, LoopSettings, NodeView, View
from tradewind.model import LABEL_ACCELERATOR, LABEL_MARKET_TYPE, LABEL_REGION, Capacity, Market, Offer
from tradewind.states import NodeState

SCENARIOS = ("uniform", "mixed", "gangs", "labels")
NOW_S = 1_000_000.0
GIB = float(2**30)
NUM_PINNED = 80  # distinct requests with selectors, in the scenario "labels"

# family: (vCPU sizes, GiB per vCPU, accelerator, vCPUs per accelerator, USD/h per vCPU, USD/h per accelerator)
FAMILIES = {
    "general": ((2, 4, 8, 16, 32, 64), 4, "", 0, 0.048, 0.0),
    "cpu": ((2, 4, 8, 16, 36, 72), 2, "", 0, 0.0425, 0.0),
    "memory": ((2, 4, 8, 16, 32, 64), 8, "", 0, 0.063, 0.0),
    "t4": ((4, 8, 16, 48), 4, "T4", 12, 0.045, 0.35),
    "l4": ((4, 8, 16, 48, 96), 4, "L4", 12, 0.045, 0.56),
    "a10g": ((4, 8, 16, 48, 96), 4, "A10G", 12, 0.045, 0.82),
    "v100": ((8, 32, 64), 7.6, "V100", 8, 0.06, 2.5),
    "a100": ((12, 24, 48, 96), 7, "A100", 12, 0.06, 2.9),
    "h100": ((26, 52, 208), 9, "H100", 26, 0.06, 8.0),
}
REGIONS = {
    "aws": ("us-east-1", "us-west-2", "eu-west-1", "ap-south-1"),
    "gcp": ("us-central1", "europe-west4", "asia-east1"),
    "azure": ("eastus", "westeurope", "japaneast"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One input, in our own values; peers.py turns it into Ray's."""

    view: View
    snapshot: RaySnapshot
    scenario: str


def make_case(scenario: str, num_nodes: int, num_requests: int, num_offers: int, seed: int) -> Case:
    draw = random.Random(f"{scenario}/{num_nodes}/{num_requests}/{num_offers}/{seed}")
    offers = make_offers(draw, num_offers)
    nodes, in_ray = _make_nodes(draw, offers, num_nodes)
    pending, gangs = _make_demand(draw, scenario, num_requests, offers)
    head = RayNode("f" * 56, "", RayStatus.RUNNING, {"CPU": 0.0}, {"CPU": 0.0})
    snapshot = RaySnapshot(nodes=(head, *in_ray), pending=pending, gangs=gangs)
    settings = LoopSettings(fleet="bench", limits=Limits(launches_per_minute=None), usable_memory=1.0)
    view = View(NOW_S, settings, nodes, snapshot, demand_of(snapshot), offers)
    return Case(view, snapshot, scenario)


# --- offers -----------------------------------------------------------------------------------------------------


def make_offers(draw: random.Random, count: int) -> tuple[Offer, ...]:
    """`count` different markets; plain machines and GPUs of the common kinds are always among them."""
    region_factor = {(cloud, region): draw.uniform(0.95, 1.35) for cloud, names in REGIONS.items() for region in names}
    found: dict[str, Offer] = {}
    while len(found) < count:
        family = draw.choice(list(FAMILIES))
        cloud, region = draw.choice(list(region_factor))
        zone = f"{region}{draw.choice('abc')}"
        capacity = draw.choice([Capacity.SPOT, Capacity.ON_DEMAND])
        offer = _offer(draw, family, Market(cloud, region, zone, "", capacity), region_factor[cloud, region])
        found.setdefault(offer.market.key, offer)
    return tuple(found.values())


def _offer(draw: random.Random, family: str, place: Market, factor: float) -> Offer:
    sizes, gib_per_vcpu, accelerator, vcpus_each, usd_per_vcpu, usd_per_gpu = FAMILIES[family]
    vcpus = draw.choice(sizes)
    count = float(max(1, vcpus // vcpus_each)) if accelerator else 0.0
    usd = (vcpus * usd_per_vcpu + count * usd_per_gpu) * factor
    price = usd * (draw.uniform(0.25, 0.7) if place.capacity is Capacity.SPOT else 1.0)
    kind = f"{place.cloud}-{family}-{vcpus}"
    return Offer(
        market=Market(place.cloud, place.region, place.zone, kind, place.capacity),
        vcpus=float(vcpus),
        memory_gib=vcpus * gib_per_vcpu,
        accelerator=accelerator,
        accelerator_count=count,
        price_uusd_per_h=round(price * 1e6),
        on_demand_uusd_per_h=round(usd * 1e6),
        price_source="benchmark",
    )


# --- nodes ------------------------------------------------------------------------------------------------------


def _make_nodes(
    draw: random.Random, offers: tuple[Offer, ...], count: int
) -> tuple[tuple[NodeView, ...], list[RayNode]]:
    views, in_ray = [], []
    for number in range(count):
        offer = draw.choice(offers)
        state = draw.choices(["busy", "some room", "idle", "booting"], [94, 4, 1, 1])[0]
        ray = None if state == "booting" else _ray_node(draw, number, offer, state)
        record = NodeRecord(
            launch_id=f"tw-{number:08x}", offer=offer, cell="local", reason="benchmark",
            state=NodeState.BOOTING if ray is None else NodeState.READY,
            requested_at_s=NOW_S - 5000, state_since_s=NOW_S - 4000 if ray else NOW_S - 100,
            launched_at_s=NOW_S - 4000 if ray else NOW_S - 100, joined_at_s=NOW_S - 3900 if ray else None,
        )  # fmt: skip
        cloud = CloudNode(record.launch_id, f"i-{number:08x}", offer, CloudState.RUNNING, NOW_S - 4000, NOW_S - 4000)
        views.append(NodeView(record, cloud, ray))
        in_ray += [] if ray is None else [ray]
    return tuple(views), in_ray


def _ray_node(draw: random.Random, number: int, offer: Offer, state: str) -> RayNode:
    total = offer.resources
    free = {"busy": 0.0, "some room": draw.random(), "idle": 1.0}[state]
    available = {key: amount if free == 1.0 else float(int(amount * free)) for key, amount in total.items()}
    status, idle_s = (RayStatus.IDLE, 500.0) if state == "idle" else (RayStatus.RUNNING, 0.0)
    labels = {**offer.labels, "ray.io/node-id": f"{number:056x}"}
    return RayNode(f"{number:056x}", f"tw-{number:08x}", status, total, available, labels, idle_s)


# --- demand -----------------------------------------------------------------------------------------------------


def _make_demand(
    draw: random.Random, scenario: str, count: int, offers: tuple[Offer, ...]
) -> tuple[tuple[tuple[Shape, int], ...], tuple[Gang, ...]]:
    if scenario == "uniform":
        return ((Shape.of({"CPU": 4.0}), count),), ()
    gangs = _make_gangs(draw, count // 2) if scenario == "gangs" else ()
    singles = count - sum(len(gang.bundles) for gang in gangs)
    if scenario == "labels":  # programs that pin their tasks are fewer than tasks
        kinds = [_pinned(draw, _request(draw), offers) for _ in range(NUM_PINNED)]
        drawn = [draw.choice(kinds) if draw.random() < 0.6 else Shape.of(_request(draw)) for _ in range(singles)]
    else:
        drawn = [Shape.of(_request(draw)) for _ in range(singles)]
    return tuple(sorted(Counter(drawn).items())), gangs


def _request(draw: random.Random) -> dict[str, float]:
    """Not only powers of two, which would fit every machine without waste."""
    kind, cpus = draw.random(), float(draw.choice([1, 1, 2, 3, 4, 6, 8, 12]))
    if kind < 0.4:
        return {"CPU": cpus}
    if kind < 0.7:
        return {"CPU": cpus, "memory": cpus * draw.choice([1, 2, 3, 5, 7]) * GIB}
    if kind < 0.95:
        return {"CPU": cpus, "GPU": float(draw.choice([1, 1, 1, 2, 3, 4]))}
    return {"CPU": 1.0, "GPU": draw.choice([0.2, 0.25, 0.5])}


def _pinned(draw: random.Random, resources: dict[str, float], offers: tuple[Offer, ...]) -> Shape:
    """Spot or on-demand, a cloud's region or another, an accelerator; only what some offer can serve."""
    fitting = [offer for offer in offers if Shape.of(resources).copies_in(offer.resources)]
    like = draw.choice(fitting)
    rules = {
        "market": LabelRule(LABEL_MARKET_TYPE, (str(like.market.capacity),)),
        "region": LabelRule(LABEL_REGION, (like.market.region,)),
        "gpu": LabelRule(
            LABEL_ACCELERATOR, (like.accelerator,) if like.accelerator else ("H100",), not like.accelerator
        ),
    }
    first = rules[draw.choice(list(rules))]
    if draw.random() < 0.3:  # an alternative that is less liked
        return Shape.of(resources, selectors=[(first,), (rules[draw.choice(list(rules))],)])
    return Shape.of(resources, selectors=[(first,)])


def _make_gangs(draw: random.Random, num_bundles: int) -> tuple[Gang, ...]:
    """Each fits into one region: bundles are of sizes that every region has."""
    found, left = [], num_bundles
    while left > 0:
        size = min(left, draw.choice([2, 4, 8]))
        strategy = draw.choice(list(Strategy))
        bundle = draw.choice([{"CPU": 4.0, "GPU": 1.0}, {"CPU": 2.0, "memory": 8 * GIB}, {"CPU": 8.0, "GPU": 2.0}])
        if strategy is Strategy.STRICT_PACK:
            size = min(size, 4)
        found.append(Gang(f"{draw.getrandbits(128):032x}", strategy, (Shape.of(bundle),) * size, f"job-{len(found)}"))
        left -= size
    return tuple(found)
