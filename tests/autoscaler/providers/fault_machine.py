"""Random sequences of faults: the real control loop, its log, and a provider in a world that misbehaves.

After every step: never two instances for one launch id, now or one after the other. At the end the world is healed, the
fleet is taken down, and nothing of it may be left. Any world plugs in; what it cannot do is not drawn.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from cloud_world import BOOTED_S, CELL, ENDED_S, FLEET, HEAD_ADDRESS, World
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec, Provider
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.testing import FakeRay
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.events import AnyEvent, LaunchRequested, decode, encode
from tradewind.model import Offer

MAX_NODES = 4
SETTINGS = LoopSettings(
    fleet=FLEET, cell=CELL, head_address=HEAD_ADDRESS, limits=Limits(MAX_NODES), idle_timeout_s=20, min_node_life_s=10
)


class Killed(BaseException):
    """The controller's process ends here."""


class WorldClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_s(self) -> float:
        return self._world.now_s()

    def steady_s(self) -> float:
        return self._world.now_s()

    def sleep(self, duration_s: float) -> None:
        """In larger steps than asked for: every look in between is some HTTP calls."""
        self._world.advance(max(duration_s, 10.0))


class Raylets:
    """For FakeRay: what really runs joins Ray."""

    def __init__(self, world: World, offers: Iterable[Offer]) -> None:
        self._world, self._offers = world, {offer.market: offer for offer in offers}

    def booted(self) -> list[CloudNode]:
        return [
            CloudNode(truth.launch_id, truth.instance_id, self._offers[truth.market], CloudState.RUNNING, 0.0)
            for truth in self._world.instances()
            if truth.launch_id and truth.state == "running"
        ]


