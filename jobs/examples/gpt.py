"""Train a small GPT on sums that it makes up itself ("17+25=42"), in any parallel layout.

python -m tradewind.jobs.examples.gpt --workers 4..8 --parallel fsdp=2,tp=2 --steps 200
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from tradewind.jobs.examples.options import loop, parse, start

LETTERS = "0123456789+= "
LENGTH = 9  # of "99+99=198"


class Embedding(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        return self.letter(letters) + self.place.weight[: letters.shape[1]]


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # However many heads this worker has: all of them, or its slice.
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Head(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.letter = nn.LayerNorm(width), nn.Linear(width, len(LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.letter(self.norm(x))


class Gpt(nn.Sequential):  # type: ignore[misc]
    def __init__(self, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        parts = {f"block{index}": Block(width, heads) for index in range(layers)}
        super().__init__(OrderedDict(embed=Embedding(width), **parts, head=Head(width)))

    def tp_plan(self) -> dict[str, Any]:
        """Heads and hidden units are cut; the residual stream is whole on every slice."""
        columns = ("attention.query", "attention.key", "attention.value", "up")
        return {
            **{f"block*.{name}": ColwiseParallel() for name in columns},
            **{f"block*.{name}": RowwiseParallel() for name in ("attention.out", "down")},
            "head.letter": ColwiseParallel(output_layouts=Replicate()),
        }


def dataset(num_samples: int, seed: int) -> torch.utils.data.TensorDataset:
    random = np.random.default_rng(seed)
    texts = [f"{a}+{b}={a + b}".ljust(LENGTH) for a, b in random.integers(0, 100, (num_samples, 2))]
    letters = torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])
    return torch.utils.data.TensorDataset(letters[:, :-1], letters[:, 1:])


def loss_fn(out: torch.Tensor, letters: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out.flatten(0, 1), letters.flatten())


def train(run: Any, options: argparse.Namespace) -> None:
    loop(run, options, Gpt(), dataset(options.samples, options.seed), loss_fn, rate=3e-3)


if __name__ == "__main__":
    start(train, parse("gpt", __doc__))
