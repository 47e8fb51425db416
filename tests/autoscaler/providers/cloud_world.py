"""What the contract suite needs of a cloud: a world with a provider in it, the truth behind it, and its bad days.

A world is one emulated cloud of its own, with a clock that the test moves. Each cloud has `worlds/<name>_world.py` with

    def open_world(folder: Path) -> World        # fresh and empty; `folder` is empty, too

and is then found by `test_contract.py` and by `python contract_table.py`, which prints the table of clouds and cases.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pytest
from _pytest.mark import ParameterSet

from tradewind.autoscaler.providers.base import LaunchSpec, PriceSource, Provider
from tradewind.model import LABEL_LAUNCH_ID, LABEL_PLACEMENT_GROUP, Market, Offer

FLEET, OTHER_FLEET, CELL = "contract", "neighbour", "cell-a"
HEAD_ADDRESS = "10.0.0.4:6379"
BOOTED_S = 120.0  # after so long, what was launched runs
ENDED_S = 300.0  # after so long, what was terminated is no longer billed


@dataclass(frozen=True, slots=True)
class Truth:
    """One instance as the emulator holds it, whoever owns it. Ended ones are not among these."""

    launch_id: str  # "" for somebody else's
    instance_id: str
    state: str  # "pending", "running" or "stopping"
    market: Market
    tags: Mapping[str, str] = field(
        default_factory=dict
    )  # {"launch_id", "fleet", "cell"}, however the cloud spells them
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # its disks, NICs, ...: name -> tags, as above
    user_data: str = ""
    unsafe: Sequence[str] = ()  # "has a public address", "disk is not encrypted": what should not be by default


class World(Protocol):
    """One emulated cloud. What it cannot do stands in `cannot`, with the reason: shown as "n/a", never as passed."""

    name: str
    cannot: Mapping[str, str]  # method, or one of FEATURES -> why
    secrets: Sequence[str]  # credentials in use, which nobody may ever see in user-data or logs
    spot: Offer
    on_demand: Offer  # the same zone and type as `spot`
    other_zone: Offer  # spot, the same region and type
    other_region: Offer  # spot, the same type

    def provider(self, fleet: str = FLEET) -> Provider:
        """A fresh object, as after a controller's restart. Its user-data names the launch id. It never really sleeps:
        where it waits, the world's clock moves on."""
        ...

    def prices(self) -> PriceSource: ...
    def now_s(self) -> float: ...
    def advance(self, seconds: float) -> None: ...
    def close(self) -> None: ...

    # --- the truth ---
    def instances(self) -> list[Truth]: ...
    def debris(self) -> list[str]:
        """Disks, NICs, addresses, failed machines that are really there and belong to no instance; foreign ones too."""
        ...

    def groups(self) -> dict[str, list[str]]:
        """Placement groups that are really there, with the launch ids of the living instances in each."""
        ...

    # --- bad days; `calls` counts the provider's next API calls of the kind ---
    def stock_out(self, offer: Offer) -> None: ...
    def restock(self) -> None: ...
    def limit_group(self, n: int) -> None: ...  # in each placement group there is room for n
    def deny_groups(self) -> str: ...  # they may not be made or listed; returns the first permission's name
    def limit_quota(self, n: int) -> None: ...  # at most n of this kind running in a region
    def price_above(self, offer: Offer) -> None: ...  # the spot price rises above `max_price(offer)`
    def throttle(self, calls: int) -> None: ...
    def fail_server(self, calls: int) -> None: ...  # HTTP 5xx, nothing was done
    def expire_credentials(self) -> None: ...
    def deny(self) -> str: ...  # launches are no longer allowed; returns the permission's name
    def refuse_unknown(self, code: str) -> None: ...  # the next launch gets an error code that nobody has heard of
    def cut_after_sending(self, calls: int) -> None: ...  # the next launches are carried out, no answer comes
    def cut_before_doing(self, calls: int) -> None: ...  # the next launches are not carried out, no answer comes
    def killed_launch(self, launch_id: str) -> None:
        """A process of its own launches `spot`, and is killed (SIGKILL) when the cloud has done it and before the
        answer has arrived. `run_and_kill` below helps."""
        ...

    def half_launch(self, launches: int) -> None: ...  # of the next launches, only some of the machines come to be
    def fail_boot(self, launches: int) -> None: ...  # the next launches are accepted, and never boot
    def lag_listing(self, seconds: float) -> None: ...  # a new instance is listed only then
    def blackout(self, region: str) -> None: ...  # this region no longer answers
    def preempt(self, launch_id: str, notice_s: float) -> None: ...  # 0: without notice
    def speak(self, launch_id: str, text: str) -> None: ...  # the machine writes this on its console
    def vanish(self, launch_id: str) -> None: ...  # gone without a trace
    def skew(
        self, seconds: float
    ) -> None: ...  # the cloud's clock is ahead of ours by so much (beyond 5 minutes AWS refuses)

    # --- others and leftovers ---
    def crowd(self, n: int) -> None: ...  # n instances of FLEET exist, made cheaply
    def foreign(self) -> None: ...  # somebody else has an instance and a loose disk in this account
    def litter(self) -> None: ...  # an ended node of FLEET left something behind (a disk, a NIC)
    def flawed(self) -> Iterable[tuple[str, Provider]]: ...  # providers with one wrong setting each, and its name


