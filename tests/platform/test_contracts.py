"""What people are told of contracts: at submission, while the job runs, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_controller import GPU, World

from tradewind.api import ContractInfo, JobInfo
from tradewind.autoscaler.testing import make_offer
from tradewind.errors import ConfigError
from tradewind.model import Capacity, Contract, JobSpec
from tradewind.planning import admitted, speeds, weigh
from tradewind.render import contract_text, progress_line, status_screen
from tradewind.states import JobState
from tradewind.submission import build_spec

H = 3600.0
SPOT = make_offer("gcp/us-central1-a/g2", usd_per_h=0.36, cpus=4, gpus=1)
DEAR = make_offer("gcp/us-central1-a/g2", usd_per_h=1.00, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)


def spec(deadline_s: float | None = None, budget_uusd: int | None = None, work_s: float | None = 10 * H) -> JobSpec:
    contract = Contract(deadline_s, budget_uusd, work_s)
    return JobSpec("train", "python x.py", min_workers=1, max_workers=2, worker_resources=GPU, contract=contract)


# --- at submission --------------------------------------------------------------------------------------------------


def test_what_cannot_be_kept_is_refused_and_it_is_said_what_would_help() -> None:
    for asked, what, helps in (
        (spec(5 * H), "too short", "a deadline of"),
        (spec(20 * H, 500_000), "below the least", "a budget of"),
    ):
        with pytest.raises(ConfigError, match=what) as caught:
            admitted(asked, weigh(asked, [SPOT, DEAR], 0.0, 240.0))
        assert helps in caught.value.hint
        assert "cannot be kept" in str(caught.value)


def test_what_can_be_kept_is_taken_on_with_its_chance() -> None:
    asked = spec(20 * H, 50_000_000)
    assert "can be kept" in admitted(asked, weigh(asked, [SPOT, DEAR], 0.0, 240.0))


def test_where_too_little_is_known_nothing_is_said() -> None:
    for asked in (spec(20 * H, work_s=None), spec(), replace(spec(20 * H), max_workers=0, min_workers=0)):
        assert weigh(asked, [SPOT, DEAR], 0.0, 240.0) is None
    assert weigh(spec(20 * H), [SPOT], 0.0, 240.0) is None, "without on-demand nothing can be promised"
    assert len(speeds(spec(), 0.9)) == 2


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
