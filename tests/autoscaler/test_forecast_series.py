"""Demand as equal steps: observations at any time, job rows, the event log."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.forecast.demand_log import spans_of_events
from tradewind.autoscaler.forecast.series import (
    Sampler,
    SeriesKey,
    Span,
    Steps,
    series_of_jobs,
    series_of_spans,
)
from tradewind.autoscaler.shape import Shape
from tradewind.events import AnyEvent, HoldingChanged, JobStateChanged, JobSubmitted
from tradewind.model import JobSpec
from tradewind.states import JobState


def closed(*observations: tuple[float, float], step_s: float = 10.0) -> list[tuple[float, float, bool]]:
    sampler = Sampler(step_s)
    steps = [step for at_s, value in observations for step in sampler.observe(at_s, value)]
    return [(step.start_s, step.value, step.known) for step in steps]


def test_a_step_is_the_mean_of_the_level_over_it() -> None:
    assert closed((0, 2.0), (5, 4.0), (10, 0.0)) == [(0, 3.0, True)]


def test_nothing_is_said_of_a_step_that_is_not_over() -> None:
    assert closed((0, 2.0), (9.9, 4.0)) == []


def test_a_gap_holds_the_level_and_is_marked() -> None:
    assert closed((0, 2.0), (5, 2.0), (41, 7.0)) == [
        (0, 2.0, True),
        (10, 2.0, True),
        (20, 2.0, False),
        (30, 2.0, False),
    ]


def test_a_value_that_is_no_number_is_no_observation_and_below_zero_is_zero() -> None:
    assert closed((0, 2.0), (5, math.nan), (6, math.inf), (10, -3.0), (20, 1.0)) == [(0, 2.0, True), (10, 0.0, True)]


def test_a_clock_that_is_set_back_a_little_adds_no_time() -> None:
    assert closed((0, 2.0), (8, 4.0), (6, 4.0), (10, 0.0)) == [(0, 2.4, True)]


def test_a_clock_that_is_set_back_far_goes_on_at_the_new_time() -> None:
    assert closed((1000, 2.0), (1010, 2.0), (500, 2.0), (510, 2.0)) == [(1000, 2.0, True), (500, 2.0, True)]


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, math.inf])
def test_a_step_must_have_a_length(step_s: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        Sampler(step_s)


def test_demand_of_jobs_by_hand() -> None:
    steps = series_of_jobs([(0, 15, 2), (5, 10, 4), (30, 1, 1), (3, math.nan, 9), (4, -1, 9)], step_s=10)
    assert steps.start_s == 0
    assert steps.values.tolist() == [4.0, 3.0, 0.0]


def test_no_jobs_make_no_steps() -> None:
    assert len(series_of_jobs([], step_s=10).values) == 0


JOBS = st.lists(st.tuples(st.floats(0, 500), st.floats(1, 300), st.integers(1, 8)), min_size=1, max_size=20)


@given(JOBS)
@settings(max_examples=60, deadline=None)
def test_steps_add_up_to_all_the_time_that_was_wanted(jobs: list[tuple[float, float, int]]) -> None:
    spans = [Span(submit, submit + duration, amount) for submit, duration, amount in jobs]
    steps = series_of_spans(spans, step_s=10.0, until_s=1000.0)
    wanted = sum(duration * amount for _, duration, amount in jobs)
    assert steps.values.sum() * 10.0 == pytest.approx(wanted, rel=1e-6)
    assert (steps.values >= 0).all()


@given(JOBS)
@settings(max_examples=40, deadline=None)
def test_job_rows_and_observations_give_the_same_steps(jobs: list[tuple[float, float, int]]) -> None:
    spans = [Span(float(round(a)), float(round(a + b) + 1), float(n)) for a, b, n in jobs]
    expected = series_of_spans(spans, step_s=10.0, until_s=1000.0)
    sampler, found = Sampler(10.0), []
    for at_s in range(int(expected.start_s), 1001):
        level = sum(span.amount for span in spans if span.start_s <= at_s < span.end_s)
        found += [step.value for step in sampler.observe(float(at_s), level)]
    assert np.allclose(found, expected.values)


GPU = {"GPU": 1.0}


def submitted(at_s: float, job_id: str, workers: int, tenant: str = "a") -> JobSubmitted:
    spec = JobSpec(
        name=job_id, entrypoint="x", tenant=tenant, min_workers=workers, max_workers=workers, worker_resources=GPU
    )
    return JobSubmitted(at_s=at_s, job_id=job_id, spec=spec)


def series_of_log(events: Sequence[AnyEvent], until_s: float) -> dict[SeriesKey, Steps]:
    spans = spans_of_events(events, until_s)
    return {key: series_of_spans(spans[key], 10, until_s) for key in sorted(spans)}


def test_the_event_log_gives_a_series_for_each_tenant_and_shape() -> None:
    events = [
        submitted(0, "one", 2),
        submitted(5, "two", 4, tenant="b"),
        JobStateChanged(at_s=15, job_id="one", state=JobState.SUCCEEDED),
    ]
    series = series_of_log(events, until_s=30)
    shape = Shape.of(GPU)
    assert series[SeriesKey("a", shape)].values.tolist() == [2.0, 1.0, 0.0]
    assert series[SeriesKey("b", shape)].values.tolist() == [2.0, 4.0, 4.0]


def test_a_job_that_asks_ray_itself_is_known_by_what_it_holds() -> None:
    events = [
        submitted(0, "one", 0, tenant="b"),
        HoldingChanged(at_s=10, job_id="one", launch_id="n", resources={"GPU": 2.0}),
        HoldingChanged(at_s=25, job_id="one", launch_id="n"),
        JobStateChanged(at_s=26, job_id="one", state=JobState.SUCCEEDED),
        HoldingChanged(at_s=27, job_id="one", launch_id="n", resources={"GPU": 2.0}),  # told late: it has ended
    ]
    series = series_of_log(events, until_s=40)
    assert {key: steps.values.tolist() for key, steps in series.items()} == {
        SeriesKey("b", Shape.of({"GPU": 1.0})): [2.0, 1.0, 0.0]
    }
