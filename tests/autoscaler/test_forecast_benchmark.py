"""The forecast benchmark: reads any file of its formats, and nobody in it sees the future."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HORIZONS = (1, 3)
PEER_MODULES = {"AutoETS": "statsforecast", "LightGBM": "lightgbm"}


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("forecast")
        for name in [name for name in sys.modules if name.partition(".")[0] in ("forecast", "forecasting", "bars")]:
            del sys.modules[name]


def task(benchmark: Any, values: np.ndarray) -> Any:
    times_s = np.arange(len(values)) * 3600.0
    return benchmark.Task(times_s, values, HORIZONS, range(168, len(values) - 3), 24, 24)


def series() -> np.ndarray:
    dice = np.random.default_rng(1)
    return np.maximum(20 + 10 * np.sin(np.arange(230) * np.pi / 12) + dice.normal(0, 2, 230), 0.0)


def answers(benchmark: Any, who: str) -> Callable[[Any], np.ndarray]:
    if who == "ours":
        return lambda given: benchmark.ours(given)[0]
    if who in PEER_MODULES:
        pytest.importorskip(PEER_MODULES[who], reason="the peers of the benchmark are not installed")
    return benchmark.available()[0][who]


@pytest.mark.parametrize("who", ["ours", "persistence", "yesterday", "LightGBM"])
def test_what_comes_after_the_origin_does_not_matter(benchmark: Any, who: str) -> None:
    """AutoETS is handed its past alone and needs no test; the others are handed whole arrays."""
    values, changed = series(), series()
    changed[200:] = 999.0
    before, after = (answers(benchmark, who)(task(benchmark, each)) for each in (values, changed))
    assert np.array_equal(before[: 200 - 168], after[: 200 - 168])
    assert not np.array_equal(before[200 - 168 :], after[200 - 168 :])


def test_yesterday_is_the_value_a_day_before_the_step_that_is_forecast(benchmark: Any) -> None:
    values = series()
    found = answers(benchmark, "yesterday")(task(benchmark, values))
    assert found[0, 0, 0] == values[168 + 1 - 24]
    assert found[0, 1, 0] == values[168 + 3 - 24]


def test_scores_by_hand(benchmark: Any) -> None:
    given = benchmark.Task(np.arange(5) * 3600.0, np.array([0.0, 2.0, 4.0, 6.0, 8.0]), (1,), range(4), 24, 1)
    found = benchmark.score(given, np.array([[[1.0, 2.0]], [[4.0, 5.0]], [[6.0, 5.0]], [[10.0, 9.0]]]))
    assert found.wape.tolist() == [(1 + 0 + 0 + 2) / 20]
    assert found.pinball[0] == pytest.approx((0 + 0.1 + 0.9 + 0.1) / 20)
    assert (found.under[0], found.covered[0]) == (0.5, 0.75)


def test_a_table_is_averaged_over_the_step_and_split_by_group(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text(
        "t,who,rate\n2020-01-01 00:00:00,a,2\n2020-01-01 00:30:00,a,4\n2020-01-01 02:10:00,a,7\n"
        "2020-01-01 00:00:00,b,0\n2020-01-01 01:00:00,c,\n2020-01-01 01:00:00,c,5\n"
    )
    found = benchmark.read_table(path, "t", ("rate",), "who", 3600.0)
    assert {each.name: each.values.tolist() for each in found} == {"rates a": [3.0, 3.0, 7.0], "rates c": [5.0]}


MS_ITP = "job_id,submission_time,duration,num_gpu\nx,0,5400,2\ny,7200,10,1\n"
PHILLY = "timestamp,duration,num_gpus\n1970-01-01 00:00:00,5400.0,2\n1970-01-01 02:00:00,10,1\n"
ENDS = "creation_time,deletion_time,num_gpu\n0,5400,2\n7200,7210,1\n9000,,1\n"


@pytest.mark.parametrize("text", [MS_ITP, PHILLY, ENDS], ids=["ms-itp", "philly", "ends"])
def test_job_lists_of_known_formats_are_read_without_being_told(benchmark: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    (found,) = benchmark.read_jobs(path, benchmark.JobColumns(), 3600.0)
    assert found.values.tolist() == [2.0, 1.0]


def test_ends_count_where_they_are_asked_for(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("time,duration,over,gpus\n0,9,5400,2\n7200,9,7210,1\n")
    (found,) = benchmark.read_jobs(path, benchmark.JobColumns(end="over"), 3600.0)
    assert found.values.tolist() == [2.0, 1.0]


def test_a_field_that_is_no_number_is_named_by_its_row(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("time,duration,gpus\n0,9,2\n5,long,1\n")
    with pytest.raises(SystemExit, match=r"row 3.*long"):
        benchmark.read_jobs(path, benchmark.JobColumns(), 3600.0)


def test_a_column_that_is_not_there_is_named(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("when,long,gpus\n0,1,1\n")
    with pytest.raises(SystemExit, match=r"submission_time.*when, long, gpus.*--submit"):
        benchmark.read_jobs(path, benchmark.JobColumns(), 3600.0)
    with pytest.raises(SystemExit, match="no column nothing"):
        benchmark.read_table(path, "when", ("nothing",), "", 3600.0)


def test_a_peer_that_has_used_up_its_time_goes_on_with_its_last_fit_and_is_named(benchmark: Any) -> None:
    lightgbm, given = answers(benchmark, "LightGBM"), task(benchmark, series())
    poor = replace(given, budget_s=-1.0, capped=set())
    found, rich = lightgbm(poor), lightgbm(given)
    assert (poor.capped, given.capped) == ({"LightGBM"}, set())
    assert np.array_equal(found[:24], rich[:24])  # until the second fit
    assert not np.array_equal(found[24:], rich[24:])
    notes = benchmark.notes_of({"short": None, "x": poor}, benchmark.parse_arguments([]))
    assert notes[:2] == ["short: left out, less than eight days", "x: LightGBM capped"]
