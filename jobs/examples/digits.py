"""Train a small network to read digits that it draws itself: no download, a minute on two cores.

    python -m tradewind.jobs.examples.digits --workers 2..4 --steps 300

Seven-segment digits, shifted, with noise, on 12 x 12 pixels. The loop is an ordinary one of PyTorch; the lines that
make it elastic are marked with `# tw`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from tradewind.jobs.trainer import fit

SIDE = 12
# segments a..g of a seven-segment display: (row, column, height, width)
SEGMENTS = ((0, 1, 1, 4), (1, 5, 3, 1), (5, 5, 3, 1), (8, 1, 1, 4), (5, 0, 3, 1), (1, 0, 3, 1), (4, 1, 1, 4))
LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgecd", "abc", "abcdefg", "abcdfg")


def draw(digit: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    picture = np.zeros((9, 6))
    for letter in LIT[digit]:
        row, column, height, width = SEGMENTS["abcdefg".index(letter)]
        picture[row : row + height, column : column + width] = 1.0
    return picture


def make_data(num_samples: int, seed: int) -> tuple[Any, Any]:
    """Pictures and labels, the same for the same seed on every machine."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, num_samples)
    pictures = random.normal(0.0, 0.7, (num_samples, SIDE, SIDE))
    for picture, label in zip(pictures, labels, strict=True):
        row, column = random.integers(0, SIDE - 9 + 1), random.integers(0, SIDE - 6 + 1)
        picture[row : row + 9, column : column + 6] += draw(int(label))
    return pictures.reshape(num_samples, -1), labels


def train(run: Any, options: argparse.Namespace) -> None:
    import torch
    from torch import nn

    dtype = torch.float64 if options.double else torch.float32
    pictures, labels = make_data(options.samples, options.seed)
    dataset = torch.utils.data.TensorDataset(torch.tensor(pictures, dtype=dtype), torch.tensor(labels))
    model = nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    model = model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, options.steps))
    model, optimizer, scheduler = run.prepare(model, optimizer, scheduler)  # tw

    epochs = -(-options.steps * options.batch // options.samples)
    for batch in run.batches(  # tw
        dataset, global_batch=options.batch, epochs=epochs, seed=options.seed, max_steps=options.steps
    ):
        began_s = time.monotonic()
        loss = nn.functional.cross_entropy(model(batch.x), batch.y)
        run.backward(loss)  # tw
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        pause(began_s, options.step_s * len(batch.indices) / options.batch)


def pause(began_s: float, work_s: float) -> None:
    """Pretend that the model is larger: the time of a step shrinks with more workers, as it would on GPUs."""
    left = began_s + work_s - time.monotonic()
    if left > 0:
        time.sleep(left)


def parse_workers(text: str) -> tuple[int, int]:
    least, _, most = text.partition("..")
    return int(least), int(most or least)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tradewind.jobs.examples.digits", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--workers", type=parse_workers, default=None, help="least..most, for example 2..4")
    parser.add_argument("--resources", type=json.loads, default=None, help='of a worker, as JSON: {"GPU": 1}')
    parser.add_argument("--labels", type=json.loads, default=None, help="label selector, as JSON")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps in all")
    parser.add_argument("--batch", type=int, default=60, help="global batch, over all workers")
    parser.add_argument("--samples", type=int, default=6000, help="size of the dataset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--step-s", type=float, default=0.0, help="seconds of work that a step stands for, over all workers"
    )
    parser.add_argument("--checkpoint-every", type=int, default=25, help="steps")
    parser.add_argument("--storage", default=None, help="folder for checkpoints")
    parser.add_argument("--name", default=None, help="of the run; the same name goes on where it stopped")
    parser.add_argument("--ledger", default=None, help="folder in which every worker writes down its samples")
    parser.add_argument("--curve", default=None, help="file for the loss of every step, as JSON lines")
    parser.add_argument("--double", action="store_true", help="compute in double precision")
    parser.add_argument("--settle-s", type=float, default=5.0, help="wait this long for further nodes before growing")
    return parser.parse_args(arguments)


def loss_text(loss: float | None) -> str:
    """A run that had come to its end before it began takes no step, and has no loss."""
    return "-" if loss is None else f"{loss:.4f}"


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    result = fit(
        lambda run: train(run, options),
        workers=options.workers,
        resources=options.resources,
        labels=options.labels,
        storage=options.storage,
        name=options.name,
        checkpoint_every=options.checkpoint_every,
        seed=options.seed,
        ledger=options.ledger,
        curve=options.curve,
        settle_s=options.settle_s,
    )
    loss = loss_text(result.loss)
    print(f"done: step {result.step}, loss {loss}, {result.attempts} worker groups, {result.checkpoint}")
    if options.ledger:
        from tradewind.jobs.sample_ledger import audit

        print(f"samples: {audit(Path(options.ledger))}")


if __name__ == "__main__":
    main()
