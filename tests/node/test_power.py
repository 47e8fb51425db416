"""A node's meter: what it tells its desk, and what of it goes on record."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tradewind.cells.energy import ASK_EVERY_S, EnergyWatch
from tradewind.cost.energy_meter import EnergyMeter
from tradewind.errors import RayError
from tradewind.node.join_desk import EnergyReport
from tradewind.node.power import PowerReporter, start


class Counter:
    """So many joules for each reading of its clock."""

    name = "fake"

    def __init__(self) -> None:
        self.total_j = 0.0

    def joules(self) -> float:
        return self.total_j


class Bench:
    """A meter whose minutes pass when it is told; `stop` is set after so many."""

    def __init__(self, minutes: int) -> None:
        self.counter, self.now_s, self.left, self.stop = Counter(), 0.0, minutes, threading.Event()
        self.meter = EnergyMeter([self.counter], [], lambda: self.now_s)
        self.told: list[EnergyReport] = []

    def wait(self, _: float) -> bool:
        self.now_s += 60.0
        self.counter.total_j += 60.0 * 200.0
        self.left -= 1
        return self.left <= 0

    def run(self, tell: Callable[[EnergyReport], None] | None = None) -> None:
        self.stop.wait = self.wait  # type: ignore[method-assign, assignment]
        PowerReporter(self.meter, tell or self.told.append, "n1", "0").run(self.stop)


def test_it_tells_ever_more_seldom_and_at_the_end() -> None:
    bench = Bench(minutes=300)
    bench.run()
    seconds = [report.seconds for report in bench.told]
    assert seconds[:4] == [60.0, 120.0, 180.0, 240.0]
    assert len(seconds) < 25
    assert bench.told[-1] == EnergyReport("n1", "0", 18000.0, pytest.approx(18000.0 * 200.0), None)


def test_a_desk_that_does_not_answer_is_told_later() -> None:
    bench = Bench(minutes=10)

    def tell(report: EnergyReport) -> None:
        if report.seconds < 300.0:
            raise RayError("no answer")
        bench.told.append(report)

    bench.run(tell)
    assert bench.told[0].seconds == 300.0
    assert bench.told[-1].card_joules == pytest.approx(600.0 * 200.0)


def test_a_card_that_is_gone_ends_the_meter_and_not_the_node() -> None:
    bench = Bench(minutes=10)

    def broken() -> float:
        raise RuntimeError("GPU is lost")

    bench.counter.joules = broken  # type: ignore[method-assign]
    bench.run()
    assert bench.told == []


def test_a_machine_without_counters_has_no_thread() -> None:
    before = threading.active_count()
    start(EnergyMeter([], []), lambda _: None, "n1", "", threading.Event())
    assert threading.active_count() == before


def test_what_is_new_goes_on_record_once() -> None:
    watch, first = EnergyWatch(), EnergyReport("n1", "", 60.0, 6000.0, None)
    assert [watch.is_due(share * ASK_EVERY_S) for share in (0.0, 0.5, 1.0, 1.5, 2.0)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    (found,) = watch.news([first], 100.0)
    assert (found.at_s, found.launch_id, found.seconds, found.card_joules) == (100.0, "n1", 60.0, 6000.0)
    assert watch.news([first], 160.0) == []
    assert [each.seconds for each in watch.news([EnergyReport("n1", "", 120.0, 1.0, None)], 220.0)] == [120.0]