# What a case may need beside the methods above.
FEATURES = {
    "list_ended": "an ended node is listed for ten minutes, with the reason of its end",
    "notice_listed": "the listing (not only the node's own metadata service) shows the notice of a preemption",
    "user_data": "a launch carries user-data",
    "disks": "a node has disks or NICs of its own, with tags",
    "secrets": "there are credentials",
    "groups": "nodes can be put side by side",
    "group_room": "a placement group has so much room, and no more (`limit_group`)",
    "debris": "what nodes leave behind is more than a folder",
    "preflight_ok": "the world holds everything in its hand that a preflight looks at",
}


def make_spec(
    launch_id: str,
    offer: Offer,
    *,
    fleet: str = FLEET,
    max_price_uusd_per_h: int | None = None,
    placement_group: str = "",
) -> LaunchSpec:
    labels = {**offer.labels, LABEL_LAUNCH_ID: launch_id}
    labels |= {LABEL_PLACEMENT_GROUP: placement_group} if placement_group else {}
    spec = LaunchSpec(launch_id, fleet, CELL, offer, HEAD_ADDRESS, labels, max_price_uusd_per_h)
    return replace(spec, placement_group=placement_group)


def max_price(offer: Offer) -> int:
    """The price limit that the contract's launches carry where they carry one."""
    if offer.price_uusd_per_h is None:
        raise ValueError(f"a world's offers have prices: {offer.market}")
    return offer.price_uusd_per_h * 3 // 2


_RARE = ("azure", "gcp", "tpu", "tpu_queue")


def find_worlds() -> dict[str, Callable[[Path], World]]:
    """By name, every world beside this file."""
    names = sorted(path.stem for path in (Path(__file__).parent / "worlds").glob("*_world.py"))
    return {name.removesuffix("_world"): importlib.import_module(f"worlds.{name}").open_world for name in names}


def marked(worlds: Mapping[str, Callable[[Path], World]]) -> list[ParameterSet]:
    """For `parametrize`. Worlds whose SDK is slow to load are left to `make test-slow`."""
    return [
        pytest.param(open_world, id=name, marks=pytest.mark.slow if name in _RARE else ())
        for name, open_world in worlds.items()
    ]


def run_and_kill(code: str, arguments: Sequence[str], happened: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Run Python `code` in a process of its own; SIGKILL as soon as `happened()`. It must not end by itself before."""
    paths = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], env=env, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + timeout_s
    try:
        while not happened():
            assert child.poll() is None, f"the process ended before it could be killed: {child.communicate()[1]}"
            assert time.monotonic() < deadline_s, "the launch was not carried out in time"
            time.sleep(0.02)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert child.returncode == -signal.SIGKILL
