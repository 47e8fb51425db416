"""Who rests, in a journal: a job that has slack waits for the clean hours of a file, and is called back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from grant_world import GrantWorld

from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.testing import make_offer
from tradewind.config import FleetConfig
from tradewind.cost.carbon import HOUR_S
from tradewind.cost.clean_hours import CleanHours
from tradewind.errors import ConfigError
from tradewind.events import (
    DecisionRecorded,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    PhaseChanged,
    StepCommitted,
)
from tradewind.journal import Journal
from tradewind.model import Contract, JobSpec, Phase
from tradewind.rests import Rests
from tradewind.service import rests_of
from tradewind.states import JobState
from tradewind.store import EventLog

BEGIN_H = 480_000  # a midnight


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with EventLog.open(tmp_path / "events.db") as log:
        yield Journal.load(log)


def write_grid(path: Path, until_h: int) -> Path:
    """Clean from noon to six."""
    from datetime import UTC, datetime

    lines = ["zone,ts,g_per_kwh"]
    for hour in range(until_h - 720, until_h + 1):
        at = datetime.fromtimestamp(hour * HOUR_S, UTC).isoformat()
        lines.append(f"X,{at},{100 if 12 <= hour % 24 < 18 else 400}")
    path.write_text("\n".join(lines) + "\n")
    return path


def begin(journal: Journal, deadline_at_s: float | None, *, job_id: str = "j") -> None:
    """A job that has taken 10 of 20 steps in two hours."""
    now_s = BEGIN_H * HOUR_S
    spec = JobSpec(job_id, "x", contract=Contract(deadline_at_s=deadline_at_s))
    journal.record(
        JobSubmitted(at_s=now_s - 7200, job_id=job_id, spec=spec),
        LaunchRequested(at_s=now_s - 7200, launch_id=f"n-{job_id}", offer=make_offer(), reason="test"),
        StepCommitted(
            at_s=now_s,
            job_id=job_id,
            attempt=1,
            sequence=1,
            began_s=now_s - 7200,
            first_step=1,
            last_step=10,
            workers=1,
            samples=1,
            total_steps=20,
        ),
    )


def test_it_rests_until_noon_and_only_where_a_deadline_leaves_slack(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S, job_id="slack")
    begin(journal, (BEGIN_H + 3) * HOUR_S, job_id="haste")
    begin(journal, None, job_id="any")
    clock = FakeClock(BEGIN_H * HOUR_S)
    grid = write_grid(tmp_path / "grid.csv", BEGIN_H + 24)  # what lies ahead in it must not be looked at
    rests = Rests(journal, CleanHours(zone="X", margin_s=600), grid, "g_per_kwh", clock.now_s, clock.steady_s)
    rested: dict[int, list[str]] = {}
    for hour in range(16):
        resting = rests.resting()
        rested[hour] = sorted(resting)
        assert all("less than at once" in why for why in resting.values())
        clock.sleep(HOUR_S)
    assert rested[0] == ["slack"]
    assert all("slack" in rested[hour] for hour in range(11))
    assert any("slack" not in rested[hour] for hour in (12, 13, 14, 15))


def test_it_is_looked_at_once_a_minute_and_a_job_that_is_over_is_forgotten(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S)
    rests = Rests(
        journal, CleanHours(zone="X"), write_grid(tmp_path / "g", BEGIN_H), "g_per_kwh", clock.now_s, clock.steady_s
    )
    assert list(rests.resting()) == ["j"]
    journal.record(JobStateChanged(at_s=clock.now_s(), job_id="j", state=JobState.STOPPING))
    assert list(rests.resting()) == ["j"]
    clock.sleep(61)
    assert rests.resting() == {}


def test_who_cannot_save_does_not_rest_in_this_hour_and_is_told(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S)
    phase(journal, clock, Phase.TRAINING, "the state of step 10 could not be saved", 2)
    rests = Rests(
        journal, CleanHours(zone="X"), write_grid(tmp_path / "g", BEGIN_H), "g_per_kwh", clock.now_s, clock.steady_s
    )
    assert list(rests.resting()) == ["j"]
    journal.record(HoldingChanged(at_s=clock.now_s(), job_id="j", launch_id="n-j", resources={"CPU": 1.0}))
    for _ in range(4):
        clock.sleep(61)
        assert list(rests.resting()) == ["j"]
    clock.sleep(61)
    assert rests.resting() == {}
    clock.sleep(1800)
    assert rests.resting() == {}
    (told,) = [event for _, event in journal.log.read() if isinstance(event, DecisionRecorded)]
    assert told.subject == "j"
    assert "does not rest in this hour, and goes on: it could not save within 5m00s" in told.reason
    assert "(the state of step 10 could not be saved); nothing of it is saved, it has come to step 10" in told.reason
    clock.sleep(1800)
    assert list(rests.resting()) == ["j"], "the next hour is another one"


def test_who_has_saved_and_let_go_may_rest_for_hours(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S)
    phase(journal, clock, Phase.TRAINING, "", 2)
    rests = Rests(
        journal, CleanHours(zone="X"), write_grid(tmp_path / "g", BEGIN_H + 6), "g_per_kwh", clock.now_s, clock.steady_s
    )
    assert list(rests.resting()) == ["j"]
    clock.sleep(200)
    phase(journal, clock, Phase.RESTING, "", 3, workers=0)
    for _ in range(30):
        clock.sleep(500)
        assert list(rests.resting()) == ["j"]


def test_a_clock_that_is_set_back_gives_a_save_no_more_time(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S + 1800)
    phase(journal, clock, Phase.TRAINING, "", 2)
    journal.record(HoldingChanged(at_s=clock.now_s(), job_id="j", launch_id="n-j", resources={"CPU": 1.0}))
    rests = Rests(
        journal, CleanHours(zone="X"), write_grid(tmp_path / "g", BEGIN_H), "g_per_kwh", clock.now_s, clock.steady_s
    )
    assert list(rests.resting()) == ["j"]
    clock.set_by(-1200)
    assert list(rests.resting()) == ["j"]
    for _ in range(6):
        clock.sleep(61)
        found = rests.resting()
    assert found == {}, "not only when the clock has come to where it was"


def test_a_clock_that_is_set_forward_cuts_off_no_save(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S)
    phase(journal, clock, Phase.TRAINING, "", 2)
    grid = write_grid(tmp_path / "g", BEGIN_H)
    rests = Rests(journal, CleanHours(zone="X"), grid, "g_per_kwh", clock.now_s, clock.steady_s)
    journal.record(HoldingChanged(at_s=clock.now_s(), job_id="j", launch_id="n-j", resources={"CPU": 1.0}))
    assert list(rests.resting()) == ["j"]
    clock.set_by(400)
    assert list(rests.resting()) == ["j"]
    assert unable(journal) == []


def test_who_was_not_told_to_rest_is_not_said_to_be_unable_to_save(journal: Journal, tmp_path: Path) -> None:
    """Its contract is in haste, or its head is silent."""
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock, told = FakeClock(BEGIN_H * HOUR_S), set[str]()
    phase(journal, clock, Phase.TRAINING, "", 2)
    grid = write_grid(tmp_path / "g", BEGIN_H)
    rests = Rests(
        journal, CleanHours(zone="X"), grid, "g_per_kwh", clock.now_s, clock.steady_s, knows=lambda name: name in told
    )
    journal.record(HoldingChanged(at_s=clock.now_s(), job_id="j", launch_id="n-j", resources={"CPU": 1.0}))
    for _ in range(20):
        assert list(rests.resting()) == ["j"]
        clock.sleep(61)
    told.add("j")
    for _ in range(5):
        assert list(rests.resting()) == ["j"], "its time begins when it is told"
        clock.sleep(61)
    assert unable(journal) == []
    assert rests.resting() == {}
    assert unable(journal) == ["j"]


def test_the_agents_know_who_was_told_to_rest(tmp_path: Path) -> None:
    world = GrantWorld(tmp_path, 1)
    (job_id,) = world.trainees
    carbon = {"grid": str(write_grid(tmp_path / "g", BEGIN_H)), "zone": "X"}
    rests = rests_of(FleetConfig.model_validate({"name": "f", "carbon": carbon}), world.journal, [world.cell])
    world.run(5)
    assert not rests._knows(job_id)
    world.resting[job_id] = "better hours come"
    world.run(5)
    assert rests._knows(job_id)
    world.close()


def unable(journal: Journal) -> list[str]:
    return [event.subject for _, event in journal.log.read() if isinstance(event, DecisionRecorded)]


def phase(journal: Journal, clock: FakeClock, what: Phase, why: str, sequence: int, workers: int = 1) -> None:
    at_s = clock.now_s()
    event = PhaseChanged(at_s=at_s, job_id="j", attempt=1, sequence=sequence, phase=what, workers=workers, reason=why)
    journal.record(event)


def test_new_figures_are_looked_at_at_once(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S)
    grid = write_grid(tmp_path / "grid.csv", BEGIN_H)
    rests = Rests(journal, CleanHours(zone="X"), grid, "g_per_kwh", clock.now_s, clock.steady_s)
    assert list(rests.resting()) == ["j"]
    lines = grid.read_text().splitlines()
    grid.write_text("\n".join([*lines[:-1], lines[-1].replace(",400", ",10")]))
    os.utime(grid, ns=(0, 1))  # another time, however coarse the disk's clock is
    clock.sleep(1)
    assert rests.resting() == {}


def test_a_file_that_is_gone_or_old_lets_everybody_run(journal: Journal, tmp_path: Path) -> None:
    begin(journal, (BEGIN_H + 48) * HOUR_S)
    clock = FakeClock(BEGIN_H * HOUR_S)
    grid = write_grid(tmp_path / "grid.csv", BEGIN_H)
    rests = Rests(journal, CleanHours(zone="X"), grid, "g_per_kwh", clock.now_s, clock.steady_s)
    assert list(rests.resting()) == ["j"]
    grid.unlink()
    clock.sleep(4 * HOUR_S)
    assert rests.resting() == {}


def test_without_the_wish_nobody_rests(journal: Journal) -> None:
    begin(journal, (BEGIN_H + 24) * HOUR_S)
    rests = rests_of(FleetConfig(name="f"), journal)
    assert rests.resting() == {}


def test_a_wrong_file_is_told_at_the_start(journal: Journal, tmp_path: Path) -> None:
    config = FleetConfig.model_validate({"name": "f", "carbon": {"grid": str(tmp_path / "none.csv"), "zone": "X"}})
    with pytest.raises(ConfigError, match=r"none\.csv"):
        rests_of(config, journal)
    with pytest.raises(ValueError, match="which lines of the file"):
        FleetConfig.model_validate({"name": "f", "carbon": {"grid": "/grid.csv"}})
    with pytest.raises(ValueError, match="must begin with"):
        FleetConfig.model_validate({"name": "f", "carbon": {"grid": "grid.csv", "zone": "X"}})
