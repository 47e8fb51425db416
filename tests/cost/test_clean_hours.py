"""Which jobs rest: what is left of them, where they run, and what the grid's file says."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tradewind.autoscaler.testing import make_offer
from tradewind.cost.carbon import HOUR_S
from tradewind.cost.clean_hours import Candidate, CleanHours, Models, left_of, window_of, zone_of
from tradewind.cost.grid_file import Grid, parse_grid, read_grid
from tradewind.cost.ledger import Ledger
from tradewind.errors import ConfigError
from tradewind.events import (
    AnyEvent,
    HoldingChanged,
    JobSubmitted,
    LaunchRequested,
    NodeJoined,
    NodeLaunched,
    PhaseChanged,
    StepCommitted,
)
from tradewind.model import JobSpec, Phase

BEGIN_H = 480_000  # hours since 1970: a midnight (a multiple of 24)
NOW_S = BEGIN_H * HOUR_S
WISH = CleanHours(restart_s=300, margin_s=0, zone="X")
# 30 days of a grid that is clean (100) from noon to six in the evening, else dirty (400).
GRID = Grid({"X": {hour: 100.0 if 12 <= hour % 24 < 18 else 400.0 for hour in range(BEGIN_H - 720, BEGIN_H + 1)}})


def reports() -> Iterator[AnyEvent]:
    """100 of 400 steps in an hour, then two hours without a node, then 100 more in an hour."""
    offer, at_s = make_offer("aws/us-east-1a/g6", gpus=1), NOW_S - 5 * HOUR_S
    yield JobSubmitted(at_s=at_s, job_id="j", spec=JobSpec("j", "x"))
    yield LaunchRequested(at_s=at_s, launch_id="n", offer=offer, reason="test")
    yield NodeLaunched(at_s=at_s, launch_id="n", instance_id="i")
    yield NodeJoined(at_s=at_s, launch_id="n", ray_node_id="r")
    yield HoldingChanged(at_s=at_s, job_id="j", launch_id="n", resources={"GPU": 1.0})
    for sequence, (began_s, first) in enumerate(((at_s, 1), (at_s + 3 * HOUR_S, 101))):
        phase_s = at_s + HOUR_S * sequence
        yield PhaseChanged(
            at_s=phase_s, job_id="j", attempt=1, sequence=10 * sequence, phase=Phase.RESTARTING, workers=1
        )
        yield StepCommitted(
            at_s=began_s + HOUR_S,
            job_id="j",
            attempt=1,
            sequence=10 * sequence + 1,
            began_s=began_s,
            first_step=first,
            last_step=first + 99,
            workers=1,
            samples=1,
            total_steps=400,
        )


def test_time_without_a_node_does_not_count_as_work() -> None:
    assert left_of(Ledger.fold(reports()), "j") == pytest.approx(2 * HOUR_S)


def test_a_job_that_has_not_said_how_long_it_is_never_rests() -> None:
    ledger = Ledger.fold([JobSubmitted(at_s=0.0, job_id="j", spec=JobSpec("j", "x"))])
    job = Candidate("j", NOW_S + 36 * HOUR_S, running=False, ran_this_hour=False)
    assert left_of(ledger, "j") is None
    assert left_of(Ledger(), "nobody") is None
    assert window_of(job, ledger, GRID, WISH, NOW_S, Models()) is None


def test_it_waits_for_the_clean_hours_and_runs_in_them() -> None:
    ledger, models = Ledger.fold(reports()), Models()
    job = Candidate("j", NOW_S + 24 * HOUR_S, running=True, ran_this_hour=False)
    found = window_of(job, ledger, GRID, WISH, NOW_S, models)
    assert found is not None
    assert not found.run
    assert NOW_S + 12 * HOUR_S <= found.planned[0][0] < found.planned[-1][1] <= NOW_S + 18 * HOUR_S
    noon_s = NOW_S - 12 * HOUR_S
    at_noon = window_of(job, ledger, GRID, WISH, noon_s, models)
    assert at_noon is not None
    assert at_noon.run


def test_an_hour_that_is_begun_is_run_on_and_a_near_deadline_comes_first() -> None:
    ledger = Ledger.fold(reports())
    begun = Candidate("j", NOW_S + 24 * HOUR_S, running=True, ran_this_hour=True)
    near = Candidate("j", NOW_S + 2.2 * HOUR_S, running=False, ran_this_hour=False)
    past = Candidate("j", NOW_S - 60, running=True, ran_this_hour=False)
    for job in (begun, near, past):
        found = window_of(job, ledger, GRID, WISH, NOW_S, Models())
        assert found is not None
        assert found.run


def test_nobody_rests_on_old_figures_or_in_an_unknown_zone() -> None:
    ledger = Ledger.fold(reports())
    job = Candidate("j", NOW_S + 24 * HOUR_S, running=True, ran_this_hour=False)
    assert window_of(job, ledger, GRID, WISH, NOW_S + 5 * HOUR_S, Models()) is None
    assert window_of(job, ledger, GRID, CleanHours(zone="Y"), NOW_S, Models()) is None
    assert window_of(job, ledger, GRID, CleanHours(zones={"eu": "X"}), NOW_S, Models()) is None


def test_the_zone_is_where_it_ran_last() -> None:
    ledger = Ledger.fold(reports())
    assert zone_of(ledger, "j", CleanHours(zones={"us-east-1": "NY"}, zone="X")) == "NY"
    assert zone_of(ledger, "j", CleanHours(zones={"elsewhere": "NY"}, zone="X")) == "X"
    assert zone_of(ledger, "nobody", WISH) == "X"


def test_a_file_is_read_by_its_hours_and_gaps_repeat_what_was_known() -> None:
    lines = ["zone,ts,g\n", "X,1970-01-01 03:00:00+00:00,30\n", "X,1970-01-01T01:00:00,10\n", "X,1970-01-01 04:00,\n"]
    grid = parse_grid(lines, "g")
    assert grid.past("X", 5) == [10.0, 10.0, 30.0, 30.0, 30.0]
    assert grid.past("X", 2) == [10.0, 10.0]
    assert (grid.newest_hour("X"), grid.past("X", 0), grid.past("Y", 5)) == (3, [], [])


def test_several_figures_of_an_hour_count_as_their_mean() -> None:
    lines = ["zone,ts,g\n", *(f"X,1970-01-01 01:{minute:02}:00+00:00,{minute}\n" for minute in (0, 15, 30, 45))]
    assert parse_grid(lines, "g").past("X", 1) == [22.5]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["zone,when,g\n"], "no column ts"),
        ([], "no column zone"),
        (["zone,ts,g\n", "X,noon,1\n"], "line 2: 'noon' is no time"),
        (["zone,ts,g\n", "X,2024-01-01,nan\n"], "line 2: 'nan' is no number"),
    ],
)
def test_a_file_with_mistakes_is_refused(lines: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_grid(lines, "g")


def test_who_has_taken_all_steps_comes_to_its_end() -> None:
    """What is left to do then (a last save, an evaluation) takes no steps: nobody knows when it could go on."""
    told = [replace(event, total_steps=200) if isinstance(event, StepCommitted) else event for event in reports()]
    job = Candidate("j", NOW_S + 24 * HOUR_S, running=True, ran_this_hour=False)
    window = window_of(job, Ledger.fold(told), GRID, WISH, NOW_S, Models())
    assert window is not None
    assert window.run


def test_a_file_that_is_cut_off_is_told_as_a_mistake_in_it(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv.gz"
    path.write_bytes(gzip.compress(b"zone,ts,g_per_kwh\n" + b"X,2024-01-01T00:00,5\n" * 100)[:-12])
    with pytest.raises(ConfigError, match="could not be read"):
        read_grid(path, "g_per_kwh")
    with pytest.raises(ConfigError, match="is no time"):
        parse_grid(["zone,g_per_kwh,ts", "X,5"], "g_per_kwh")
