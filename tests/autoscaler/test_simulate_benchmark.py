"""The replay benchmark: reads any list of jobs, and its bars say what they mean."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.autoscaler.simulate import Outcome, TraceJob

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OURS = ("autoscale_replay", "replaying", "forecasting", "bars")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("autoscale_replay")
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]


def outcome(wait_s: float, usd: float) -> Outcome:
    return Outcome((wait_s,), round(usd * 1e6), 1.0, 1, 1)


def result(benchmark: Any, ours: Outcome, *others: Outcome) -> Any:
    curve = (outcome(200, 110), outcome(100, 130))
    rules = (outcome(180, 104), outcome(120, 106))
    return benchmark.Result("x", outcome(300, 100), curve, rules, ours, others, outcome(0, 99))


def bars_of(benchmark: Any, *results: Any) -> list[Any]:
    bars: list[Any] = benchmark.bars_of("x", benchmark.Whole(results))
    return bars


@pytest.mark.parametrize(
    ("ours", "is_below", "is_half"),
    [
        (outcome(140, 104), True, True),  # the curve has 260 s there
        (outcome(250, 104), False, False),
        (outcome(140, 120), False, False),  # 150 s there; too dear
        (outcome(200, 90), True, False),  # cheaper than all of the curve
        (outcome(10, 140), False, False),  # dearer than all of it: nothing is known
    ],
)
def test_bars(benchmark: Any, ours: Outcome, is_below: bool, is_half: bool) -> None:
    assert [bar.holds for bar in bars_of(benchmark, result(benchmark, ours))] == [is_below, is_half]


def test_of_several_clusters_the_wait_of_all_jobs_counts(benchmark: Any) -> None:
    """Each at its own dollars: nobody gains by spending more on one of them."""
    small = result(benchmark, outcome(250, 104))
    large = replace(result(benchmark, outcome(140, 104)), ours=Outcome((140.0,) * 3, 104_000_000, 1.0, 1, 1))
    below, closed = bars_of(benchmark, small, large)
    assert below.peers["head-room"] == 260
    assert below.ratio == pytest.approx((250 + 3 * 140) / 4 / 260)
    assert closed.ours == pytest.approx((50 + 3 * 160) / 4 / 300)


def test_the_budget_lies_on_our_curve(benchmark: Any) -> None:
    found = result(benchmark, outcome(250, 101), outcome(140, 104), outcome(60, 120))
    assert found.wait_in_budget_s == pytest.approx(135)  # a sixteenth of the way from 140 to 60
    assert benchmark.Whole((found,)).gap_closed(lambda _: 150) == 0.5
    assert result(benchmark, outcome(250, 101)).wait_in_budget_s == 250  # nothing of ours costs more


def test_rules_are_chosen_and_mixed_in_hindsight(benchmark: Any) -> None:
    found = result(benchmark, outcome(250, 104))
    assert found.rules_in_budget_s == pytest.approx(150)  # half way between the two
    assert bars_of(benchmark, found)[1].peers["after rises, in hindsight"] == pytest.approx(0.5)
    assert "after rises, in hindsight" not in bars_of(benchmark, replace(found, rules=()))[1].peers  # nobody asked


def test_nothing_is_asked_that_the_clairvoyant_cannot_do_either(benchmark: Any) -> None:
    found = replace(result(benchmark, outcome(299, 104)), clairvoyant=outcome(0, 106))
    assert not found.is_in_reach
    assert [bar.name for bar in bars_of(benchmark, found)] == ["x: mean wait at equal dollars, s"]
    half = result(benchmark, outcome(140, 104))
    assert (
        bars_of(benchmark, found, half)[1].ours == bars_of(benchmark, half)[1].ours
    )  # it counts for the first bar alone
    trace = benchmark.Trace("x", (TraceJob(0.0, 10.0), TraceJob(3600.0, 10.0)))
    assert any("1.060 x" in note for note in benchmark.notes_of(found, trace))


def test_a_list_of_jobs_is_read_by_group(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_time,duration,gpus,cluster\n0,10,1,a\n90000,10,2,a\n2020-01-01,5,0.5,b\n5,,1,a\n5,0,1,a\n")
    a, b = benchmark.read_traces(path, benchmark.JobColumns(), 0.0, 1.0)
    assert a.jobs == (TraceJob(0.0, 10.0, 1),)
    assert b.jobs[0].workers == 1
    with pytest.raises(SystemExit, match="which column is nope"):
        benchmark.read_traces(path, benchmark.JobColumns(submit="nope"), 0.0, 1.0)


def test_it_runs_without_a_file(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = benchmark.main(["--days", "0.1", "--head-room", "1", "--factors", "--hindsight", "--json"])
    bars = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(bars) in (1, 2)  # the second where the clairvoyant can do it
    assert status == (0 if all(bar["holds"] for bar in bars) else 1)
