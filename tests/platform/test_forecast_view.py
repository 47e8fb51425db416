"""`tradewind forecast`: from events to a report, its chart, and the ways to ask for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tradewind.api import ForecastReport
from tradewind.autoscaler.expected import new_book
from tradewind.autoscaler.forecast import SeriesKey
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import LoopSettings
from tradewind.chart import Canvas, nice_top, with_labels
from tradewind.cli import cli
from tradewind.cli_base import Options
from tradewind.client import Fleet, connect
from tradewind.errors import NotFound
from tradewind.events import AnyEvent, JobStateChanged, JobSubmitted
from tradewind.forecast_text import forecast_text
from tradewind.forecast_view import ForecastDesk, Question, use_of
from tradewind.home import FleetHome
from tradewind.model import JobSpec
from tradewind.states import JobState
from tradewind.testing import FakeController, served

HOUR_S = 3600.0
NOW_S = 1_800_000_000.0
SETTINGS = LoopSettings("fleet")
AHEAD = replace(SETTINGS, buy_ahead=True)
RESEARCH = SeriesKey("research", Shape.of({"GPU": 1.0}))


def job(tenant: str, number: int, from_s: float, until_s: float | None, **spec: object) -> Iterator[AnyEvent]:
    """Wanted from one moment to another; None: still."""
    name = f"{tenant}-{number}"
    fields = {"min_workers": 2, "max_workers": 2, "worker_resources": {"GPU": 1.0}, **spec}
    yield JobSubmitted(at_s=from_s, job_id=name, spec=JobSpec(name=name, entrypoint="x", tenant=tenant, **fields))  # type: ignore[arg-type]
    if until_s is not None:
        yield JobStateChanged(at_s=until_s, job_id=name, state=JobState.FAILED)


def history(hours: float, tenant: str = "research") -> list[AnyEvent]:
    """A job each half an hour, longer by day than by night; the last two run still."""
    found: list[AnyEvent] = []
    for number in range(int(hours * 2)):
        from_s = NOW_S - hours * HOUR_S + number * HOUR_S / 2
        until_s = from_s + HOUR_S * (3.0 + 2.0 * math.sin(from_s / 86400.0 * 2 * math.pi))
        found += job(tenant, number, from_s, until_s if until_s < NOW_S else None)
    return sorted(found, key=lambda event: event.at_s)


def report_of(events: list[AnyEvent], question: Question | None = None) -> ForecastReport:
    desk = ForecastDesk()
    desk.read(enumerate(events, start=1))
    return desk.report(question or Question(NOW_S, SETTINGS))


# --- the report ----------------------------------------------------------------------------------------------------


def test_a_series_has_its_past_its_quantiles_and_how_good_they_were() -> None:
    (series,) = report_of(history(30.0)).series
    assert (series.tenant, series.shape) == ("research", "{GPU: 1}")
    assert series.history[-1].amount == series.now > 0
    assert NOW_S - 12 * HOUR_S < series.history[0].at_s < series.history[-1].at_s == NOW_S
    assert [each.ahead_s for each in series.ahead] == [900.0, 1800.0, 3600.0, 7200.0]
    for each in series.ahead:
        assert each.point.at_s == NOW_S + each.ahead_s
        assert each.point.p10 <= each.point.p50 <= each.point.p90
        assert each.scored > 50
        assert each.wape is not None
        assert each.persistence_wape is not None
        assert each.under_p90 is not None
        assert each.covered_p90 is not None
        assert each.under_p90 <= each.covered_p90
    assert all(NOW_S - 12 * HOUR_S <= said.at_s <= NOW_S for said in series.said)


def test_questions_go_on_from_each_other() -> None:
    """Asked twice with events in between, or once: the same answer."""
    events, later_s = history(20.0), NOW_S + HOUR_S
    more = list(job("research", 1000, NOW_S + 60.0, None))
    desk = ForecastDesk()
    desk.read(enumerate(events, start=1))
    desk.report(Question(NOW_S, SETTINGS))
    desk.read(enumerate([*events, *more], start=1))  # what was read before is passed over
    found = desk.report(Question(later_s, SETTINGS))
    assert found.series[0].now == report_of(events).series[0].now + 2
    assert found == report_of([*events, *more], Question(later_s, SETTINGS))


def test_from_the_first_minute_on_there_is_an_answer() -> None:
    empty = report_of([])
    assert empty.series == ()
    assert "nothing to forecast" in str(empty)
    assert "buy_ahead: true" in str(empty)
    (series,) = report_of(list(job("a", 1, NOW_S - 60.0, None))).series
    assert (series.now, series.history[-1].amount) == (2.0, 2.0)
    assert not any(each.has_interval for each in series.ahead)
    assert "no quantiles yet: 1m00s of history, 4h are needed" in str(report_of(list(job("a", 1, NOW_S - 60.0, None))))


def test_a_tenant_a_resource_or_a_part_of_a_shape_can_be_asked_for() -> None:
    events = [*history(5.0), *job("alice", 1, NOW_S - 60.0, None, worker_resources={"TPU": 4.0}, max_workers=99)]
    for what in ("alice", "tpu", "TPU: 4", "ali"):
        assert [series.tenant for series in report_of(events, Question(NOW_S, SETTINGS, what)).series] == ["alice"]
    found = report_of(events, Question(NOW_S, SETTINGS, most=1))
    assert [series.tenant for series in found.series] == ["alice"]  # wants the most
    assert found.others == ("research: {GPU: 1}",)
    with pytest.raises(NotFound, match=r"like H100 .*alice: {TPU: 4}; research: {GPU: 1}"):
        report_of(events, Question(NOW_S, SETTINGS, "H100"))


def test_whether_nodes_are_bought_by_it_is_said() -> None:
    assert use_of(None, 3.0, SETTINGS) == (
        False,
        "no: buying ahead is off; `forecast: {buy_ahead: true}` in the fleet file turns it on",
    )
    book = new_book(AHEAD)
    for minute in range(41):
        book.observe(minute * 60.0, {RESEARCH: 3.0})
    is_used, why = use_of(book.forecasts(2400.0)[RESEARCH], 3.0, AHEAD)
    assert not is_used
    assert "40 minutes of history, 45 minutes are needed" in why
    for minute in range(41, 46):
        book.observe(minute * 60.0, {RESEARCH: 3.0})
    is_used, why = use_of(book.forecasts(2700.0)[RESEARCH], 3.0, AHEAD)
    assert is_used
    assert why.startswith("yes: 3 now, up to 3 within 5m00s")
    growth = book.forecasts(2700.0)
    assert report_of(history(5.0), Question(NOW_S, AHEAD, growth=growth)).series[0].is_used


# --- the chart -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [56, 60, 72, 80, 200])
@pytest.mark.parametrize("hours", [0.1, 30.0])
def test_the_text_fits_and_has_no_colours_unless_told(width: int, hours: float) -> None:
    report = report_of(history(9.0), Question(NOW_S, SETTINGS, hours=hours))
    text = forecast_text(report, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert "now" in text
    assert "demand" in text
    assert "░" in text
    assert "\x1b" in forecast_text(report, width, coloured=True)


def axis_of(text: str) -> tuple[str, str]:
    """(the axis, the times under it), from its first column on."""
    lines = text.splitlines()
    row = next(number for number, line in enumerate(lines) if "└" in line)
    begin = lines[row].index("└") + 1
    return lines[row][begin:], lines[row + 1][begin:]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_past_and_forecast_have_one_time_scale(width: int) -> None:
    """12 hours and 2: `now` stands at 12 of 14 parts."""
    text = forecast_text(report_of(history(30.0)), width)
    axis, times = axis_of(text)
    assert set(axis) == {"─"}
    assert times.index("now") + 1 == pytest.approx(len(axis) * 12 / 14, abs=1.0)
    assert "two time scales" not in text


@pytest.mark.parametrize(("hours", "told"), [(0.2, "14s before now, 5m20s after"), (60.0, "before now, 5m20s after")])
def test_where_one_scale_would_be_too_narrow_the_break_is_shown_and_told(hours: float, told: str) -> None:
    text = forecast_text(report_of(history(70.0), Question(NOW_S, SETTINGS, hours=hours)), 80)
    axis, times = axis_of(text)
    assert abs(axis.index("╨") - times.index("now") - 1) <= 1
    assert "║" in text
    assert "┊" not in text
    assert "two time scales: a column is" in text
    assert told in text


def test_times_are_those_of_the_reader() -> None:
    report = report_of(history(30.0))  # made at 08:00 UTC
    here, there = (forecast_text(report, zone=timezone(timedelta(hours=hours))) for hours in (0, 5.5))
    assert "08:15" in here
    assert "06:00" in here
    assert "13:45" in there
    assert "12:00" in there


def test_a_line_a_band_and_a_rule_lie_where_they_should() -> None:
    canvas = Canvas(columns=4, rows=2, top=7.0)
    canvas.band([(0.0, 0.0), (0.6, 0.0)], [(0.0, 7.0), (0.6, 7.0)])
    canvas.rule(0.99)
    canvas.line([(0.0, 7.0), (0.24, 7.0)])
    assert canvas.lines(coloured=False) == ["⠉░ ┊", "░░ ┊"]


def test_the_top_is_a_round_number_that_is_high_enough() -> None:
    assert [nice_top(value) for value in (0.0, 1.0, 7.0, 10.0, 11.0, 130.0)] == [1.0, 1.0, 8.0, 10.0, 12.0, 160.0]
    assert all(nice_top(value / 7) >= value / 7 for value in range(1, 5000))


def test_labels_never_touch() -> None:
    places = [(0.0, "now"), (0.1, "left"), (0.5, "mid"), (1.0, "end")]
    assert with_labels(places, 20) == "now     mid      end"


# --- asking --------------------------------------------------------------------------------------------------------

Run = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path) -> FleetHome:
    return FleetHome(tmp_path, "fake")


@pytest.fixture
def fake(place: FleetHome) -> Iterator[FakeController]:
    controller = FakeController(place.fleet, now_s=NOW_S)
    controller.record(*history(8.0), *job("alice", 1, NOW_S - 60.0, None))
    with served(place, controller):
        yield controller


@pytest.fixture
def run(place: FleetHome, fake: FakeController) -> Run:
    def invoke(*args: str) -> Result:
        return CliRunner().invoke(cli, ["--home", str(place.root), "--fleet", place.fleet, *args], obj=Options())

    return invoke


@pytest.fixture
def fleet(place: FleetHome, fake: FakeController) -> Iterator[Fleet]:
    with connect(place.root, place.fleet, start=False) as found:
        yield found


def test_the_report_reaches_the_sdk_whole(fleet: Fleet, fake: FakeController) -> None:
    assert fleet.forecast() == fake.forecast()
    assert [series.tenant for series in fleet.forecast("alice", hours=1.0).series] == ["alice"]
    with pytest.raises(NotFound, match="no tenant and no shape like nobody"):
        fleet.forecast("nobody")


def test_the_command_prints_a_chart_or_json(run: Run) -> None:
    text, found = run("forecast", "research", "--hours", "6"), run("forecast", "--json")
    assert (text.exit_code, found.exit_code) == (0, 0), text.stderr + found.stderr
    assert "research: {GPU: 1}" in text.stdout
    assert "alice" not in text.stdout
    assert "P90 HELD" in text.stdout
    report = json.loads(found.stdout)
    assert {series["tenant"] for series in report["series"]} == {"alice", "research"}
    wrong = run("forecast", "nobody")
    assert wrong.exit_code == 1
    assert "Hint: there is demand of alice" in wrong.stderr
    assert run("forecast", "--hours", "1000").exit_code == 2
