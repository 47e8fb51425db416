"""Budgets in a running controller: the real journal, agent and loop, on a Ray and a cloud in memory."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from grant_world import Head

from tradewind.agent import Agent
from tradewind.api_requests import ResumeRequest
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.ray_snapshot import RayJob, Strategy
from tradewind.autoscaler.testing import FakeCloud, FakeRay, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.cells.cell import Cell
from tradewind.controller import Controller
from tradewind.cost.budget import Budgets
from tradewind.cost.figures import summary
from tradewind.errors import JobError
from tradewind.events import DecisionRecorded, JobSubmitted
from tradewind.fake_cell import FakeCoordinators, FakeJobs
from tradewind.journal import Journal
from tradewind.model import Contract, JobSpec
from tradewind.states import JobState, is_over
from tradewind.store import EventLog

OFFER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.36, cpus=4, gpus=1)  # 100 micro-dollars a second


def elastic(budget_uusd: int | None = None, max_workers: int = 1, min_workers: int = 1) -> JobSpec:
    return JobSpec(
        name="train",
        entrypoint="python train.py",
        min_workers=min_workers,
        max_workers=max_workers,
        worker_resources={"GPU": 1},
        contract=Contract(budget_uusd=budget_uusd),
    )


class World:
    def __init__(self, folder: Path, budgets: Budgets) -> None:
        self.clock = FakeClock(time.time())
        self.cloud, self.jobs = FakeCloud(self.clock, [OFFER]), FakeJobs()
        self.ray = FakeRay(self.clock, [self.cloud])
        self.jobs.obeys = True
        self.journal = Journal.load(EventLog.open(folder / "events.db"))
        fleet = self.journal.fleet.cell("local")
        agent = Agent("g", "d", folder, self.journal.record, fleet)
        agent.jobs, agent.coordinators = self.jobs, FakeCoordinators()
        loop = Loop(
            clock=self.clock,
            record=self.journal.record,
            fleet=fleet,
            ray=self.ray,
            providers={"gcp": self.cloud},
            prices=self.cloud,
            settings=LoopSettings(fleet="test", idle_timeout_s=20.0, min_node_life_s=20.0),
            wishes=agent.wishes,
        )
        self.cell = Cell("local", "local", "here", Head(), agent, loop, {"gcp": self.cloud})  # type: ignore[arg-type]
        cells, logs = {"local": self.cell}, folder / "job-logs"
        self.controller = Controller("test", self.journal, cells, logs, 0.02, budgets=budgets)

    def tick(self, after_s: float = 1.0) -> None:
        """Jobs that are over let go of what they held."""
        self.controller._tick(self.cell)
        for job in self.journal.fleet.jobs.values():
            if is_over(job.state):
                self.ray.finish(job.job_id)
        self.clock.sleep(after_s)

    def start(self, job_id: str) -> None:
        """Its driver asks Ray for a worker."""
        self.tick()
        self.jobs.move(self.submission(job_id), "RUNNING")
        self.ray.submit({"GPU": 1.0}, job_id=job_id)

    def submission(self, job_id: str) -> str:
        return next(name for name in self.jobs.rows if name.startswith(job_id))

    def submit(self, budget_uusd: int | None = None, max_workers: int = 1) -> str:
        return self.controller.submit(elastic(budget_uusd, max_workers)).job_id

    @property
    def spent_uusd(self) -> int:
        return summary(self.journal.ledger, "label", self.clock.now_s()).total.cost_uusd

    @property
    def said(self) -> list[str]:
        decided = [event for _, event in self.journal.log.read() if isinstance(event, DecisionRecorded)]
        return [event.reason for event in decided if event.action == "budget"]


def test_a_hundred_submissions_at_once_cannot_overspend(tmp_path: Path) -> None:
    limit_uusd = 330_000  # pays for five nodes for ten minutes, not for six
    world = World(tmp_path, Budgets(fleet_uusd=limit_uusd))
    start = threading.Barrier(100)

    def submit() -> None:
        start.wait()
        world.submit()

    threads = [threading.Thread(target=submit) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(world.journal.fleet.open_jobs) == 100
    for job in world.journal.fleet.open_jobs:
        world.ray.submit({"GPU": 1.0}, job_id=job.job_id)
    most = 0
    for _ in range(45):
        world.tick(after_s=20.0)
        most = max(most, len(world.journal.fleet.alive_nodes))
        assert world.spent_uusd <= limit_uusd
    assert most == 5
    assert world.spent_uusd > 0.5 * limit_uusd  # it was used, and not passed
    assert sum(text.startswith("50% is used") for text in world.said) == 1
    world.journal.log.close()


def test_a_job_saves_and_stops_at_its_budget_and_another_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets())
    job_id = world.submit(budget_uusd=100_000)
    world.start(job_id)
    for _ in range(100):
        world.tick(after_s=20.0)
        if world.controller.job(job_id).state is JobState.STOPPED:
            break
    assert world.controller.job(job_id).state is JobState.STOPPED
    spent = world.journal.ledger.job_cost(job_id, world.clock.now_s())
    assert 80_000 <= spent <= 100_000
    assert [text.split(" ")[0] for text in world.said] == ["50%", "80%", "stopped,"]
    with pytest.raises(JobError, match="is used") as refused:
        world.controller.resume(job_id, ResumeRequest(budget_uusd=spent - 1))
    assert "--budget +20" in refused.value.hint
    fresh = world.controller.resume(job_id, ResumeRequest(add_uusd=20_000_000))
    record = world.journal.fleet.jobs[fresh.job_id]
    assert record.spec.continues == job_id
    assert record.spec.contract.budget_uusd == 20_000_000 + 100_000 - spent
    world.tick()
    assert f"export TRADEWIND_RUN={job_id}" in world.jobs.rows[world.submission(fresh.job_id)].entrypoint
    world.journal.log.close()


def test_one_that_cannot_be_stopped_does_not_keep_the_others_running(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets(fleet_uusd=100_000))
    plain = JobSubmitted(at_s=world.clock.now_s(), job_id="plain", spec=JobSpec("plain", "?"), foreign=True)
    world.journal.record(plain)
    job_id = world.submit()
    world.start(job_id)
    asked: list[str] = []

    def stop(name: str, why: str) -> None:
        asked.append(name)
        if name == "plain":
            raise JobError("it cannot be stopped")

    for _ in range(60):
        world.clock.sleep(60.0)
        world.controller._keeper.tick(stop)
        world.cell.tick()
    assert {"plain", job_id} <= set(asked)
    assert sum(text.startswith("stopped") for text in world.said) == 2
    world.journal.log.close()


def test_the_budget_of_a_job_that_runs_is_raised_in_place(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets())
    job_id = world.submit(budget_uusd=100_000)
    info = world.controller.resume(job_id, ResumeRequest(add_uusd=50_000))
    assert info.job_id == job_id
    assert world.journal.ledger.jobs[job_id].budget_uusd == 150_000
    other = world.submit()
    with pytest.raises(JobError, match="has no budget"):
        world.controller.resume(other, ResumeRequest())
    world.journal.log.close()


def test_what_a_used_budget_holds_back_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets())
    job_id = world.submit(budget_uusd=1000)  # more than nothing, less than a node for ten minutes
    for _ in range(3):
        world.tick()
    assert world.journal.fleet.nodes == {}
    reasons = {line.hold for line in world.controller.status().demand}
    assert any(f"budget of job {job_id}" in reason for reason in reasons)
    world.journal.log.close()


def test_what_no_budget_pays_for_is_not_proposed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor warned of: it is held back for the true reason, which says what it takes and what to do, and is told once."""
    world = World(tmp_path, Budgets(fleet_uusd=500_000_000))
    offers = [make_offer(f"gcp/us-r{number}-a/g2", usd_per_h=0.36 + number / 100, gpus=1) for number in range(9)]
    world.cloud.stock = {offer.market.key: offer for offer in offers}
    settings = replace(world.cell.loop.settings, limits=Limits(max_nodes=6))
    world.cell.loop.settings = world.cell.loop.reconciler.settings = settings
    job_id = world.submit(budget_uusd=4000, max_workers=2)
    for _ in range(130):  # also when a refusal is forgotten
        world.tick()
        assert world.cell.loop.plan is not None
        assert world.cell.loop.plan.launches == []
    assert "not launched" not in caplog.text
    why = (
        f"the budget of job {job_id}, $0.0040, does not pay for 10 minutes of a machine at $0.36/h: "
        f"$0.0600 are needed, $0.0040 are left; raise it with `tradewind resume {job_id} --budget +0.06`"
    )
    assert {line.hold for line in world.controller.status().demand} == {why}
    assert world.said == [f"nothing is bought: {why}"]
    assert len(held(world)) == 1
    world.journal.log.close()


