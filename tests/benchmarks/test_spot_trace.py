"""Traces of spot nodes, as the chaos benchmark reads them: it will be given ones that nobody has seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import JobError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def trace() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import training.spot_trace

        yield training.spot_trace
        for name in [name for name in sys.modules if name.partition(".")[0] == "training"]:
            del sys.modules[name]


def as_json(counts: list[int], gap_s: float = 300) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap_s}, "data": counts})


def replayed(trace: Any, text: str, max_nodes: int, count: int = 8) -> list[int]:
    return [level.nodes for level in islice(trace.replay(trace.parse(text), max_nodes), count)]


def test_ticks_become_levels(trace: Any) -> None:
    assert trace.parse(as_json([4, 4, 3, 0, 0])) == [
        trace.Level(4, 600.0),
        trace.Level(3, 300.0),
        trace.Level(0, 600.0),
    ]


def test_events_become_levels_and_one_moment_is_one_change(trace: Any) -> None:
    text = "0,add,a\n0,add,b\n60000,remove,a\n60000,remove,b\n60000,add,c\n90000,add,b\n"
    assert trace.parse(text) == [trace.Level(2, 60.0), trace.Level(1, 30.0), trace.Level(2, 0.0)]


def test_a_node_that_is_removed_twice_is_gone_once(trace: Any) -> None:
    text = "0,add,a\n0,add,b\n1000,remove,a\n2000,remove,a\n3000,add,a\n"
    assert [level.nodes for level in trace.parse(text)] == [2, 1, 2]


def test_counts_become_levels(trace: Any) -> None:
    text = "2021-12-11, 11:11:30, 55\n2021-12-11, 11:13:30, 54\n2021-12-11, 11:14:00, 54\n2021-12-12, 11:14:00, 56\n"
    assert trace.parse(text) == [trace.Level(55, 120.0), trace.Level(54, 86430.0), trace.Level(56, 0.0)]


def test_a_line_with_the_names_of_columns_is_passed_over(trace: Any) -> None:
    assert [level.nodes for level in trace.parse("ms,what,node\n0,add,a\n10,add,b\n")] == [1, 2]


def test_small_counts_stay_and_the_trace_begins_again(trace: Any) -> None:
    assert replayed(trace, as_json([3, 0, 2]), 4) == [3, 0, 2, 3, 0, 2, 3, 0]


def test_the_seam_is_no_change_where_both_ends_are_equal(trace: Any) -> None:
    assert replayed(trace, as_json([3, 1, 3]), 4, 6) == [3, 1, 3, 1, 3, 1]


def test_large_counts_are_mapped_to_the_nodes_that_there_are(trace: Any) -> None:
    assert replayed(trace, as_json([16, 0, 1, 8, 16]), 4, 4) == [4, 0, 1, 2]
    assert replayed(trace, as_json([64, 17, 40]), 4, 3) == [4, 1, 2]


def test_one_node_stands_for_several_that_begin_elsewhere(trace: Any) -> None:
    """Four copies of 1000 in a circle of four ticks: one is up at any time. Of 1100: two, with no change either."""
    with pytest.raises(JobError, match="never changes"):
        replayed(trace, as_json([1, 0, 0, 0]), 4)
    # 1 for 3 ticks of 8, begun 0, 2, 4 and 6 ticks late: by hand 2 1 2 1 2 1 2 1.
    assert replayed(trace, as_json([1, 1, 1, 0, 0, 0, 0, 0]), 4, 4) == [2, 1, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "hello",
        "{}",
        "[1, 2",
        '{"data": [1, "x"]}',
        '{"data": [1.5, 2]}',
        '{"data": [1, -2]}',
        '{"data": []}',
        '{"data": null}',
        '{"data": [1, Infinity]}',
        '{"metadata": {"gap_seconds": 0}, "data": [1, 2]}',
        "1,2\n3,4",
        "0,add,a\n5,explode,b",
        "2021-12-11, noon, 5",
        "\x00\x01\x02",
    ],
)
def test_what_is_no_trace_is_told(trace: Any, text: str) -> None:
    with pytest.raises(JobError, match="trace"):
        trace.parse(text)


@pytest.mark.parametrize("counts", [[3], [0, 0, 0], [16, 16], [1], [1, 1, 1]])
def test_a_trace_without_a_change_is_told(trace: Any, counts: list[int]) -> None:
    with pytest.raises(JobError, match="never changes"):
        replayed(trace, as_json(counts), 4)


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    max_nodes=st.integers(1, 6),
    gap_s=st.floats(0.001, 1e5),
)
def test_every_trace_is_replayed_within_bounds_or_refused(
    trace: Any, counts: list[int], max_nodes: int, gap_s: float
) -> None:
    levels = trace.parse(as_json(counts, gap_s))
    try:
        found = list(islice(trace.replay(levels, max_nodes), 80))
    except JobError:  # several begun elsewhere may add up to the same at any time, and so may counts that are mapped
        assert max_nodes == 1 or max(counts) <= 1 or len(levels) == 1
        return
    assert len(found) == 80
    assert all(0 <= level.nodes <= max_nodes and level.duration_s >= 0 for level in found)
    assert all(before.nodes != after.nodes for before, after in pairwise(found))


def test_a_made_up_trace_can_be_replayed(trace: Any) -> None:
    levels = trace.make_up(seed=3)
    assert levels == trace.make_up(seed=3)
    assert {level.nodes for level in levels} == {0, 1, 2, 3, 4}
    assert len(list(islice(trace.replay(levels, 4), 80))) == 80
