"""Debris that takes its time to go, or does not: what is asked for, and what is told in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.testing import FakeCloud
from tradewind.clouds.leftovers import DEBRIS_S, Leftover, remove
from tradewind.clouds.providers import CellCloud
from tradewind.errors import AuthError, Conflict, ProviderError, Transient


class Slow(FakeCloud):
    """Its debris goes some time after it was asked for; who asks again before is refused."""

    def __init__(self, clock: FakeClock, takes_s: dict[str, float], refusal: ProviderError | None = None) -> None:
        super().__init__(clock, [])
        self.takes_s, self.refusal = takes_s, refusal
        self.asked_at_s: dict[str, float] = {}
        self.calls = 0

    def list_debris(self) -> Sequence[str]:
        now_s = self.clock.steady_s()
        return [name for name, s in self.takes_s.items() if now_s < self.asked_at_s.get(name, now_s) + s]

    def delete_debris(self, names: Iterable[str]) -> None:
        self.calls += 1
        again = [name for name in names if name in self.asked_at_s]
        self.asked_at_s.update((name, self.clock.steady_s()) for name in names if name not in self.asked_at_s)
        if again and self.refusal is not None:
            raise self.refusal


def removed(cloud: Slow, *names: str) -> list[str]:
    cell = CellCloud(SimpleNamespace(name="gcp-x"), cloud, cloud)  # type: ignore[arg-type]
    things = [Leftover("gcp-x", "debris", name) for name in names]
    return remove(cell, None, things, 60.0, cloud.clock)


def test_debris_that_is_going_already_is_waited_for_and_no_failure() -> None:
    for refusal in (Transient("disk-1 is not ready"), Conflict("disk-1 is being deleted"), None):
        cloud = Slow(FakeClock(), {"disk-1": 45.0, "disk-2": 1.0}, refusal)
        assert removed(cloud, "disk-1", "disk-2") == []
        assert cloud.calls <= 6, "not asked for every two seconds"


def test_what_is_still_there_in_the_end_is_told_with_what_to_do() -> None:
    cloud = Slow(FakeClock(), {"disk-1": 600.0, "disk-2": 1.0}, Transient("disk-1 is not ready"))
    (told,) = removed(cloud, "disk-1", "disk-2")
    assert cloud.clock.steady_s() == DEBRIS_S
    assert told == ("gcp-x: debris disk-1 is still there: disk-1 is not ready (run `tradewind reap` in a few minutes)")
    silent = Slow(FakeClock(), {"disk-1": 600.0})
    assert "disk-1 is still there: its cloud takes its time" in removed(silent, "disk-1")[0]


def test_what_no_waiting_helps_is_told_at_once() -> None:
    cloud = Slow(FakeClock(), {"disk-1": 600.0}, AuthError("disks may not be deleted"))
    cloud.asked_at_s["disk-1"] = 0.0
    (told,) = removed(cloud, "disk-1")
    assert "disks may not be deleted" in told
    assert cloud.clock.steady_s() == 0.0
