"""Ours and plain DDP by turns in the same two processes, for `steady.py`.

    python -m training.steady_job FOLDER MODEL BLOCKS        a driver; the cell comes from the environment, see cell.py

A block of steps of our loop, a block of a plain loop with `DistributedDataParallel` over another process group, and so
on: whatever else the machine does meets both. FOLDER/blocks.json says how long each took, and where the time went.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import tradewind as tw

PARTS = ("batch", "forward", "backward", "optimizer")  # "batch": all between two steps, loading included
FEATURES, CLASSES, SAMPLES = 256, 10, 4096
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Shape:
    width: int
    layers: int
    global_batch: int
    block: int  # steps, about a third of a second


SHAPES = {"small": Shape(512, 2, 128, 20), "medium": Shape(1024, 4, 256, 5)}


def make(shape: Shape) -> tuple[Any, Any]:
    """(dataset, model)."""
    import torch

    torch.manual_seed(0)
    x, y = torch.randn(SAMPLES, FEATURES), torch.randint(0, CLASSES, (SAMPLES,))
    widths = [FEATURES, *[shape.width] * shape.layers]
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.GELU()]
    return torch.utils.data.TensorDataset(x, y), torch.nn.Sequential(*layers, torch.nn.Linear(shape.width, CLASSES))


def make_optimizer(model: Any) -> Any:
    import torch

    return torch.optim.Adam(model.parameters(), lr=1e-4)


@dataclass
class Watch:
    """How long blocks took, and the parts of their steps."""

    blocks_s: list[float] = field(default_factory=list)
    parts_s: list[list[float]] = field(default_factory=lambda: [[] for _ in PARTS])
    _began_s: float = 0.0
    _at_s: float = 0.0

    def begin(self) -> None:
        self._began_s = self._at_s = perf_counter()

    def part(self, number: int) -> None:
        now = perf_counter()
        self.parts_s[number].append(now - self._at_s)
        self._at_s = now

    def end(self) -> None:
        self.blocks_s.append(perf_counter() - self._began_s)


class PlainLoop:
    """What people write without us."""

    def __init__(self, dataset: Any, model: Any, shape: Shape, rank: int) -> None:
        import torch
        import torch.distributed as dist

        self.group = dist.new_group()
        self._tensors, self._shape, self._rank, self._step = dataset.tensors, shape, rank, 0
        self._model = torch.nn.parallel.DistributedDataParallel(model, process_group=self.group)
        self._optimizer = make_optimizer(model)
        self._order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0))

    def run(self, watch: Watch) -> None:
        import torch

        model, optimizer, (x, y) = self._model, self._optimizer, self._tensors
        size = self._shape.global_batch // WORKERS
        for _ in range(self._shape.block):
            first = (self._step * WORKERS + self._rank) * size % SAMPLES
            self._step += 1
            mine = self._order[first : first + size]
            inputs, labels = x[mine], y[mine]
            watch.part(0)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            watch.part(1)
            loss.backward()
            watch.part(2)
            optimizer.step()
            optimizer.zero_grad()
            watch.part(3)


def train(run: Any, folder: Path, shape: Shape, blocks: int) -> None:
    import torch
    import torch.distributed as dist

    dataset, model = make(shape)
    bare = copy.deepcopy(model)
    model, optimizer = run.prepare(model, make_optimizer(model))
    ours, plain = Watch(), Watch()
    loop: PlainLoop | None = None
    steps = blocks * shape.block
    epochs = -(-(steps + 1) * shape.global_batch // SAMPLES)
    for batch in run.batches(dataset, global_batch=shape.global_batch, epochs=epochs, max_steps=steps + 1):
        ours.part(0)
        if (batch.step - 1) % shape.block == 0:
            loop = loop or PlainLoop(dataset, bare, shape, run.rank)
            if batch.step > 1:
                dist.barrier(loop.group)
                ours.end()
            plain.begin()
            loop.run(plain)
            dist.barrier(loop.group)
            plain.end()
            ours.begin()
        loss = torch.nn.functional.cross_entropy(model(batch.x), batch.y)
        ours.part(1)
        run.backward(loss)
        ours.part(2)
        optimizer.step()
        optimizer.zero_grad()
        ours.part(3)
    if run.is_first:
        found = {"ours": vars(ours), "plain": vars(plain)}
        (folder / "blocks.json").write_text(json.dumps(found))


def main(folder: Path, name: str, blocks: int) -> None:
    import ray

    ray.init(logging_level="warning")
    job: Callable[[Any], None] = lambda run: train(run, folder, SHAPES[name], blocks)  # noqa: E731
    tw.fit(
        job,
        workers=WORKERS,
        resources={"CPU": 1},
        storage=folder / "storage",
        name="run",
        checkpoint_every=None,
        progress=False,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
