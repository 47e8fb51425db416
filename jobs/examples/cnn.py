"""Train a convolutional network to read digits that it draws itself, in any parallel layout.

    python -m tradewind.jobs.examples.cnn --workers 2..4 --parallel fsdp=2 --steps 200

GroupNorm instead of BatchNorm: its result does not depend on which samples share a micro-batch.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tradewind.jobs.examples.digits import SIDE, make_data
from tradewind.jobs.examples.options import loop, parse, start


class Convolution(nn.Module):  # type: ignore[misc]
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool2d(nn.functional.relu(self.norm(self.conv(x))), 2)


class Head(nn.Module):  # type: ignore[misc]
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.relu(self.up(x.flatten(1))))


class Cnn(nn.Sequential):  # type: ignore[misc]
    """Blocks that follow one another: a pipeline is cut between them, FSDP gathers one at a time."""

    def __init__(self, channels: int = 16, hidden: int = 64) -> None:
        features = 2 * channels * (SIDE // 4) ** 2
        super().__init__(
            OrderedDict(
                stem=Convolution(1, channels),
                body=Convolution(channels, 2 * channels),
                head=Head(features, hidden, 10),
            )
        )

    def tp_plan(self) -> dict[str, Any]:
        """Most of the parameters are in the head: one layer is cut by columns, the next one by rows."""
        return {"head.up": ColwiseParallel(), "head.down": RowwiseParallel()}


def dataset(num_samples: int, seed: int, dtype: torch.dtype) -> torch.utils.data.TensorDataset:
    pictures, labels = make_data(num_samples, seed)
    x = torch.tensor(pictures, dtype=dtype).reshape(-1, 1, SIDE, SIDE)
    return torch.utils.data.TensorDataset(x, torch.tensor(labels))


def train(run: Any, options: argparse.Namespace) -> None:
    data = dataset(options.samples, options.seed, torch.float64 if options.double else torch.float32)
    loop(run, options, Cnn(), data, nn.functional.cross_entropy, rate=3e-3)


if __name__ == "__main__":
    start(train, parse("cnn", __doc__))
