"""Shared by the end-to-end tests: a home whose fleet is gone after the test, and waiting that shows the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tradewind.client import connect
from tradewind.home import FleetHome
from tradewind.service import local_root


def holder(gpus: int) -> str:
    """A program that knows nothing of Tradewind, and holds so many GPUs for as long as it is let."""
    return f"""\
import ray, time
ray.init(log_to_driver=False)
@ray.remote(num_gpus={gpus}, num_cpus=1)
def work():
    time.sleep(600)
ray.get(work.remote())
"""


@contextmanager
def home_of(folder: Path, fleet: str) -> Iterator[FleetHome]:
    where = FleetHome(folder / "home", fleet)
    yield where
    try:  # whatever a failed test left
        connect(where.root, where.fleet, start=False).down()
    except Exception:
        from tradewind.autoscaler.providers.local_fleets import end_fleet

        end_fleet(local_root(where))


def until(holds: Callable[[], Any], what: str, place: FleetHome, timeout_s: float = 240.0) -> Any:
    """Poll until `holds()` is true, and return it; else fail with `what` and the end of the controller's log."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}\n{place.log_tail(60)}")
        time.sleep(0.3)
    return found
