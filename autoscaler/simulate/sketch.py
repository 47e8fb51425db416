"""Quantiles of any number of values in little memory: counts in buckets of equal ratio, exact to one per cent."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

RATIO = 1.02
_LOG = math.log(RATIO)
_LEAST = 1.0  # what is smaller counts as nothing: waits are of seconds
NOTHING = -1  # the bucket of it


def bucket_of(value: float) -> int:
    return NOTHING if value < _LEAST else int(math.log(value) / _LOG)


def value_of(bucket: int) -> float:
    """The middle of a bucket, by ratio."""
    return 0.0 if bucket == NOTHING else math.exp((bucket + 0.5) * _LOG)


class Sketch:
    """Counts by bucket: a dictionary, since most buckets stay empty."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        bucket = bucket_of(value)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def take_in(self, other: Sketch) -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, level: float) -> float:
        return float(quantiles([self], np.ones((1, 1)), level)[0])


def quantiles(sketches: Iterable[Sketch], weights: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """Of each row of weights (one for each sketch) the quantile of all values together; 0 where there are none."""
    many = list(sketches)
    buckets = sorted({bucket for sketch in many for bucket in sketch.counts})
    if not buckets:
        return np.zeros(len(weights))
    place = {bucket: number for number, bucket in enumerate(buckets)}
    table = np.zeros((len(many), len(buckets)))
    for row, sketch in enumerate(many):
        for bucket, count in sketch.counts.items():
            table[row, place[bucket]] = count
    below = np.cumsum(weights @ table, axis=1)
    found = np.argmax(below >= level * below[:, -1:] - 1e-9, axis=1)
    values: NDArray[np.float64] = np.array([value_of(bucket) for bucket in buckets])[found]
    return values