def test_tasks_of_nobody_that_no_budget_pays_for_are_not_proposed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, Budgets(fleet_uusd=50_000))
    world.ray.submit({"GPU": 1.0})
    for _ in range(5):
        world.tick()
    assert world.journal.fleet.nodes == {}
    assert "not launched" not in caplog.text
    assert {line.hold.split(",")[0] for line in world.controller.status().demand} == {"the budget of the fleet"}
    world.journal.log.close()


def test_a_launch_on_record_is_counted_once_and_what_it_leaves_is_told_once(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets())
    job_id = world.submit(budget_uusd=100_000, max_workers=2)  # 60,000 are one machine for ten minutes
    for number in range(30):
        world.tick()
        if number == 5:
            world.start(job_id)
        holds = {line.hold for line in world.controller.status().demand if line.hold}
        assert all("of what it has to pay for, and of one more machine at $0.36/h: $0.12 " in why for why in holds)
    assert len(world.journal.fleet.nodes) == 1
    assert any("--budget +0.03`" in why for why in holds), "what is lacking by now"
    assert len(held(world)) == len(set(held(world))) <= 2, "not at each tick, though what is left changes"
    world.journal.log.close()


def held(world: World) -> list[str]:
    decided = [event for _, event in world.journal.log.read() if isinstance(event, DecisionRecorded)]
    return [event.subject for event in decided if event.action == "hold"]


