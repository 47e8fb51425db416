"""Random state of a worker: set at the start, saved with a checkpoint, restored with it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": np.random.get_state(), "python": random.getstate()}


def restore(state: Mapping[str, Any], rank: int, seed: int, step: int) -> None:
    """Rank 0 goes on as if nothing had happened. The others may be new or have changed places: they get a state of
    their own from (seed, step, rank), so that no two ranks draw the same numbers."""
    if rank:
        draw_afresh(rank, seed, step)
        return
    put_back(state)


def draw_afresh(rank: int, seed: int, step: int) -> None:
    seed_all(int(np.random.SeedSequence((seed, step, rank)).generate_state(1)[0]))


def put_back(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
