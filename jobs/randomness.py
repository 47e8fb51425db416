"""Random numbers of a worker. Every logical micro-batch has a seed of its own (`data.seed_of`), set before it is given
out: dropout and augmentation draw the same numbers whoever computes it, and there is no random state to save."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Python, numpy and torch. Cheaper than `torch.manual_seed`, which asks every kind of device (0.3 ms a call)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if _has_gpu():
        torch.cuda.manual_seed(seed)


@cache
def _has_gpu() -> bool:
    """Torch asks the driver each time."""
    return bool(torch.cuda.is_available())