def test_a_larger_budget_that_is_still_too_small_is_told_anew(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets())
    job_id = world.submit(budget_uusd=4000)
    world.tick()
    world.controller.resume(job_id, ResumeRequest(add_uusd=20_000))
    world.tick()
    assert len(world.said) == 2
    assert f"the budget of job {job_id}, $0.0240, does not pay for 10 minutes" in world.said[1]
    assert "used" not in world.said[1]
    world.controller.resume(job_id, ResumeRequest(add_uusd=40_000))
    world.tick()
    assert len(world.journal.fleet.nodes) == 1, "as much as was said"
    world.journal.log.close()


def test_whoever_submits_is_told_of_a_budget_on_which_nothing_can_start(tmp_path: Path) -> None:
    world = World(tmp_path, Budgets())
    world.tick()  # the fleet knows its prices
    contract = world.controller.submit(elastic(budget_uusd=4000)).contract
    assert contract is not None
    assert contract.reason.startswith("that is too little to start: machines are bought only if it pays for 10 minutes")
    assert "the cheapest for 1 worker (gcp/us-central1-a/g2/spot) need $0.0600; raise it with" in contract.reason
    assert contract.reason.endswith("--budget +0.06`")
    two = world.controller.submit(elastic(budget_uusd=100_000, max_workers=2, min_workers=2)).contract
    assert two is not None
    assert "for 2 workers (gcp/us-central1-a/g2/spot) need $0.12;" in two.reason
    assert two.reason.endswith("--budget +0.02`")
    enough = world.controller.submit(elastic(budget_uusd=60_000, max_workers=2)).contract
    assert enough is not None
    assert "too little" not in enough.reason
    world.journal.log.close()


@pytest.mark.parametrize("gang", [False, True])
def test_a_job_that_was_sent_past_us_is_held_to_its_tenants_budget(tmp_path: Path, gang: bool) -> None:
    """By plain `ray job submit`: nobody could refuse it, so what it asks for is not bought."""
    for limit_uusd, most in ((1000, 0), (10_000_000, 2)):
        world = World(tmp_path / str(most), Budgets(tenants_uusd={"vision": limit_uusd}))
        meta = {"tenant": "vision"}
        world.ray.jobs = [RayJob("01000000", "raysubmit_x", False, "RUNNING", metadata=meta, entrypoint="python x.py")]
        world.tick()
        assert world.journal.fleet.jobs["raysubmit_x"].foreign
        if gang:
            world.ray.submit_gang([{"GPU": 1.0}] * 2, Strategy.STRICT_SPREAD, job_id="raysubmit_x")
        else:
            world.ray.submit({"GPU": 1.0}, count=2, job_id="raysubmit_x")
        for _ in range(5):
            world.tick()
        assert len(world.journal.fleet.nodes) == most
        told = [event for _, event in world.journal.log.read() if isinstance(event, DecisionRecorded)]
        said = [event for event in told if event.action == "budget" and "the budget of tenant vision" in event.reason]
        assert {event.subject for event in said} == ({"raysubmit_x"} if not most else set())
        assert len(said) <= 1, "once, not at every tick"
        world.journal.log.close()


