"""The local cloud's books and its behaviour, with pretend machines and a clock that the test moves."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.local import LISTED_AFTER_END_S, LocalCloud
from tradewind.autoscaler.providers.local_instances import InstanceBook
from tradewind.autoscaler.providers.local_machines import PretendMachines, shape_of
from tradewind.autoscaler.providers.local_market import Action, MarketEvent, MarketScript
from tradewind.errors import Conflict, NotFound, Stockout
from tradewind.model import Capacity, EndReason, Market, Offer

SPOT = Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 4, 16, "A10G", 1, 1, 400_000)
GCP = Offer(Market("gcp", "us-central1", "us-central1-a", "g2-standard-4", Capacity.SPOT), 4, 16, "L4", 1, 1, 300_000)
OFFERS = (SPOT, GCP)


@dataclass
class Clock:
    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """A local cloud without processes and without threads."""

    root: Path
    clock: Clock = field(default_factory=Clock)
    machines: PretendMachines = field(default_factory=PretendMachines)

    def open(self, script: MarketScript | None = None, *, ephemeral: bool = False) -> LocalCloud:
        return LocalCloud(
            self.root,
            "test",
            OFFERS,
            script,
            clock=self.clock,
            machines=self.machines,
            watch=False,
            ephemeral=ephemeral,
        )

    def later(self, cloud: LocalCloud, by_s: float) -> dict[str, CloudNode]:
        self.clock.now_s += by_s
        cloud.step()
        return {node.launch_id: node for node in cloud.list_nodes()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "fleet")


def spec(launch_id: str = "n-1", offer: Offer = SPOT) -> LaunchSpec:
    return LaunchSpec(launch_id, "test", "local", offer, "127.0.0.2:20000")


def test_a_node_is_pending_then_billed_then_gone(world: World) -> None:
    cloud = world.open(MarketScript(launch_delay_s=(3, 3)))
    began_s = world.clock.now_s
    assert cloud.launch(spec()).state is CloudState.PENDING
    assert world.later(cloud, 2.9)["n-1"].state is CloudState.PENDING
    running = world.later(cloud, 0.1)["n-1"]
    assert (running.state, running.billed_from_s, running.billed_until_s) == (CloudState.RUNNING, began_s + 3, None)
    world.clock.now_s += 10
    cloud.terminate(["n-1", "never-heard-of"])
    assert cloud.wait_terminated(["n-1", "never-heard-of"], 0) == []
    gone = world.later(cloud, 5)["n-1"]
    assert (gone.state, gone.end, gone.billed_until_s) == (CloudState.GONE, EndReason.TERMINATED, began_s + 13)


def test_a_launch_id_makes_one_node_for_ever(world: World) -> None:
    cloud = world.open()
    first = cloud.launch(spec())
    assert cloud.launch(spec()) == first
    with pytest.raises(Conflict):
        cloud.launch(spec(offer=GCP))
    world.later(cloud, 1)
    cloud.terminate(["n-1"])
    assert world.later(cloud, LISTED_AFTER_END_S - 10)["n-1"].state is CloudState.GONE
    assert world.later(cloud, 20) == {}
    assert cloud.launch(spec()).state is CloudState.GONE
    assert world.machines.running == set()


def test_notice_is_visible_until_the_deadline(world: World) -> None:
    cloud = world.open()
    cloud.launch(spec())
    cloud.launch(spec("n-2", GCP))
    world.later(cloud, 1)
    assert cloud.preempt("aws/*", notice_s=30) == ["n-1"]
    nodes = world.later(cloud, 29)
    assert nodes["n-1"].state is CloudState.RUNNING
    assert nodes["n-1"].notice_deadline_s == world.clock.now_s + 1
    assert nodes["n-2"].notice_deadline_s is None
    gone = world.later(cloud, 1)["n-1"]
    assert (gone.state, gone.end) == (CloudState.GONE, EndReason.PREEMPTED)
    assert gone.billed_until_s == world.clock.now_s


def test_without_notice_a_node_is_gone_at_once(world: World) -> None:
    cloud = world.open()
    cloud.launch(spec())
    world.later(cloud, 1)
    cloud.preempt("n-1")
    (node,) = cloud.list_nodes()
    assert (node.state, node.end, node.notice_deadline_s) == (CloudState.GONE, EndReason.PREEMPTED, None)
    with pytest.raises(NotFound):
        cloud.preempt("n-1")


def test_the_script_is_played_once_across_restarts(world: World) -> None:
    script = MarketScript(events=(MarketEvent(10, Action.PREEMPT, count=1), MarketEvent(20, Action.STOCKOUT, "gcp/*")))
    cloud = world.open(script)
    for number in range(3):
        cloud.launch(spec(f"n-{number}"))
    world.later(cloud, 5)
    assert _states(world.later(cloud, 6)) == ["gone", "running", "running"]
    cloud.detach()
    again = world.open(script)
    assert _states(world.later(again, 1)) == ["gone", "running", "running"]
    world.clock.now_s += 10
    with pytest.raises(Stockout):
        again.launch(spec("n-9", GCP))


def test_failed_boots_are_told_and_not_billed(world: World) -> None:
    cloud = world.open(MarketScript(events=(MarketEvent(0, Action.BOOT_FAILURE, count=1),)))
    cloud.launch(spec())
    failed = world.later(cloud, 1)["n-1"]
    assert (failed.state, failed.end, failed.billed_from_s) == (CloudState.GONE, EndReason.CRASHED, None)
    assert "failed to boot" in failed.detail
    cloud.launch(spec("n-2"))
    assert world.later(cloud, 1)["n-2"].state is CloudState.RUNNING


def test_a_node_that_cannot_start_or_ends_by_itself_has_crashed(world: World) -> None:
    cloud = world.open()
    world.machines.failing_boots = 2
    cloud.launch(spec())
    assert world.later(cloud, 1)["n-1"].end is EndReason.CRASHED
    world.machines.failing_boots = 1  # a second try is made
    cloud.launch(spec("n-2"))
    assert world.later(cloud, 1)["n-2"].state is CloudState.RUNNING
    world.machines.crash(2)
    crashed = world.later(cloud, 1)["n-2"]
    assert (crashed.state, crashed.end) == (CloudState.GONE, EndReason.CRASHED)


def test_a_new_cloud_adopts_what_the_last_one_left(world: World) -> None:
    cloud = world.open()
    cloud.launch(spec())
    cloud.launch(spec("n-2"))
    before = world.later(cloud, 1)["n-1"]
    cloud.launch(spec("n-3"))  # still pending
    cloud.detach()
    world.machines.crash(2)  # while nobody watches
    again = world.open()
    assert again.launch(spec()) == before
    nodes = world.later(again, 1)
    assert _states(nodes) == ["running", "gone", "running"]
    assert nodes["n-2"].end is EndReason.CRASHED
    again.launch(spec("n-4"))
    assert len({node.instance_id for node in world.later(again, 1).values()}) == 4


def test_a_fleet_has_one_living_owner(world: World) -> None:
    root = world.root
    source = f"""
