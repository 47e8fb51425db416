"""The nodes of a view as slots: what counts as room, in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.packing_rooms import Rooms, Slot
from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Labels, Offer, Resources

# Ray's labels of a slice. The first host brings a resource that reserves the slice as a whole, as Ray names it.
LABEL_TPU_WORKER = "ray.io/tpu-worker-id"
LABEL_TPU_POD = "ray.io/tpu-pod-type"

_TAKES_WORK = (RayStatus.RUNNING, RayStatus.IDLE)


def slots_of(view: View, gone: frozenset[str] = frozenset()) -> list[Slot]:
    """Room that counts. In the order in which it was asked for, whether it is there or still coming: first-fit over
    the same order finds at the next tick the places for which this tick bought, and so buys nothing twice."""
    found = _foreign_slots(view)
    hosts = _Hosts(view)
    slices: dict[str, list[RayNode]] | None = None
    for node in view.nodes:
        if node.is_leaving or node.launch_id in gone:
            continue
        offer, ray = node.requested.offer, node.ray
        if offer.hosts > 1:
            slices = _by_launch_id(view) if slices is None else slices
            found.extend(_slice_slots(node, slices.get(node.launch_id, []), hosts))
        elif ray is not None and ray.status in _TAKES_WORK:
            found.append(Slot(node.launch_id, ray.ray_node_id, ray.available, ray.total, ray.labels, offer))
        elif node.is_coming:
            found.extend(hosts.of(offer, node.launch_id))
    return found


def new_slots(offers: Sequence[Offer], view: View) -> list[Slot]:
    """What is about to be bought, as it will look at the next tick."""
    hosts = _Hosts(view)
    return [slot for number, offer in enumerate(offers) for slot in hosts.of(offer, f"new:{number}")]


class _Hosts:
    """What nodes of an offer will bring; thought of once for all that are alike."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[Offer, list[tuple[Resources, Labels]]] = {}

    def of(self, offer: Offer, name: str) -> list[Slot]:
        if offer not in self._known:
            self._known[offer] = hosts_of(offer, self._view)
        return [Slot(name, "", room, room, labels, offer) for room, labels in self._known[offer]]


def hosts_of(offer: Offer, view: View) -> list[tuple[Resources, Labels]]:
    """Each host of an offer: one, or as many as the slice has."""
    room, labels = view.resources_of(offer), offer.labels
    if offer.hosts == 1:
        return [(room, labels)]
    pod = offer.market.instance_type.removeprefix("tpu-")
    found: list[tuple[Resources, Labels]] = []
    for number in range(offer.hosts):
        mine = {**room, f"TPU-{pod}-head": 1.0} if number == 0 else room
        found.append((mine, {**labels, LABEL_TPU_POD: pod, LABEL_TPU_WORKER: str(number)}))
    return found


def with_room(slots: Sequence[Slot], demand: Demand) -> list[Slot]:
    """Without the nodes on which nothing of the demand fits, in the same order: in a large cluster most are full. Nodes
    that hold a part of a gang stay, since they tell where it lies."""
    rooms = Rooms(slots)
    keep = np.zeros(len(rooms), np.bool_)
    for shape in _smallest(_shapes(demand)):
        keep |= rooms.copies(shape) > 0
    placed = {ray_id for gang in demand.gangs for ray_id in gang.placed_on}
    if not placed:
        return [slots[index] for index in np.flatnonzero(keep).tolist()]
    return [slot for slot, kept in zip(slots, keep.tolist(), strict=True) if kept or slot.ray_node_id in placed]


def _shapes(demand: Demand) -> Iterable[Shape]:
    bundles = {bundle for gang in demand.gangs for bundle in set(gang.bundles)}
    return {Shape(shape.resources) for shape in (*bundles, *(need.shape for need in demand.needs))}


def _smallest(shapes: Iterable[Shape]) -> list[Shape]:
    """Those that no other one fits into: where none of these fits, nothing does."""
    found: list[dict[str, float]] = []
    for shape in sorted(shapes, key=lambda shape: (len(shape.resources), shape.resources)):
        amounts = dict(shape.resources)
        if not any(all(amounts.get(key, 0.0) >= amount for key, amount in least.items()) for least in found):
            found.append(amounts)
    return [Shape.of(amounts) for amounts in found]


def _slice_slots(node: NodeView, in_ray: Sequence[RayNode], hosts: _Hosts) -> list[Slot]:
    """A slice is room when it is coming, or as far as its hosts are in Ray."""
    offer, alive = node.requested.offer, [ray for ray in in_ray if ray.status in _TAKES_WORK]
    if alive:
        return [Slot(node.launch_id, ray.ray_node_id, ray.available, ray.total, ray.labels, offer) for ray in alive]
    return hosts.of(offer, node.launch_id) if node.is_coming else []


def _by_launch_id(view: View) -> dict[str, list[RayNode]]:
    found: dict[str, list[RayNode]] = {}
    for node in view.snapshot.nodes if view.snapshot else ():
        found.setdefault(node.launch_id, []).append(node)
    return found


def _foreign_slots(view: View) -> list[Slot]:
    """The head, and machines that somebody added: room, but never ours to buy or to end."""
    ours = {node.ray.ray_node_id for node in view.nodes if node.ray is not None}
    return [
        Slot(f"ray:{node.ray_node_id}", node.ray_node_id, node.available, node.total, node.labels)
        for node in (view.snapshot.nodes if view.snapshot else ())
        if not node.launch_id and node.status in _TAKES_WORK and node.ray_node_id not in ours
    ]
