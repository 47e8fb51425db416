"""Train a recurrent network to say whether brackets are closed in the right order, in any parallel layout.

python -m tradewind.jobs.examples.rnn --workers 2..4 --parallel pp=2 --steps 200
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tradewind.jobs.examples.options import loop, parse, start

LENGTH = 16
OPEN, CLOSED = "([", ")]"


class Recurrent(nn.Module):  # type: ignore[misc]
    """One layer. Each is a block of its own, so that a pipeline can be cut between layers."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, hidden, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(x)
        return states


class Head(nn.Module):  # type: ignore[misc]
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, 2)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.relu(self.up(states[:, -1])))


class Rnn(nn.Sequential):  # type: ignore[misc]
    def __init__(self, hidden: int = 32) -> None:
        super().__init__(
            OrderedDict(
                embed=nn.Embedding(4, hidden),
                first=Recurrent(hidden, hidden),
                second=Recurrent(hidden, hidden),
                head=Head(hidden),
            )
        )

    def tp_plan(self) -> dict[str, Any]:
        """A recurrent layer needs all of its state in every step: it is not cut, each slice computes it."""
        return {"head.up": ColwiseParallel(), "head.down": RowwiseParallel()}


def brackets(random: np.random.Generator) -> str:
    """A random sequence in which every bracket is closed."""
    text, stack = "", ""
    while len(text) < LENGTH:
        may_open = len(stack) < LENGTH - len(text)
        if not stack or (may_open and random.random() < 0.5):
            stack += OPEN[random.integers(2)]
            text += stack[-1]
        else:
            text += CLOSED[OPEN.index(stack[-1])]
            stack = stack[:-1]
    return text


def dataset(num_samples: int, seed: int) -> torch.utils.data.TensorDataset:
    """Half of the sequences have one bracket that was replaced by its sibling."""
    random = np.random.default_rng(seed)
    x = np.zeros((num_samples, LENGTH), dtype=np.int64)
    y = random.integers(0, 2, num_samples)
    for row, right in zip(x, y, strict=True):
        row[:] = [(OPEN + CLOSED).index(letter) for letter in brackets(random)]
        if not right:
            row[random.integers(LENGTH)] ^= 1
    return torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))


def train(run: Any, options: argparse.Namespace) -> None:
    data = dataset(options.samples, options.seed)
    loop(run, options, Rnn(), data, nn.functional.cross_entropy, rate=3e-3)


if __name__ == "__main__":
    start(train, parse("rnn", __doc__))
