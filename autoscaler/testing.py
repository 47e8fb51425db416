"""Shipped fakes: a clock, a cloud and a Ray cluster in memory, on which the real loop runs in tests and simulations.

They refuse what the real ones refuse: FakeCloud has stock-outs, conflicts, lagging lists and lost answers; FakeRay
schedules by resources, labels and strategies, and refuses to drain a busy node or an id of the wrong form.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.beside import Beside
from tradewind.autoscaler.clock import Clock, FakeClock
from tradewind.autoscaler.fake_ray import FakeRay
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.providers.base import Check, CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import (
    AmbiguousOutcome,
    Conflict,
    InvalidRequest,
    NotFound,
    PriceTooHigh,
    ProviderError,
    Stockout,
)
from tradewind.events import AnyEvent, decode, encode
from tradewind.model import LABEL_LAUNCH_ID, Capacity, EndReason, Market, Offer, Wish

__all__ = ["FakeClock", "FakeCloud", "FakeRay", "HeldCloud", "World", "lost_answer", "make_offer"]


def make_offer(
    name: str = "aws/us-east-1a/m5",
    *,
    usd_per_h: float | None = 0.10,
    cpus: float = 4,
    gpus: float = 0,
    accelerator: str = "",
    capacity: Capacity = Capacity.SPOT,
    memory_gib: float = 16,
) -> Offer:
    """`name` is cloud/zone/type; the region is the zone without its last letter."""
    cloud, zone, kind = name.split("/")
    return Offer(
        market=Market(cloud, zone.rstrip("abcdef").rstrip("-"), zone, kind, capacity),
        vcpus=cpus,
        memory_gib=memory_gib,
        accelerator=accelerator or ("L4" if gpus else ""),
        accelerator_count=gpus,
        price_uusd_per_h=None if usd_per_h is None else round(usd_per_h * 1_000_000),
        price_source="test",
    )


class FakeCloud:
    """Provider and PriceSource. Nodes run `start_s` after the launch and join the Ray `boot_s` after that."""

    name = "fake"

    def __init__(
        self,
        clock: Clock,
        offers: Iterable[Offer],
        *,
        start_s: float = 2.0,
        boot_s: float = 10.0,
        list_lag_s: float = 0.0,
    ) -> None:
        self.clock, self.start_s, self.boot_s, self.list_lag_s = clock, start_s, boot_s, list_lag_s
        self.stock: dict[str, Offer] = {offer.market.key: offer for offer in offers}
        self.sold_out: set[str] = set()  # market keys
        self.group_room = 1_000  # nodes in one placement group
        self.never_boots: set[str] = set()  # market keys whose nodes never join
        # What the next calls raise: (error, whether the launch happens nevertheless)
        self.launch_faults: deque[tuple[Exception, bool]] = deque()
        self.list_faults: deque[Exception] = deque()
        self.launch_calls: list[LaunchSpec] = []
        self.consoles: dict[str, str] = {}  # what machines wrote, by launch id
        self.terminate_calls: list[str] = []
        self._nodes: dict[str, CloudNode] = {}

    # --- Provider ---------------------------------------------------------------------------------------------

    def preflight(self) -> Sequence[Check]:
        return [Check("fake cloud", True, f"{len(self.stock)} offers")]

    def launch(self, spec: LaunchSpec) -> CloudNode:
        self.launch_calls.append(spec)
        error, happens = self.launch_faults.popleft() if self.launch_faults else (None, True)
        if happens:
            node = self._make(spec)
        if error is not None:
            raise error
        return node

    def list_nodes(self) -> Sequence[CloudNode]:
        if self.list_faults:
            raise self.list_faults.popleft()
        now_s = self.clock.now_s()
        self._advance(now_s)
        return [node for node in self._nodes.values() if now_s >= node.created_at_s + self.list_lag_s]

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:
        for launch_id in launch_ids:
            self.terminate_calls.append(launch_id)
            if launch_id in self._nodes:
                self._end(launch_id, reason)

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:  # noqa: ARG002
        wanted = set(launch_ids)
        return [node.launch_id for node in self.alive() if node.launch_id in wanted]

    def list_debris(self) -> Sequence[str]:
        return []

    def delete_debris(self, names: Iterable[str]) -> None:
        if unknown := list(names):
            raise InvalidRequest(f"no such debris: {unknown}")

    def console(self, launch_id: str) -> str:
        if launch_id not in self._nodes:
            raise NotFound(f"no node {launch_id}")
        return f"console of {launch_id}\n{self.consoles.get(launch_id, '')}"

    # --- PriceSource ------------------------------------------------------------------------------------------

    def offers(self, now_s: float) -> Sequence[Offer]:  # noqa: ARG002
        return list(self.stock.values())

    # --- what a test does to it -------------------------------------------------------------------------------

    def set_price(self, market_key: str, usd_per_h: float) -> None:
        self.stock[market_key] = replace(self.stock[market_key], price_uusd_per_h=round(usd_per_h * 1_000_000))

    def preempt(self, launch_id: str, notice_s: float | None = None) -> None:
        if notice_s is None:
            self._end(launch_id, EndReason.PREEMPTED)
        else:
            deadline_s = self.clock.now_s() + notice_s
            self._nodes[launch_id] = replace(self._nodes[launch_id], notice_deadline_s=deadline_s)

    def plant(self, launch_id: str, offer: Offer) -> None:
        """A node with our tag that nobody asked for."""
        now_s = self.clock.now_s()
        self._nodes[launch_id] = CloudNode(launch_id, f"i-{launch_id}", offer, CloudState.RUNNING, now_s, now_s)

    def refuse_late(self, launch_id: str, error: ProviderError) -> None:
        """The cloud accepted it, and then could not make it: its listing tells."""
        node = self._nodes[launch_id]
        gone = {"state": CloudState.GONE, "end": EndReason.CRASHED, "detail": error.message, "refusal": error}
        self._nodes[launch_id] = replace(node, **gone)  # type: ignore[arg-type]

    def forget(self, launch_id: str) -> None:
        """The cloud loses a node and does not say why."""
        del self._nodes[launch_id]

    def alive(self) -> list[CloudNode]:
        self._advance(self.clock.now_s())
        return [node for node in self._nodes.values() if node.state is not CloudState.GONE]

    def booted(self) -> list[CloudNode]:
        """Nodes whose raylet is up."""
        now_s = self.clock.now_s()
        return [
            node
            for node in self.alive()
            if node.billed_from_s is not None
            and now_s >= node.billed_from_s + self.boot_s
            and node.offer.market.key not in self.never_boots
        ]

    def _make(self, spec: LaunchSpec) -> CloudNode:
        key = spec.offer.market.key
        known = self._nodes.get(spec.launch_id)
        if known is not None:
            if known.offer.market != spec.offer.market:
                raise Conflict(f"launch id {spec.launch_id} was used for {known.offer.market}")
            return known
        if not spec.launch_id or spec.labels.get(LABEL_LAUNCH_ID) != spec.launch_id:
            raise InvalidRequest("a launch needs an id, and a label that carries it")
        if key not in self.stock:
            raise InvalidRequest(f"no such market: {key}")
        if key in self.sold_out:
            raise Stockout(f"{key} is sold out", cloud=spec.offer.market.cloud)
        group = spec.placement_group
        if group and sum(node.placement_group == group for node in self.alive()) >= self.group_room:
            raise Stockout(f"there is no more {key} in {group}", cloud=spec.offer.market.cloud)
        price = self.stock[key].price_uusd_per_h
        if spec.max_price_uusd_per_h is not None and (price is None or price > spec.max_price_uusd_per_h):
            raise PriceTooHigh(f"{key} costs more than the limit")
        now_s = self.clock.now_s()
        self._nodes[spec.launch_id] = CloudNode(
            spec.launch_id, f"i-{spec.launch_id}", spec.offer, CloudState.PENDING, now_s, placement_group=group
        )
        return self._nodes[spec.launch_id]

    def _advance(self, now_s: float) -> None:
        for launch_id, node in list(self._nodes.items()):
            starts_s = node.created_at_s + self.start_s
            if node.state is CloudState.PENDING and now_s >= starts_s:
                self._nodes[launch_id] = replace(node, state=CloudState.RUNNING, billed_from_s=starts_s)
            if node.notice_deadline_s is not None and now_s >= node.notice_deadline_s:
                self._end(launch_id, EndReason.PREEMPTED)

    def _end(self, launch_id: str, reason: EndReason) -> None:
        node, now_s = self._nodes[launch_id], self.clock.now_s()
        if node.state is not CloudState.GONE:
            billed_until_s = now_s if node.billed_from_s is not None else None
            self._nodes[launch_id] = replace(node, state=CloudState.GONE, end=reason, billed_until_s=billed_until_s)


class HeldCloud(FakeCloud):
    """Calls whose names are in `held` hang until `let_go`. For loops that make their calls in threads."""

    def __init__(self, clock: Clock, offers: Iterable[Offer]) -> None:
        super().__init__(clock, offers)
        self.held: set[str] = set()
        self.acts_first = False  # a held launch happens at once, only its answer hangs
        self.begun: Counter[str] = Counter()
        self._go = threading.Event()
        self._lock = threading.RLock()

    def let_go(self) -> None:
        """What hangs goes on, and nothing is held any more."""
        self.held.clear()
        go, self._go = self._go, threading.Event()
        go.set()

    def launch(self, spec: LaunchSpec) -> CloudNode:
        if self.acts_first:
            with self._lock:
                node = super().launch(spec)
            self._hang("launch")
            return node
        self._hang("launch")
        with self._lock:
            return super().launch(spec)

    def list_nodes(self) -> Sequence[CloudNode]:
        """What it tells is as of the beginning of the call."""
        with self._lock:
            found = super().list_nodes()
        self._hang("list_nodes")
        return found

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:
        self._hang("terminate")
        with self._lock:
            super().terminate(launch_ids, reason)

    def offers(self, now_s: float) -> Sequence[Offer]:
        self._hang("offers")
        return super().offers(now_s)

    def _hang(self, name: str) -> None:
        go = self._go
        with self._lock:
            self.begun[name] += 1
        if name in self.held:
            go.wait()


@dataclass
class World:
    """A loop on fakes, with an event log in memory (encoded and decoded, as the real one does)."""

    offers: Sequence[Offer]
    settings: LoopSettings = field(default_factory=lambda: LoopSettings(fleet="test", head_address="127.0.0.2:20379"))
    clock: FakeClock = field(default_factory=FakeClock)
    log: list[bytes] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)
    beside: Beside | None = None  # None: calls are made on the spot
    clouds: Mapping[str, FakeCloud] = field(default_factory=dict)  # by name; none: one cloud sells all offers
    our_clock: Clock | None = None  # of the loop, where it is another than that of the clouds and of Ray

    def __post_init__(self) -> None:
        self.cloud = FakeCloud(self.clock, self.offers)
        self.clouds = self.clouds or {offer.market.cloud: self.cloud for offer in self.offers}
        self.ray = FakeRay(self.clock, list({id(cloud): cloud for cloud in self.clouds.values()}.values()))
        self._ids = itertools.count(1)
        self.start()

    def start(self) -> None:
        """A controller starts: its state is what the log says. Call again for a crash and a new start."""
        self.fleet = FleetState.fold(decode(line) for line in self.log)
        self.loop = Loop(
            clock=self.our_clock or self.clock,
            record=self.record,
            fleet=self.fleet,
            ray=self.ray,
            providers=self.clouds,
            prices=self.cloud,
            settings=self.settings,
            wishes=lambda: self.wishes,
            past=self.events,
            new_id=lambda: f"n{next(self._ids)}",
            beside=self.beside,
        )

    def record(self, *events: AnyEvent) -> None:
        for event in events:
            self.log.append(encode(event))
            self.fleet.apply(event)

    @property
    def events(self) -> list[AnyEvent]:
        return [decode(line) for line in self.log]

    def run(self, duration_s: float, interval_s: float = 1.0) -> None:
        for _ in range(round(duration_s / interval_s)):
            self.loop.tick()
            self.clock.sleep(interval_s)


def lost_answer() -> AmbiguousOutcome:
    return AmbiguousOutcome("the connection broke after the request was sent")