from pathlib import Path
from tradewind.autoscaler.providers.local_fleets import claim
claim(Path({str(root)!r}), "other", ephemeral=False)
print("claimed", flush=True)
input()
"""
    command = [sys.executable, "-c", source]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(Conflict, match=str(other.pid)):
            world.open()
    finally:
        other.kill()
        other.communicate()
    world.open().close()


def test_closing_ends_everything_and_leaves_no_trace(world: World) -> None:
    lasting = world.open()
    lasting.launch(spec())
    world.later(lasting, 1)
    lasting.close()
    lasting.close()
    assert world.machines.running == set()
    assert not world.root.exists()
    assert world.open().list_nodes() == []  # the next start begins anew, its script too


def test_debris_is_listed_and_deleted(world: World) -> None:
    cloud = world.open()
    cloud.launch(spec())
    world.later(cloud, 1)
    stray = world.root / "n77"
    (stray / "r").mkdir(parents=True)
    assert cloud.list_debris() == [str(stray)]
    cloud.delete_debris([str(stray), str(world.root), "/"])
    assert cloud.list_debris() == []
    assert (world.root / "n1" / "instance.json").exists()


def test_prices_follow_the_script_and_cpus_can_be_limited(world: World) -> None:
    script = MarketScript(events=(MarketEvent(10, Action.PRICE, "aws/*", price_factor=2.0),))
    cloud = LocalCloud(
        world.root, "t", OFFERS, script, clock=world.clock, cpus_per_node=1, machines=world.machines, watch=False
    )
    later_s = world.clock.now_s + 10
    assert [offer.price_uusd_per_h for offer in cloud.offers(later_s)] == [800_000, 300_000]
    assert {offer.vcpus for offer in cloud.offers(later_s)} == {1}
    world.clock.now_s = later_s
    assert cloud.launch(spec()).offer.price_uusd_per_h == 800_000


def test_the_shape_is_the_offer_as_ray_counts_it(world: World) -> None:
    cloud = world.open()
    cloud.launch(replace(spec(), labels={"team": "a"}))
    instance = InstanceBook.open(world.root).by_launch_id["n-1"]
    shape = shape_of(instance)
    assert (shape.cpus, shape.gpus, dict(shape.resources)) == (4, 1, {"accelerator_type:A10G": 1.0})
    assert shape.memory_bytes == 16 * 2**30
    assert shape.labels["tradewind.io/launch-id"] == "n-1"
    assert shape.labels["ray.io/availability-zone"] == "us-east-1a"
    assert shape.labels["team"] == "a"


def test_the_machine_is_checked_before(world: World) -> None:
    checks = {check.name: check for check in world.open().preflight()}
    assert checks["ray"].ok
    assert checks["temp folder"].ok is (len(os.fsencode(world.root)) <= 32)
    assert all(check.ok or check.fix for check in checks.values())


class Restarts(RuleBasedStateMachine):
    """Whatever is launched, taken, crashed and restarted in any order: books and machines agree."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(Path(mkdtemp(prefix="tw-test-")))
        self.cloud = self.world.open()
        self.launched: set[str] = set()

    @rule(number=st.integers(1, 6))
    def launch(self, number: int) -> None:
        self.cloud.launch(spec(f"n-{number}"))
        self.launched.add(f"n-{number}")

    @rule(number=st.integers(1, 6))
    def terminate(self, number: int) -> None:
        self.cloud.terminate([f"n-{number}"])

    @rule(number=st.integers(1, 6), notice_s=st.sampled_from([None, 2.0]))
    def preempt(self, number: int, notice_s: float | None) -> None:
        up = [n for n in self.cloud.list_nodes() if n.state in (CloudState.PENDING, CloudState.RUNNING)]
        if any(n.launch_id == f"n-{number}" and n.notice_deadline_s is None for n in up):
            self.cloud.preempt(f"n-{number}", notice_s)

    @rule(number=st.integers(1, 6))
    def crash(self, number: int) -> None:
        self.world.machines.crash(number)

    @rule()
    def restart(self) -> None:
        self.cloud.detach()
        self.cloud = self.world.open()

    @rule(by_s=st.floats(0.1, 5))
    def step(self, by_s: float) -> None:
        self.world.later(self.cloud, by_s)
        running = [n for n in self.cloud.list_nodes() if n.state is CloudState.RUNNING]
        assert len(self.world.machines.running) == len(running)

    @invariant()
    def every_launch_is_listed_once_and_bills_make_sense(self) -> None:
        nodes = self.cloud.list_nodes()
        assert sorted(node.launch_id for node in nodes) == sorted(self.launched)
        for node in nodes:
            assert (node.end is not None) == (node.state is CloudState.GONE)
            assert (node.billed_until_s is not None) == (node.end is not None and node.billed_from_s is not None)
            if node.billed_from_s is not None:
                assert node.created_at_s <= node.billed_from_s <= (node.billed_until_s or self.world.clock.now_s)

    def teardown(self) -> None:
        self.cloud.close()
        assert self.world.machines.running == set()
        assert not self.world.root.exists()


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def _states(nodes: dict[str, CloudNode]) -> list[str]:
    return [str(nodes[name].state) for name in sorted(nodes)]
