"""The nodes of a view as slots: what counts as room, in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.packing_rooms import Slot
from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus
from tradewind.autoscaler.shape import EPSILON
from tradewind.autoscaler.slices import LABEL_TPU_WORKER, is_tpu, tpu_hosts
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Labels, Offer, Resources

_TAKES_WORK = (RayStatus.RUNNING, RayStatus.IDLE)


def slots_of(view: View, gone: frozenset[str] = frozenset(), demand: Demand | None = None) -> list[Slot]:
    """Room that counts. In the order in which it was asked for, whether it is there or still coming: first-fit over
    the same order finds at the next tick the places for which this tick bought, and so buys nothing twice.

    With a demand, nodes on which nothing of it fits are left out: in a large cluster most are full."""
    hosts, useful = _Hosts(view), _Useful.of(demand)
    found = [slot for slot in _foreign_slots(view) if useful.at(slot.free, slot.ray_node_id)]
    for node in useful.among(view.nodes):
        offer, ray = node.requested.offer, node.ray
        if node.is_leaving or node.launch_id in gone:
            continue
        if offer.hosts > 1:
            found.extend(_slice_slots(node, hosts, useful))
        elif ray is not None and ray.status in _TAKES_WORK:
            found.append(Slot(node.launch_id, ray.ray_node_id, ray.available, ray.total, ray.labels, offer))
        elif node.is_coming:
            found.extend(hosts.of(offer, node.launch_id))
    return found


@dataclass(frozen=True, slots=True)
class _Useful:
    """Whether anything of a demand fits. Nodes that hold a part of a gang are always kept: they tell where it lies."""

    least: Sequence[Sequence[tuple[str, float]]] | None  # None: keep all
    key: str = ""  # a resource of which everything needs so much: the quickest way to say no
    amount: float = 0.0
    placed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, demand: Demand | None) -> _Useful:
        if demand is None:
            return cls(None)
        placed = frozenset(ray_id for gang in demand.gangs for ray_id in gang.placed_on)
        least = [{key: amount - EPSILON for key, amount in each} for each in _smallest(_asked(demand))]
        common = sorted(set.intersection(*(set(each) for each in least))) if least else []
        amount = min(each[common[0]] for each in least) if common else 0.0
        return cls([tuple(each.items()) for each in least], common[0] if common else "", amount, placed)

    def among(self, nodes: Sequence[NodeView]) -> list[NodeView]:
        """Without single hosts on which nothing fits. The quick question first, and without calls: this runs over all
        nodes, and rules out most."""
        key, amount, placed = self.key, self.amount, self.placed
        maybe: Sequence[NodeView] = nodes
        if key:
            maybe = [
                node
                for node in nodes
                if (ray := node.ray) is None
                or ray.available.get(key, 0.0) >= amount
                or node.hosts
                or (placed and ray.ray_node_id in placed)
            ]
        return [
            node for node in maybe if (ray := node.ray) is None or node.hosts or self.at(ray.available, ray.ray_node_id)
        ]

    def at(self, free: Resources, ray_node_id: str) -> bool:
        if self.least is None or ray_node_id in self.placed:
            return True
        if self.key and free.get(self.key, 0.0) < self.amount:
            return False
        return any(all(free.get(key, 0.0) >= amount for key, amount in each) for each in self.least)


def new_slots(offers: Sequence[Offer], view: View) -> list[Slot]:
    """What is about to be bought, as it will look at the next tick."""
    hosts = _Hosts(view)
    return [slot for number, offer in enumerate(offers) for slot in hosts.of(offer, f"new:{number}")]


class _Hosts:
    """What nodes of an offer will bring; thought of once for all that are alike. TPUs know their slice's name."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._known: dict[tuple[int, str], list[tuple[Resources, Labels]]] = {}  # by identity: slow to hash

    def of(self, offer: Offer, name: str) -> list[Slot]:
        key = (id(offer), name if is_tpu(offer) else "")
        if key not in self._known:
            self._known[key] = hosts_of(offer, self._view, key[1])
        return [Slot(name, "", room, room, labels, offer) for room, labels in self._known[key]]


def hosts_of(offer: Offer, view: View, slice_name: str = "") -> list[tuple[Resources, Labels]]:
    """Each host of an offer: one, or as many as the slice has."""
    room, labels = view.resources_of(offer), offer.labels
    tpus = tpu_hosts(offer, slice_name)
    if not tpus:
        return [(room, labels)] * offer.hosts
    return [({**room, **tpu.resources}, {**labels, **tpu.labels}) for tpu in tpus]


def _asked(demand: Demand) -> set[tuple[tuple[str, float], ...]]:
    """What is asked for, without selectors: bundles alone, since a gang asks for more than any of them."""
    bundles = {id(bundle): bundle for gang in demand.gangs for bundle in gang.bundles}  # most are the same object
    return {shape.resources for shape in (*bundles.values(), *(need.shape for need in demand.needs))}


def _smallest(asked: Iterable[tuple[tuple[str, float], ...]]) -> list[tuple[tuple[str, float], ...]]:
    """Those that no other one fits into: where none of these fits, nothing does."""
    found: list[tuple[tuple[str, float], ...]] = []
    for resources in sorted(asked, key=lambda each: (len(each), each)):
        amounts = dict(resources)
        if not any(all(amounts.get(key, 0.0) >= amount for key, amount in least) for least in found):
            found.append(resources)
    return found


def _slice_slots(node: NodeView, hosts: _Hosts, useful: _Useful) -> list[Slot]:
    """A slice is room as a whole: the hosts that have joined, and while it is coming, the others as they will be."""
    if node.is_coming:
        joined = {host.labels.get(LABEL_TPU_WORKER): _host_slot(node, host) for host in node.hosts}
        coming = hosts.of(node.requested.offer, node.launch_id)
        return [joined.get(slot.labels.get(LABEL_TPU_WORKER), slot) for slot in coming]
    if node.ray is None or node.ray.status not in _TAKES_WORK:
        return []
    open_hosts = [host for host in node.hosts if host.status in _TAKES_WORK]
    return [_host_slot(node, host) for host in open_hosts if useful.at(host.available, host.ray_node_id)]


def _host_slot(node: NodeView, host: RayNode) -> Slot:
    offer = node.requested.offer
    return Slot(node.launch_id, host.ray_node_id, host.available, host.total, host.labels, offer)


def _foreign_slots(view: View) -> list[Slot]:
    """The head, and machines that somebody added: room, but never ours to buy or to end."""
    return [
        Slot(f"ray:{node.ray_node_id}", node.ray_node_id, node.available, node.total, node.labels)
        for node in (view.snapshot.nodes if view.snapshot else ())
        if not node.launch_id and node.status in _TAKES_WORK
    ]
