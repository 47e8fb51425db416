"""What people are told of contracts: at submission, while the job runs, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_controller import GPU, World

from tradewind.api import ContractInfo, JobInfo
from tradewind.autoscaler.contract.live import case_of
from tradewind.autoscaler.contract.plan import Answer
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.limits import Limits, Part, Rule
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.errors import ConfigError
from tradewind.model import Capacity, Contract, JobSpec, Offer, Wish
from tradewind.planning import promise, speeds, weigh
from tradewind.render import contract_text, progress_line, status_screen
from tradewind.states import JobState
from tradewind.submission import build_spec

H = 3600.0
SPOT = make_offer("gcp/us-central1-a/g2", usd_per_h=0.36, cpus=4, gpus=1)
DEAR = make_offer("gcp/us-central1-a/g2", usd_per_h=1.00, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)


def spec(deadline_s: float | None = None, budget_uusd: int | None = None, work_s: float | None = 10 * H) -> JobSpec:
    contract = Contract(deadline_s, budget_uusd, work_s)
    return JobSpec("train", "python x.py", min_workers=1, max_workers=2, worker_resources=GPU, contract=contract)


def sees(*offers: Offer, limits: Limits | None = None) -> list[View]:
    """One cell that may buy these."""
    return [View(0.0, LoopSettings("lab", limits=limits or Limits()), offers=offers or (SPOT, DEAR))]


# --- at submission --------------------------------------------------------------------------------------------------


def test_what_cannot_be_kept_is_refused_and_it_is_said_what_would_help() -> None:
    for asked, what, helps in (
        (spec(5 * H), "too short", "a deadline of"),
        (spec(20 * H, 500_000), "below the least", "a budget of"),
    ):
        with pytest.raises(ConfigError, match=what) as caught:
            promise(asked, sees(), 0.0)
        assert helps in caught.value.hint
        assert "cannot be kept" in str(caught.value)


def test_what_can_be_kept_is_taken_on_with_its_chance() -> None:
    asked = spec(20 * H, 50_000_000)
    assert "can be kept" in promise(asked, sees(), 0.0)


def test_where_too_little_is_known_nothing_is_said() -> None:
    for asked in (spec(20 * H, work_s=None), spec(), replace(spec(20 * H), max_workers=0, min_workers=0)):
        assert promise(asked, sees(), 0.0) == ""
    assert promise(spec(20 * H), sees(SPOT), 0.0) == "", "without on-demand nothing can be promised"
    assert promise(spec(20 * H), [], 0.0) == "", "no cell has looked yet"
    assert len(speeds(spec(), 0.9)) == 2


def test_what_is_promised_is_priced_as_the_policy_prices_it() -> None:
    """Also by the memory that Ray has of a machine, not by all of it."""
    sold = [
        replace(offer, market=replace(offer.market, instance_type=f"g{gpus}"), accelerator_count=gpus, vcpus=cpus)
        for offer in (SPOT, DEAR)
        for gpus, cpus in ((1.0, 8.0), (8.0, 96.0))
    ]
    for workers, resources in ((1, GPU), (4, GPU), (9, GPU), (2, {"CPU": 1.0, "memory": 8.0 * 2**30})):
        asked = replace(spec(40 * H), min_workers=workers, max_workers=workers, worker_resources=resources)
        view = sees(*sold)[0]
        wish = Wish("a", workers, workers, resources)
        case = case_of(JobRecord("a", asked, JobState.QUEUED, 0.0), wish, workers, view, FleetState(), 30.0, None)
        answer = weigh(asked, [view], 0.0)
        assert isinstance(answer, Answer)
        assert case.contract is not None
        assert answer.on_demand.key == case.contract.on_demand_key
        seen = case.contract.at(answer.replicas)
        assert answer.on_demand.uusd_per_h == seen.on_demand_uusd_per_h
        assert [(each.key, each.uusd_per_h) for each in answer.spot] == [
            (each.key, each.price_uusd_per_h) for each in seen.spot
        ]


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (Limits(max_nodes=1), "the limit of 1 node"),
        (Limits(max_uusd_per_h=1_500_000), "the limit of $1.50 per hour"),
        (Limits(rules=(Rule(Part(cloud="gcp"), max_accelerators=1),)), "the limit of 1 accelerator in gcp"),
        (Limits(rules=(Rule(Part(tenant="default"), max_nodes=1),)), "the limit of 1 node of tenant default"),
    ],
)
def test_the_limits_of_the_fleet_are_part_of_what_is_promised(limits: Limits, limit: str) -> None:
    asked = spec(8 * H)  # two workers are in time, one is not
    assert "can be kept" in promise(asked, sees(), 0.0)
    with pytest.raises(ConfigError, match="too short") as caught:
        promise(asked, sees(limits=limits), 0.0)
    assert f"{limit} allows 1 of 2 workers" in str(caught.value)
    assert "can be kept" in promise(spec(20 * H), sees(limits=limits), 0.0)


def test_where_limits_leave_few_of_the_cheapest_a_dearer_one_keeps_the_promise() -> None:
    dearer = make_offer("aws/us-east-1a/g6", usd_per_h=1.50, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
    limits = Limits(rules=(Rule(Part(cloud="gcp"), max_nodes=1),))
    quick, slow = (weigh(spec(hours * H), sees(SPOT, DEAR, dearer, limits=limits), 0.0) for hours in (8, 20))
    assert isinstance(quick, Answer)
    assert isinstance(slow, Answer)
    assert (quick.is_feasible, quick.on_demand.key, quick.basis) == (True, dearer.market.key, "")
    assert (slow.is_feasible, slow.on_demand.key) == (True, DEAR.market.key), "with time enough the cheapest will do"
    with pytest.raises(ConfigError, match=r"the work takes .* with 2 on demand"):
        promise(spec(5 * H), sees(SPOT, DEAR, dearer, limits=limits), 0.0)


def test_what_is_least_is_the_least_of_all_that_may_be_bought() -> None:
    """Spot is cheap where only one worker may be: the remedy of a budget was that of the roomiest machines."""
    dearer = make_offer("aws/us-east-1a/g6", usd_per_h=1.50, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
    limits = Limits(rules=(Rule(Part(cloud="gcp"), max_nodes=1),))
    sold = sees(replace(SPOT, market=replace(SPOT.market, cloud="gcp")), replace(DEAR), dearer, limits=limits)
    poor = spec(40 * H)
    poor = replace(poor, contract=replace(poor.contract, budget_uusd=1))
    found, rich = weigh(poor, sold, 0.0), weigh(spec(40 * H), sold, 0.0)
    assert isinstance(found, Answer)
    assert isinstance(rich, Answer)
    assert not found.is_feasible
    assert found.least_uusd == rich.least_uusd


def test_what_no_limit_lets_start_is_refused() -> None:
    asked = replace(spec(20 * H), min_workers=2)
    with pytest.raises(ConfigError, match="the limit of 1 node allows fewer than the 2 it needs on demand") as caught:
        promise(asked, sees(limits=Limits(max_nodes=1)), 0.0)
    assert "`limits` of the fleet file" in caught.value.hint


def test_limits_on_others_change_no_promise() -> None:
    limits = Limits(rules=(Rule(Part(tenant="other"), max_nodes=0), Rule(Part(cloud="aws"), max_nodes=0)))
    assert promise(spec(8 * H), sees(limits=limits), 0.0) == promise(spec(8 * H), sees(), 0.0)


def test_where_limits_leave_spot_alone_nothing_is_promised_and_it_is_said_why() -> None:
    limits = Limits(rules=(Rule(Part(capacity=(Capacity.ON_DEMAND,)), max_nodes=0),))
    told = promise(spec(20 * H), sees(limits=limits), 0.0)
    assert told == "nothing is promised: the limit of 0 nodes in on-demand allows fewer than the 1 it needs on demand"


def test_what_can_start_on_nodes_that_nobody_bought_is_not_refused() -> None:
    own = RayNode("r", "", RayStatus.IDLE, dict(GPU), dict(GPU))
    view = replace(sees(limits=Limits(max_nodes=0))[0], snapshot=RaySnapshot(nodes=(own,)))
    assert promise(spec(20 * H), [view], 0.0).startswith("nothing is promised: the limit of 0 nodes allows fewer")


@pytest.mark.parametrize("work", ["0s", "-3h", "soon", float("inf")])
def test_work_that_is_none(work: str | float) -> None:
    with pytest.raises(ConfigError, match="work"):
        build_spec("python x.py", now_s=0.0, work=work)


def test_a_deadline_in_the_past_is_refused() -> None:
    with pytest.raises(ConfigError, match="past"):
        build_spec("python x.py", now_s=2e9, deadline="2001-01-01T00:00:00+00:00")


def test_work_stands_in_files_and_beside_them(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("entrypoint: python x.py\ndeadline: 6h\nwork: 2h\n")
    assert build_spec(file, now_s=100.0).contract == Contract(100.0 + 6 * H, None, 2 * H)
    assert build_spec(file, now_s=100.0, work="3h").contract.work_s == 3 * H


# --- while it runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    w = World(tmp_path)
    for offer in (SPOT, DEAR):
        w.cloud.stock[offer.market.key] = offer
    w.tick()
    yield w
    w.controller.journal.log.close()


def test_the_controller_refuses_and_answers(world: World) -> None:
    now_s = world.clock.now_s()
    with pytest.raises(ConfigError, match="cannot be kept"):
        world.controller.submit(spec(now_s + H))
    job = world.controller.submit(spec(now_s + 20 * H))
    assert job.contract is not None
    assert "can be kept" in job.contract.reason
    world.tick()
    world.jobs.move(job.job_id, "RUNNING")
    world.tick(3)
    info = world.controller.job(job.job_id).contract
    assert info is not None
    assert info.course == f"{SPOT.market.key} x 1"
    assert info.chance is not None
    assert info.chance > 0.8
    assert info.cost_uusd is not None
    assert info.cost_uusd > 3_000_000
    assert info.finish_at_s is not None
    assert info.finish_at_s > now_s + 10 * H
    assert info.as_of_s == world.controller.job(job.job_id).contract.as_of_s, "it holds for a while"  # type: ignore[union-attr]
    screen = status_screen(world.controller.status())
    assert "Contracts:" in screen
    assert "likely" in screen
    assert "by its contract" in str(world.controller.why("job", job.job_id))


def test_a_program_that_asks_ray_itself_is_told_so(world: World) -> None:
    job = world.controller.submit(JobSpec("x", "python x.py", contract=Contract(world.clock.now_s() + 20 * H)))
    world.tick(2)
    info = world.controller.job(job.job_id).contract
    assert info is not None
    assert info.chance is None
    assert "asks Ray" in info.reason


def test_who_was_promised_nothing_is_told_nothing(world: World) -> None:
    assert world.controller.submit(JobSpec("x", "python x.py")).contract is None


# --- in words -------------------------------------------------------------------------------------------------------


def test_how_a_contract_stands_is_one_line() -> None:
    info = ContractInfo(
        deadline_at_s=2e9,
        budget_uusd=5_000_000,
        course="on demand x 1",
        chance=0.93,
        deadline_chance=0.97,
        budget_chance=0.93,
        basis="it rests on the 10h of work that were stated",
        cost_uusd=3_200_000,
        cost_range_uusd=(2_900_000, 4_100_000),
        finish_at_s=1.9e9,
        finish_range_s=(1.8e9, 1.95e9),
    )
    text = contract_text(info)
    for part in ("97% likely", "93% likely", "$3.20", "$5.00", "on demand x 1", "rests on the 10h"):
        assert part in text
    job = JobInfo(job_id="a", name="a", tenant="t", state=JobState.RUNNING, submitted_at_s=0.0, contract=info)
    assert "contract 93% likely" in progress_line(job)
    assert contract_text(ContractInfo(deadline_at_s=2e9, kept=False)).endswith("not kept")
