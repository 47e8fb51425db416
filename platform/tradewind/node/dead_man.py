"""The dead-man's timer: when a machine that nobody looks after ends itself. Pure; guard.py asks, and acts.

A machine costs money until somebody ends it. If its head (or for a head: its controller) is gone for good, nobody
will: so it does. A head waits longer than its workers would, and does not leave work that goes on without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.units import format_duration

HEAD_FACTOR = 4.0  # a controller is restarted, a laptop sleeps: a head is patient
BUSY_HEAD_S = 86_400.0  # a job may hang, and then never ends by itself
DRAIN_BEFORE_S, END_BEFORE_S = 86_400.0, 3600.0  # the end of a certificate


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of a running node at one moment."""

    role: str  # "head" or "worker"
    silent_s: float  # since its head (worker) or its controller (head) last answered
    dead_man_s: float
    certificate_left_s: float  # of the one that Ray was started with
    is_busy: bool = False  # jobs run here (asked of heads only)


def reason_to_drain(now: Watched) -> str:
    """Empty: it takes work. A head cannot be drained: its jobs go on from their checkpoints, at another head."""
    if now.role == "worker" and now.certificate_left_s < DRAIN_BEFORE_S:
        return "the certificate that Ray runs with ends within a day, and Ray cannot take another"
    return ""


def reason_to_end(now: Watched) -> str:
    """Empty: it stays."""
    if now.certificate_left_s < END_BEFORE_S:
        return "the certificate that Ray runs with ends within the hour, and Ray cannot take another"
    limit_s = patience_s(now)
    if now.silent_s <= limit_s:
        return ""
    whom = "controller" if now.role == "head" else "head"
    return f"its {whom} has not answered for {format_duration(now.silent_s)} (limit {format_duration(limit_s)})"


def patience_s(now: Watched) -> float:
    if now.role != "head":
        return now.dead_man_s
    idle_s = HEAD_FACTOR * now.dead_man_s
    return max(idle_s, BUSY_HEAD_S) if now.is_busy else idle_s
