"""What rank 0 does for its group beside training: it tells the coordinator what was done, and hears of handovers."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

REPORT_INTERVAL_S = 1.0  # a report takes 3 ms
WATCH_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What rank 0 wants of the others at the next boundary."""

    save: bool = False
    regroup: bool = False
    copy: bool = False  # state into the memory of peers
    factor: float = 0.0  # of the batch, from the next step on; 0: as it is
    gain: float = 1.0  # of the learning rate in this step
    rest: bool = False  # after the save, which is waited for: the group ends

    def encode(self) -> list[float]:
        """A rest rides with the save: every step carries these numbers."""
        return [float(self.save) + float(self.rest), float(self.regroup), float(self.copy), self.factor, self.gain]

    def merge(self, other: Ask) -> Ask:
        return Ask(
            self.save or other.save,
            self.regroup or other.regroup,
            self.copy or other.copy,
            other.factor or self.factor,
            other.gain,
            self.rest or other.rest,
        )

    @classmethod
    def decode(cls, values: list[float]) -> Ask:
        return cls(values[0] > 0, values[1] > 0, values[2] > 0, values[3], values[4], values[0] > 1.5)


NOTHING = Ask()


@dataclass(frozen=True, slots=True)
class Told:
    """A step that was taken, as everybody hears of it."""

    step: int
    samples: int
    loss: float | None  # None: not a number, or not known


class Scribe:
    """Tells the coordinator what rank 0 knows: steps in bundles, so that a fast loop is not slowed down."""

    def __init__(self, coordinator: Any, attempt: int, world: int, curve: Path | None) -> None:
        self._coordinator, self._attempt, self._world = coordinator, attempt, world
        self._curve = curve.open("a", encoding="utf-8") if curve else None
        self._first = self._last = self._samples = 0
        self._loss: float | None = None
        self._began_s = time.time()  # steps of a group before this one may be told first: they take no time here

    def begin(self, after_step: int, total_steps: int | None) -> None:
        self._began_s = time.time()
        self._coordinator.training.remote(self._attempt, after_step, total_steps)

    def step(self, told: Told) -> None:
        self._first = self._first or told.step
        self._last, self._loss = told.step, told.loss
        self._samples += told.samples
        if self._curve:
            line = {
                "step": told.step,
                "loss": told.loss,
                "workers": self._world,
                "attempt": self._attempt,
                "at_s": time.time(),
            }
            self._curve.write(json.dumps(line) + "\n")
            self._curve.flush()
        if time.time() - self._began_s >= REPORT_INTERVAL_S:
            self.flush()

    def close(self) -> None:
        self.flush()
        if self._curve:
            self._curve.close()

    def flush(self) -> None:
        now = time.time()
        if self._first:
            self._coordinator.committed.remote(
                self._attempt, self._world, self._began_s, now, self._first, self._last, self._samples, self._loss
            )
        self._first = self._samples = 0
        self._began_s = now

    def saving(self, on: bool) -> None:
        self.flush()
        self._coordinator.saving.remote(self._attempt, on)

    def resume(self, why: str = "") -> None:
        """Steps are taken again: what passed until now was not theirs. `why`: the save did not succeed."""
        self._coordinator.saving.remote(self._attempt, False, why)
        self._began_s = time.time()


class HandoverWatcher:
    """Waits in the coordinator for a handover, in a thread of its own: the training loop never asks."""

    def __init__(self, coordinator: Any, attempt: int) -> None:
        self._coordinator, self._attempt = coordinator, attempt
        self._found = NOTHING
        self._lock = threading.Lock()
        self._ended = False

    def stop(self) -> None:
        self._ended = True

    def start(self) -> None:
        threading.Thread(target=self._watch, name="handover-watcher", daemon=True).start()

    def take(self) -> Ask:
        """The request, once."""
        if self._found is NOTHING:
            return NOTHING
        with self._lock:
            found, self._found = self._found, NOTHING
            return found

    def _watch(self) -> None:
        import ray

        seen = 0
        while not self._ended:
            try:
                found = ray.get(self._coordinator.watch.remote(self._attempt, seen, WATCH_TIMEOUT_S))
            except ray.exceptions.RayError as error:
                logger.info("handovers are not watched any more: %s", error)
                return
            if found:
                seen = found[0]
                with self._lock:
                    self._found = Ask(save=True, rest=found[2])
