"""The notice watcher: what a cloud announces is drained once, with the right deadline, whatever fails meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tradewind.errors import RayError, Transient, Unsupported
from tradewind.node.watch import Notice, Watcher, source_of

PREEMPT = Notice("preempt", 1_790_000_120.0, "it goes", "e-1")


@dataclass
class Scripted:
    """Gives one answer a look, the last one for ever. An answer may be an error."""

    answers: list[Sequence[Notice] | Exception]
    looks: int = 0
    acknowledged: list[str] = field(default_factory=list)

    def wait(self, timeout_s: float) -> Sequence[Notice]:
        answer = self.answers[min(self.looks, len(self.answers) - 1)]
        self.looks += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def acknowledge(self, notice: Notice) -> None:
        self.acknowledged.append(notice.id)


@dataclass
class Ray:
    """Where drains arrive. The first ones may fail."""

    answers: list[tuple[bool, str] | Exception] = field(default_factory=list)
    drains: list[tuple[str, float | None]] = field(default_factory=list)

    def __call__(self, message: str, deadline_s: float | None) -> tuple[bool, str]:
        self.drains.append((message, deadline_s))
        answer = self.answers.pop(0) if self.answers else (True, "")
        if isinstance(answer, Exception):
            raise answer
        return answer


def watch(source: Scripted, ray: Ray, looks: int, **more: Callable[..., object]) -> None:
    """Run the watcher until it has looked so often."""
    stop = threading.Event()
    watcher = Watcher(source, ray, poll_s=0.001, **more)  # type: ignore[arg-type]
    thread = threading.Thread(target=watcher.run, args=(stop,))
    thread.start()
    deadline_s = time.monotonic() + 60
    while source.looks < looks and time.monotonic() < deadline_s:
        time.sleep(0.002)
    stop.set()
    thread.join()
    assert source.looks >= looks


def test_a_notice_is_drained_once() -> None:
    ray = Ray()
    watch(Scripted([[], [PREEMPT]]), ray, 10)
    assert [deadline_s for _, deadline_s in ray.drains] == [PREEMPT.deadline_s]
    assert "it goes" in ray.drains[0][0]


def test_an_earlier_deadline_is_told_a_later_one_is_not() -> None:
    sooner, later = replace(PREEMPT, deadline_s=1_790_000_030.0), replace(PREEMPT, deadline_s=1_790_000_300.0)
    ray = Ray()
    watch(Scripted([[PREEMPT], [later], [sooner], [PREEMPT]]), ray, 12)
    assert [deadline_s for _, deadline_s in ray.drains] == [PREEMPT.deadline_s, sooner.deadline_s]


def test_two_notices_are_two() -> None:
    ray = Ray()
    watch(Scripted([[PREEMPT, replace(PREEMPT, id="e-2")]]), ray, 5)
    assert len(ray.drains) == 2


def test_what_ray_does_not_take_is_tried_again() -> None:
    ray = Ray([RayError("no head"), (False, "not yet known"), (True, "")])
    watch(Scripted([[PREEMPT]]), ray, 10)
    assert len(ray.drains) == 3


def test_a_failing_metadata_service_is_survived_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    ray = Ray()
    with caplog.at_level(logging.WARNING):
        watch(Scripted([Transient("gone"), Transient("gone"), Transient("gone"), [PREEMPT]]), ray, 8)
    assert len(ray.drains) == 1
    assert caplog.text.count("cannot be seen") == 1
    assert caplog.text.count("seen again, after 3") == 1


def test_an_early_warning_is_told_once_and_drains_nothing() -> None:
    ray, warned = Ray(), list[Notice]()
    warning = Notice("rebalance", None, "risk")
    watch(Scripted([[warning], [warning], [warning, PREEMPT]]), ray, 8, warn=warned.append)
    assert warned == [warning]
    assert len(ray.drains) == 1


def test_a_drained_notice_is_acknowledged_when_nothing_runs_any_more() -> None:
    source, ray, idle = Scripted([[PREEMPT]]), Ray(), iter([False, False])
    watch(source, ray, 12, is_idle=lambda: next(idle, True))
    assert source.acknowledged == ["e-1"]
    busy = Scripted([[PREEMPT]])
    watch(busy, ray, 5)
    assert busy.acknowledged == []


def test_the_local_cloud_has_no_metadata_service() -> None:
    with pytest.raises(Unsupported):
        source_of("local", {})
