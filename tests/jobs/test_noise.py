"""The gradient noise scale: found where it is known, and what follows from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tradewind.jobs.noise import SETTLE_STEPS, NoiseScale, estimate


def norms(signal: float, noise: float, small: int, parts: int, random: np.random.Generator) -> tuple[float, float]:
    """Mean squared norm of micro-batch gradients, and squared norm of their mean, in 200 dimensions."""
    mean = np.full(200, math.sqrt(signal / 200))
    each = mean + random.normal(0, math.sqrt(noise / 200 / small), (parts, 200))
    return float((each**2).sum(1).mean()), float((each.mean(0) ** 2).sum())


def test_signal_and_noise_are_found_without_bias() -> None:
    random = np.random.default_rng(0)
    found = np.array([estimate(*norms(2.0, 50.0, 8, 4, random), 8, 32) for _ in range(4000)])
    assert found.mean(0) == pytest.approx([2.0, 50.0], rel=0.02)


def test_the_batch_grows_to_the_noise_scale_and_no_further() -> None:
    random, scale, factor = np.random.default_rng(1), NoiseScale(16, 64, "adascale"), 1
    for step in range(1, 2000):  # a noise scale of 100 samples: 16 -> 32 -> 64
        batch = 16 * factor
        scale.see(*norms(1.0, 100.0, 4, batch // 4, random), 4, batch)
        factor = scale.next_factor(factor, step)
    assert factor == 4
    assert scale.samples == pytest.approx(100.0, rel=0.2)


def test_the_batch_shrinks_when_the_noise_does() -> None:
    scale = NoiseScale(16, 64, "sqrt")
    for _ in range(400):
        scale.see(1.0 + 10.0 / 4, 1.0 + 10.0 / 64, 4, 64)
    assert scale.next_factor(4, 1000) == 2


def test_changes_keep_their_distance() -> None:
    scale = NoiseScale(16, 64, "sqrt")
    scale.see(100.0, 25.0, 4, 16)
    assert scale.next_factor(1, SETTLE_STEPS) == 2
    assert scale.next_factor(2, SETTLE_STEPS + 1) == 2


def test_gains_lie_between_one_and_the_factor() -> None:
    quiet, loud = NoiseScale(16, 64, "adascale"), NoiseScale(16, 64, "adascale")
    quiet.see(1.0 + 1e-9, 1.0, 4, 16)
    loud.see(100.0, 25.0, 4, 16)
    assert quiet.gain(8) == pytest.approx(1.0, abs=1e-6)
    assert loud.gain(8) == pytest.approx(8.0, rel=1e-6)
    assert NoiseScale(16, 64, "sqrt").gain(4) == 2.0
    assert NoiseScale(16, 64, "adascale").gain(1) == 1.0


def test_it_survives_a_checkpoint_and_ignores_what_is_no_number() -> None:
    scale, other = NoiseScale(16, 64, "adascale"), NoiseScale(16, 64, "adascale")
    scale.see(10.0, 4.0, 4, 16)
    scale.see(math.nan, 1.0, 4, 16)
    other.load_state_dict(scale.state_dict())
    assert (other.samples, other.gain(4)) == (scale.samples, scale.gain(4))
    assert NoiseScale(16, 64, "adascale").samples is None
