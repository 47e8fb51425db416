"""How large a batch is worth its samples: the gradient noise scale, measured while training. Pure but for its memory.

With micro-batches of b samples and gradients g_i, and their mean G over B samples,

    E|g_i|^2 = |mu|^2 + tr(S) / b        E|G|^2 = |mu|^2 + tr(S) / B

so both |mu|^2 (signal) and tr(S) (noise of one sample) follow from the two norms; their quotient is the batch beyond
which more samples help little (McCandlish et al. 2018). When the batch is k times the first one, the learning rate
follows: AdaScale multiplies it by the gain r = (v + m) / (v / k + m), with v = tr(S) / B_0 and m = |mu|^2, between 1
and k (Johnson et al. 2020); for Adam and its kind, by the square root of k.
"""

from __future__ import annotations

import math
from typing import Any

RULES = ("adascale", "sqrt")
SMOOTHING = 0.98  # of the averages, in units of one step of the first batch
SETTLE_STEPS = 20  # between two changes of the batch: averages must follow first


def estimate(small_sqr: float, big_sqr: float, small: float, big: float) -> tuple[float, float]:
    """(|mu|^2, tr(S)) of mean squared norms at two sizes of batch. One estimate may be negative, averages are not."""
    signal = (big * big_sqr - small * small_sqr) / (big - small)
    noise = (small_sqr - big_sqr) / (1.0 / small - 1.0 / big)
    return signal, noise


class NoiseScale:
    """Averages over steps. Saved and handed over with the run's state."""

    def __init__(self, first_batch: int, max_factor: int, rule: str) -> None:
        self._first, self._most, self._rule = first_batch, max_factor, rule
        self._signal = self._noise = self._weight = 0.0
        self._changed_step = 0

    def state_dict(self) -> dict[str, float]:
        return {"signal": self._signal, "noise": self._noise, "weight": self._weight, "changed": self._changed_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._signal, self._noise, self._weight = state["signal"], state["noise"], state["weight"]
        self._changed_step = int(state["changed"])

    def see(self, small_sqr: float, big_sqr: float, small: float, big: float) -> None:
        """The norms of one step."""
        if not (math.isfinite(small_sqr) and math.isfinite(big_sqr)) or big <= small:
            return
        signal, noise = estimate(small_sqr, big_sqr, small, big)
        keep = SMOOTHING ** max(1.0, big / self._first)
        self._signal = keep * self._signal + (1 - keep) * signal
        self._noise = keep * self._noise + (1 - keep) * noise
        self._weight = keep * self._weight + (1 - keep)

    @property
    def samples(self) -> float | None:
        """The noise scale; None where nothing can be said yet. Infinite where noise is all there is."""
        if self._weight == 0.0:
            return None
        return math.inf if self._signal <= 0.0 else max(0.0, self._noise) / self._signal

    def gain(self, factor: int) -> float:
        """What the learning rate is multiplied by when the batch is `factor` times the first."""
        if factor == 1:
            return 1.0
        if self._rule == "sqrt":
            return math.sqrt(factor)
        signal, noise = max(0.0, self._signal), max(0.0, self._noise) / self._first
        return (noise + signal) / (noise / factor + signal) if noise + signal > 0.0 else 1.0

    def next_factor(self, factor: int, step: int) -> int:
        """Twice the batch while that is still below the noise scale, half of it where it is far above."""
        found = self.samples
        if found is None or step - self._changed_step < SETTLE_STEPS:
            return factor
        batch, wanted = self._first * factor, factor
        if 2 * batch <= found and 2 * factor <= self._most:
            wanted = 2 * factor
        elif batch > 2 * found and factor > 1:
            wanted = factor // 2
        if wanted != factor:
            self._changed_step = step
        return wanted
