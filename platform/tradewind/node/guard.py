"""Watches over a node that is up, until there is a reason to end it: Ray has ended, nobody answers any more (see
dead_man.py), or a part of it has stopped. Renews its certificate meanwhile. An edge."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tradewind.certificates import expires_at_s, renew_at_s
from tradewind.errors import RayError, TradewindError
from tradewind.node.boot_plan import BootPlan
from tradewind.node.dead_man import END_BEFORE_S, Watched, reason_to_drain, reason_to_end
from tradewind.node.ray_node import NodeFiles, stop_ray, tail

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0


def _never() -> bool:
    return False


def _always() -> bool:
    return True


@dataclass(slots=True)
class Up:
    """A node that is up, and what it must be asked and told from now on."""

    plan: BootPlan
    files: NodeFiles
    ray: subprocess.Popen[bytes]
    first_cert_pem: str  # Ray's long-lived processes keep it
    answers: Callable[[], bool]  # does its head (worker) or controller (head) answer?
    renew: Callable[[], None]  # get a new certificate into the files
    is_busy: Callable[[], bool] = _never
    has_raylet: Callable[[], bool] = _always
    drain: Callable[[str, float], tuple[bool, str]] = lambda *_: (False, "it cannot be drained")
    threads: Mapping[str, threading.Thread] = field(default_factory=dict)  # a node without one of them is no node
    close: Callable[[], None] = lambda: None


def stand_guard(up: Up, stop: threading.Event) -> str:
    """The reason to end the machine; empty: it was told to stop."""
    heard_s, drains = time.monotonic(), False
    every_s = min(LOOK_EVERY_S, up.plan.dead_man_s / 4)
    try:
        while not stop.wait(every_s):
            if up.answers():
                heard_s = time.monotonic()
            now = _watched(up, time.monotonic() - heard_s)
            if reason := _ended(up) or reason_to_end(now):
                return reason
            drains = drains or _drain_in_time(up, now)
            _renew_in_time(up)
        return ""
    finally:
        up.close()
        stop_ray(up.ray)


def _watched(up: Up, silent_s: float) -> Watched:
    left_s = expires_at_s(up.first_cert_pem) - time.time()
    # Only a head that is about to go is asked: counting jobs costs the GCS something.
    is_busy = silent_s > up.plan.dead_man_s and up.is_busy()
    return Watched(up.plan.role, silent_s, up.plan.dead_man_s, left_s, is_busy)


def _ended(up: Up) -> str:
    if (status := up.ray.poll()) is not None:
        return f"Ray has ended with status {status}: {tail(up.files.ray_log)}"
    if not up.has_raylet():
        return "its node has left Ray: drained, and without work"
    return next((f"its {name} has stopped" for name, thread in up.threads.items() if not thread.is_alive()), "")


def _drain_in_time(up: Up, now: Watched) -> bool:
    """Whether Ray has taken it; otherwise it is asked again. Once drained and without work, its raylet ends."""
    reason = reason_to_drain(now)
    if not reason:
        return False
    try:
        accepted, words = up.drain(reason, time.time() + now.certificate_left_s - END_BEFORE_S)
    except RayError as error:
        accepted, words = False, str(error)
    log.warning("this node drains: %s", reason if accepted else f"not yet: {words}")
    return accepted


def _renew_in_time(up: Up) -> None:
    if time.time() < renew_at_s(up.files.cert.read_text()):
        return
    try:
        up.renew()
        log.info("new certificate, until %s", time.ctime(expires_at_s(up.files.cert.read_text())))
    except TradewindError as error:
        log.warning("no new certificate yet: %s", error)  # asked again at the next look; there is a third of its life
