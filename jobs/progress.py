"""The progress line of a training run, on the driver: reads the coordinator, prints."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

LOOK_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 5.0  # between two lines where there is no terminal
WAITING_INTERVAL_S = 60.0  # the same, while nothing moves


def line(now: Mapping[str, Any]) -> str:
    """One line: steps, loss, workers, speed, time left; or what the job is waiting for."""
    total = f"/{now['total_steps']}" if now["total_steps"] else ""
    parts = [f"step {now['step']}{total}"]
    if now["loss"] is not None:
        parts.append(f"loss {now['loss']:.4f}")
    parts.append(f"{now['workers']} worker" + "s" * (now["workers"] != 1))
    if now["phase"] != "training":
        return "  ".join([*parts, f"{now['phase']}: {now['reason']}" if now["reason"] else str(now["phase"])])
    if now["steps_per_s"]:
        parts.append(f"{now['steps_per_s']:.1f} steps/s")
        if now["total_steps"]:
            parts.append(f"{(now['total_steps'] - now['step']) / now['steps_per_s']:.0f} s left")
    if now["saves"]:
        parts.append(f"saved {now['saves'].partition(':')[0]}")
    return "  ".join(parts)


class ProgressLine:
    """A thread that keeps one line up to date on a terminal, or prints one now and then elsewhere."""

    def __init__(self, coordinator: Any, name: str, out: TextIO | None = None) -> None:
        self._coordinator, self._name, self._out = coordinator, name, out or sys.stderr
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print, name="progress-line", daemon=True)
        self._last_news: tuple[Any, ...] = ()
        self._saves = ""
        self._since_line_s = PLAIN_INTERVAL_S

    def __enter__(self) -> ProgressLine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)

    def _print(self) -> None:
        import ray

        while not self._ended.wait(LOOK_INTERVAL_S):
            try:
                self._show(ray.get(self._coordinator.look.remote(), timeout=5)["progress"])
            except ray.exceptions.RayError:
                return  # the cluster is going; `fit` says why
        if self._out.isatty():
            self._out.write("\n")

    def _show(self, now: Mapping[str, Any]) -> None:
        if now["saves"] != self._saves:
            self._saves = now["saves"]
            start = "\r\x1b[2K" if self._out.isatty() else ""
            self._out.write(f"{start}{self._name}  checkpoints {self._saves}\n")
        if self._out.isatty():
            self._out.write(f"\r\x1b[2K{self._name}  {line(now)}")
            self._out.flush()
            return
        news = (now["attempt"], now["workers"], now["phase"] == "training")
        self._since_line_s += LOOK_INTERVAL_S
        pause_s = PLAIN_INTERVAL_S if now["phase"] == "training" else WAITING_INTERVAL_S
        if news != self._last_news or self._since_line_s >= pause_s:
            self._last_news, self._since_line_s = news, 0.0
            self._out.write(f"{self._name}  {line(now)}\n")
            self._out.flush()