class MortalProvider:
    """The world's provider in a process that may be killed right after the cloud has answered."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.name, self.dies_after_launch = inner.name, False
        self.preflight, self.list_nodes, self.terminate = inner.preflight, inner.list_nodes, inner.terminate
        self.wait_terminated = inner.wait_terminated
        self.list_debris, self.delete_debris = inner.list_debris, inner.delete_debris

    def launch(self, spec: LaunchSpec) -> CloudNode:
        node = self._inner.launch(spec)
        if self.dies_after_launch:
            raise Killed
        return node


class FaultMachine(RuleBasedStateMachine):
    open_world: Callable[[Path], World]  # of a subclass, see `machine_for`

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="tw-faults-")
        self.world = type(self).open_world(Path(self._folder.name))
        world = self.world
        self.offers = (world.spot, world.on_demand, world.other_zone, world.other_region)
        self.clock = WorldClock(world)
        self.ray = FakeRay(self.clock, [Raylets(world, self.offers)])
        self.log: list[bytes] = []
        self._numbers = itertools.count(1)
        self._dies_at_intent = False
        self._noticed: set[str] = set()
        self._made: dict[str, set[str]] = {}  # launch id -> instance ids, ever
        self.start()

    def start(self) -> None:
        """A controller starts; all that it knows is the log."""
        self._dies_at_intent = False
        self.fleet = FleetState.fold(decode(line) for line in self.log)
        self.provider = MortalProvider(self.world.provider())
        self.loop = Loop(
            clock=self.clock,
            record=self.record,
            fleet=self.fleet,
            ray=self.ray,
            providers={self.world.spot.market.cloud: self.provider},
            prices=_Prices(self.offers),
            settings=SETTINGS,
            new_id=lambda: f"tw-{next(self._numbers)}",
        )

    def record(self, *events: AnyEvent) -> None:
        for event in events:
            self.log.append(encode(event))
            self.fleet.apply(event)
        if self._dies_at_intent and any(isinstance(event, LaunchRequested) for event in events):
            raise Killed

    def can(self, method: str) -> bool:
        return method not in self.world.cannot

    # --- work, time, and deaths of the controller ---

    @initialize(count=st.integers(1, 3))
    def there_is_work(self, count: int) -> None:
        self.work_comes(count)

    @rule(count=st.integers(1, 3))
    def work_comes(self, count: int) -> None:
        self.ray.submit({"CPU": self.world.spot.vcpus}, count)
        self.tick()

    @precondition(lambda self: self.can("groups"))
    @rule(count=st.integers(2, 3))
    def a_gang_comes(self, count: int) -> None:
        offer = self.world.spot
        bundle = {"CPU": offer.vcpus, "GPU": offer.accelerator_count}
        self.ray.submit_gang([bundle] * count, Strategy.STRICT_SPREAD)
        self.tick()

    @rule()
    def work_ends(self) -> None:
        self.ray.finish()
        self.tick()

    @rule(seconds=st.sampled_from([10.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.tick()

    @rule(seconds=st.sampled_from([90.0, 400.0]))
    def much_time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)
        self.tick()

    def tick(self) -> None:
        """One round of the loop, a second after the last, which the controller may not survive."""
        self.world.advance(1.0)
        try:
            self.loop.tick()
        except Killed:
            self.start()

    @rule()
    def restart(self) -> None:
        self.start()
        self.tick()

    @rule()
    def the_next_launch_kills_before_the_call(self) -> None:
        self._dies_at_intent = True

    @rule()
    def the_next_launch_kills_after_the_call(self) -> None:
        self.provider.dies_after_launch = True

    # --- bad days of the cloud ---

    @precondition(lambda self: self.can("stock_out"))
    @rule(which=st.integers(0, 3))
    def stock_out(self, which: int) -> None:
        self.world.stock_out(self.offers[which])

    @precondition(lambda self: self.can("group_room"))
    @rule(room=st.integers(0, 2))
    def groups_are_small(self, room: int) -> None:
        self.world.limit_group(room)

    @precondition(lambda self: self.can("stock_out"))
    @rule()
    def restock(self) -> None:
        self.world.restock()

    @precondition(lambda self: self.can("throttle"))
    @rule(calls=st.integers(1, 4))
    def throttle(self, calls: int) -> None:
        self.world.throttle(calls)
        self.tick()

    @precondition(lambda self: self.can("fail_server"))
    @rule(calls=st.integers(1, 4))
    def fail_server(self, calls: int) -> None:
        self.world.fail_server(calls)
        self.tick()

    @precondition(lambda self: self.can("cut_after_sending"))
    @rule(calls=st.integers(1, 3))
    def cut_after_sending(self, calls: int) -> None:
        self.world.cut_after_sending(calls)
        self.tick()

    @precondition(lambda self: self.can("cut_before_doing"))
    @rule(calls=st.integers(1, 3))
    def cut_before_doing(self, calls: int) -> None:
        self.world.cut_before_doing(calls)
        self.tick()

    @precondition(lambda self: self.can("lag_listing"))
    @rule(seconds=st.sampled_from([0.0, 5.0, 45.0]))
    def lag_listing(self, seconds: float) -> None:
        self.world.lag_listing(seconds)

    @precondition(lambda self: self.can("fail_boot"))
    @rule()
    def fail_boot(self) -> None:
        self.world.fail_boot(1)
        self.tick()

    # What is drawn does not depend on what runs: a slow moment of this machine would be taken for a flaky test.

    @precondition(lambda self: self.can("preempt"))
    @rule(notice_s=st.sampled_from([0.0, 30.0, 120.0]), which=st.integers(0, MAX_NODES - 1))
    def preempt(self, notice_s: float, which: int) -> None:
        for launch_id in self._one_running_spot(which):
            self._noticed.add(launch_id)
            self.world.preempt(launch_id, notice_s)
        self.tick()

    @precondition(lambda self: self.can("vanish"))
    @rule(which=st.integers(0, MAX_NODES - 1))
    def vanish(self, which: int) -> None:
        for launch_id in self._one_running_spot(which):
            self.world.vanish(launch_id)
        self.tick()

    def _one_running_spot(self, which: int) -> list[str]:
        """None where none runs."""
        running = self._running_spot()
        return [running[which % len(running)]] if running else []

    def _running_spot(self) -> list[str]:
        spot = [truth for truth in self.world.instances() if truth.market.capacity == "spot" and truth.launch_id]
        running = (truth.launch_id for truth in spot if truth.state == "running")
        return sorted(name for name in running if name not in self._noticed)  # a cloud takes a node once

    # --- what always holds ---

    @invariant()
    def never_two_for_one_launch_id(self) -> None:
        for truth in self.world.instances():
            self._made.setdefault(truth.launch_id, set()).add(truth.instance_id)
        twice = {launch_id: made for launch_id, made in self._made.items() if len(made) > 1}
        assert twice == {}

    @invariant()
    def never_one_that_was_not_asked_for(self) -> None:
        assert {truth.launch_id for truth in self.world.instances()} <= set(self.fleet.nodes)

    def teardown(self) -> None:
        try:
            self._heal()
            self._take_down()
            left = [truth for truth in self.world.instances() if truth.launch_id]
            assert (left, self.world.debris()) == ([], [])
            assert (self.world.groups() if self.can("groups") else {}) == {}
            assert self.fleet.alive_nodes == []
        finally:
            self.world.close()
            self._folder.cleanup()

    def _heal(self) -> None:
        for fault in ("throttle", "fail_server", "cut_after_sending", "cut_before_doing", "lag_listing"):
            if self.can(fault):
                getattr(self.world, fault)(0)
        self.world.advance(BOOTED_S)

    def _take_down(self) -> None:
        """As `tradewind down` does; then a look or two for what turns up late."""
        self.start()
        self.ray.finish()
        for _ in range(2):
            self.loop.end_all("the test is over", timeout_s=ENDED_S)
            self.world.advance(ENDED_S)
            self.loop.tick()
        for _ in range(2):  # what a machine that failed is in is free when that is gone
            self.world.advance(ENDED_S)
            self.provider.delete_debris(self.provider.list_debris())
        self.world.advance(ENDED_S)
        self.loop.tick()


class _Prices:
    """PriceSource: what the world sells, at the prices of its offers."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers

    def offers(self, now_s: float) -> Sequence[Offer]:
        del now_s
        return self._offers


def machine_for(open_world: Callable[[Path], World]) -> type[FaultMachine]:
    """The same machine over another world."""
    return type("FaultMachine", (FaultMachine,), {"open_world": staticmethod(open_world)})
