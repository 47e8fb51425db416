"""The contract benchmark: its optimum is one, its world keeps the rules, and its bars say what they mean."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OURS = ("spot_contract", "contracting", "bars")
NAMES = ("world", "optimum", "peers", "ours", "calibration")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        found = {name: importlib.import_module(f"contracting.{name}") for name in NAMES}
        yield SimpleNamespace(main=importlib.import_module("spot_contract"), **found)
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]


def task(bench: Any, **changes: float) -> Any:
    given = {"work_s": 500.0, "deadline_s": 900.0, "restart_s": 50.0, "gap_s": 100.0, "spot_price": 0.3, **changes}
    return bench.world.Task(**given)


def random_flags(seed: int, markets: int, ticks: int) -> Any:
    return np.random.default_rng(seed).random((markets, ticks)) < 0.5


def least_by_trying_all(bench: Any, job: Any, flags: Any) -> float:
    places = [bench.world.NOTHING, bench.world.ON_DEMAND, *range(len(flags))]
    best = float("inf")
    for wanted in itertools.product(places, repeat=flags.shape[1]):
        if all(place < 0 or flags[place, tick] for tick, place in enumerate(wanted)):
            run = bench.world.play(job, flags, lambda sight, wanted=wanted: wanted[sight.tick])
            if run.finish_s <= job.deadline_s + 1e-6:
                best = min(best, run.cost)
    return best


@pytest.mark.parametrize("restart_s", [0.0, 50.0, 100.0, 150.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_optimum_is_the_least_of_all(bench: Any, seed: int, restart_s: float) -> None:
    job = task(bench, work_s=350.0, deadline_s=650.0, restart_s=restart_s)
    flags = random_flags(seed, 1, 7)
    assert bench.optimum.optimum(job, flags) == pytest.approx(least_by_trying_all(bench, job, flags))


def test_the_optimum_of_two_markets_is_the_least_of_all(bench: Any) -> None:
    job = task(bench, work_s=250.0, deadline_s=500.0)
    flags = random_flags(5, 2, 5)
    assert bench.optimum.optimum(job, flags) == pytest.approx(least_by_trying_all(bench, job, flags))


def test_what_cannot_be_done_has_no_optimum(bench: Any) -> None:
    assert bench.optimum.optimum(task(bench, deadline_s=400.0), random_flags(1, 1, 4)) == float("inf")


def test_a_budget_ends_a_job_and_is_never_passed(bench: Any) -> None:
    job, flags = task(bench), np.zeros((1, 9), bool)
    player = bench.peers.OnDemand(job)
    whole = bench.world.play(job, flags, player)
    assert bench.world.play(job, flags, player, whole.cost) == whole
    stopped = bench.world.play(job, flags, player, whole.cost - 1.0)
    assert (stopped.cost, stopped.finish_s) == (whole.cost - 1.0, float("inf"))


def test_nobody_is_below_the_optimum_and_nobody_is_late(bench: Any) -> None:
    job = task(bench, work_s=20 * 3600.0, deadline_s=26 * 3600.0, restart_s=600.0, gap_s=600.0)
    for trace in bench.main.made_up(3, 2, days=2.0):
        for window in bench.main.windows(trace, job, 12.0):
            least = bench.optimum.optimum(job, window)
            players = [make(job) for make in bench.main.PEERS.values()]
            for player in (*players, bench.ours.Ours(job)):
                run = bench.world.play(job, window, player)
                assert run.finish_s <= job.deadline_s + 1e-3
                assert run.cost >= least - 1e-6


def test_the_safety_net_of_uniform_progress(bench: Any) -> None:
    job = task(bench)
    player = bench.peers.UniformProgress(job)
    sight = bench.world.Sight(0, 0.0, 500.0, bench.world.NOTHING, 0.0, np.array([False]))
    assert player(sight) == bench.world.NOTHING  # on the line, not behind it
    late = bench.world.Sight(3, 300.0, 500.0, bench.world.NOTHING, 0.0, np.array([True]))
    assert player(late) == bench.world.ON_DEMAND


def test_who_is_on_spot_stays_there_behind_the_safety_net(bench: Any) -> None:
    """The rule of the paper asks who has nothing."""
    job = task(bench)
    for make in (bench.peers.UniformProgress, bench.peers.Greedy):
        on_spot = bench.world.Sight(3, 330.0, 500.0, 0, 0.0, np.array([True]))
        assert make(job)(on_spot) == 0
        lost = bench.world.Sight(3, 330.0, 500.0, bench.world.NOTHING, 0.0, np.array([True]))
        assert make(job)(lost) == bench.world.ON_DEMAND


def test_a_trace_is_read_and_nonsense_is_refused(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": [1, 0, 4]}))
    assert bench.main.read(path).has_spot.tolist() == [[True, False, True]]
    for data, gap in (([], 300), ([1, -1], 300), ([1], 0), ([1], 0.5)):
        path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": data}))
        with pytest.raises(ValueError, match="needs"):
            bench.main.read(path)


def test_markets_are_laid_side_by_side(bench: Any) -> None:
    quick = bench.main.Trace("a", 300.0, np.array([[True, False, True, False]]))
    slow = bench.main.Trace("b", 600.0, np.array([[True, False]]))
    found = bench.main.together([quick, slow])
    assert found.gap_s == 300.0
    assert found.has_spot.tolist() == [[True, False, True, False], [True, True, False, False]]


def setting(bench: Any, ours: float, missed: int = 0) -> Any:
    costs = {"on-demand": [2.0], "greedy": [1.4], "uniform-progress": [1.2], "ours": [ours], "optimum": [1.0]}
    return bench.main.Setting(52.0, 0.05, costs, {**dict.fromkeys(bench.main.PEERS, 0), "ours": missed})


def test_the_bars(bench: Any) -> None:
    def holds(*settings: Any, took_s: float = 1e-3) -> list[bool]:
        return [bar.holds for bar in bench.main.bars_of(settings, [took_s], 1.08)]

    assert holds(setting(bench, 1.05)) == [True, True, True, True, True]
    assert holds(setting(bench, 1.05, missed=1)) == [False, True, True, True, True]
    assert holds(setting(bench, 1.0), setting(bench, 1.25)) == [True, False, False, False, True]
    assert holds(setting(bench, 1.05), took_s=6e-3) == [True, True, True, True, False]


def test_both_means_of_the_ratio_must_hold(bench: Any) -> None:
    """Jobs that cost little weigh as much as others in the second."""
    found = setting(bench, 1.0)
    for name in found.costs:
        found.costs[name] += [10.0 * found.costs[name][0]]
    found.costs["ours"][0] = 1.3  # of one job that costs a tenth of the other
    holds = {bar.name: bar.holds for bar in bench.main.bars_of([found], [1e-3], 1.08)}
    assert holds["cost / optimum, mean of all settings"]
    assert not holds["cost / optimum, mean of all jobs"]


def test_settings_are_told_to_programs_and_short_traces_are_named(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ticks in (("long", 60), ("short", 20)):
        trace = {"metadata": {"gap_seconds": 600}, "data": [1, 1, 0] * (ticks // 3)}
        (tmp_path / f"{name}.json").write_text(json.dumps(trace))
    words = ["--traces", str(tmp_path), "--work-h", "5", "--deadline-h", "6,7", "--restart-h", "0.05", "--every-h", "2"]
    bench.main.main([*words, "--json"])
    shown = capsys.readouterr()
    rows = [row for row in map(json.loads, shown.out.splitlines()) if "deadline_h" in row]
    assert [(row["deadline_h"], row["jobs"], row["missed"]["ours"]) for row in rows] == [(6.0, 3, 0), (7.0, 2, 0)]
    assert all(row["mean_cost_h"]["ours"] >= row["mean_cost_h"]["optimum"] for row in rows)
    assert "shorter than 6 h: short" in shown.err


def test_the_table_of_calibration(bench: Any) -> None:
    _, error = bench.calibration.table([(0.9, True)] * 9 + [(0.9, False)])
    assert error == pytest.approx(0.0)
    _, error = bench.calibration.table([(0.9, False)] * 10)
    assert error == pytest.approx(0.9)


def test_several_budgets_are_asked_for_at_the_start_and_in_the_middle(bench: Any) -> None:
    job = task(bench, work_s=6 * 3600.0, deadline_s=9 * 3600.0, restart_s=300.0, gap_s=600.0)
    asking = bench.calibration.Asking(bench.ours.Ours(job))
    run = bench.world.play(job, random_flags(3, 1, 54), asking)
    number = len(bench.calibration.FACTORS)
    answers = asking.outcomes(run)
    assert len(answers) == 2 * number
    for half in (answers[:number], answers[number:]):
        assert half == sorted(half)  # more money: kept with a higher chance, and kept if less would have done
        assert half[0][0] < half[-1][0]