def two_tenants(tmp_path: Path) -> tuple[World, str, str]:
    """One that has spent its money, and one that has plenty."""
    world = World(tmp_path, Budgets(tenants_uusd={"poor": 1000, "rich": 50_000_000}))
    specs = [JobSpec(name=tenant, entrypoint="x", tenant=tenant) for tenant in ("poor", "rich")]
    poor, rich = (world.controller.submit(spec).job_id for spec in specs)
    world.tick()
    return world, poor, rich


def told(world: World) -> dict[str, str]:
    events = [event for _, event in world.journal.log.read() if isinstance(event, DecisionRecorded)]
    return {event.subject: event.reason for event in events if event.action == "budget"}


def test_what_is_refused_to_one_is_not_told_to_another(tmp_path: Path) -> None:
    world, poor, rich = two_tenants(tmp_path)
    broke = world.submit(budget_uusd=500)  # of a tenant without a budget
    world.tick()
    before = told(world)
    assert world.controller._keeper.admit(OFFER, [broke])
    news = {job_id: why for job_id, why in told(world).items() if before.get(job_id) != why}
    assert set(news) <= {broke}
    assert f"the budget of job {broke}" in told(world)[broke]
    assert not {poor, rich} & set(told(world))
    world.journal.log.close()


def test_what_is_refused_to_a_new_job_is_not_told_to_others(tmp_path: Path) -> None:
    """It was submitted after the keeper looked, so its tenant is not known there yet."""
    world, poor, _ = two_tenants(tmp_path)
    new = world.controller.submit(JobSpec(name="new", entrypoint="x", tenant="poor")).job_id
    assert world.controller._keeper.admit(OFFER, [new])
    assert told(world) == {}
    world.tick()
    assert world.controller._keeper.admit(OFFER, [new])
    assert poor not in told(world)
    assert "the budget of tenant poor" in told(world)[new]
    world.journal.log.close()


def test_each_is_told_of_its_own_money_where_nobody_knows_whose_tasks_wait(tmp_path: Path) -> None:
    world, poor, rich = two_tenants(tmp_path)
    broke = world.submit(budget_uusd=500)
    world.tick()
    assert world.controller._keeper.admit(OFFER, [])
    said = told(world)
    assert rich not in said
    assert "for tasks that wait, which may be its own" in said[poor]
    assert "the budget of tenant poor" in said[poor]
    assert "tenant poor" not in said[broke]
    world.journal.log.close()


def test_a_clock_that_is_set_back_makes_no_refusal_last(tmp_path: Path) -> None:
    world, poor, _ = two_tenants(tmp_path)
    keeper = world.controller._keeper
    assert keeper.admit(OFFER, [poor])
    assert poor in keeper._refused
    world.clock.set_by(-86_400)
    keeper.closed()
    assert poor not in keeper._refused, "it is asked for anew, not in a day"
    world.journal.log.close()


@pytest.mark.parametrize("jump_s", [-1.0, -86_400.0, 86_400.0])
def test_a_clock_that_is_set_forgets_no_launch_that_was_just_admitted(tmp_path: Path, jump_s: float) -> None:
    world = World(tmp_path, Budgets(fleet_uusd=100_000))  # pays for one node for ten minutes, not for two
    world.tick()
    keeper = world.controller._keeper
    assert keeper.admit(OFFER, []) == ""
    world.clock.set_by(jump_s)
    world.tick()
    assert "the budget of the fleet" in keeper.admit(OFFER, [])
    world.tick(after_s=20.0)
    world.tick()
    assert keeper.admit(OFFER, []) == "", "it is not on record: it was never launched"
    world.journal.log.close()
