"""What `chaos_train.py` disturbs: a small model in double precision, with dropout and a schedule, under `tw.fit`.

    python -m training.chaos_job FOLDER STEPS MAX_WORKERS        a driver; the cell comes from the environment

FOLDER/pace holds the seconds that a step takes at least: what disturbs it can slow it down, and let it run at the end.
`train_alone` is what the training means: the same in one process, with nothing of ours but order and seeds of the data.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from training import agent
from training.step_log import StepLog

import tradewind as tw
from tradewind.jobs.data import Order, seed_of, share
from tradewind.model import JOB_ID_ENV

SAMPLES, BATCH, SEED, MICRO_BATCHES = 997, 24, 7, 4
CHECKPOINT_EVERY = 50


def make(steps: int) -> tuple[Any, Any, Any, Any]:
    """(dataset, model, optimizer, scheduler)."""
    import torch

    torch.manual_seed(SEED)
    x = torch.randn(SAMPLES, 16, dtype=torch.float64)
    y = (x @ torch.randn(16, 4, dtype=torch.float64)).tanh() + 0.1 * torch.randn(SAMPLES, 4, dtype=torch.float64)
    layers = torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)
    model = torch.nn.Sequential(*layers).to(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    return torch.utils.data.TensorDataset(x, y), model, optimizer, scheduler


def epochs(steps: int) -> int:
    return steps * BATCH // SAMPLES + 1


def train(run: Any, folder: Path, steps: int) -> None:
    import ray
    import torch

    dataset, *objects = make(steps)
    model, optimizer, scheduler = run.prepare(*objects)
    log, done = StepLog(folder, ray.util.get_node_ip_address()), run.done
    how = {"epochs": epochs(steps), "seed": SEED, "max_steps": steps, "micro_batches": MICRO_BATCHES}
    for batch in run.batches(dataset, global_batch=BATCH, **how):
        if run.done > done:
            log.completed(run.done, run.rank, run.world, run.attempt)
        done = run.done
        loss = torch.nn.functional.mse_loss(model(batch.x), batch.y)
        run.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if batch.is_last:
            time.sleep(float((folder / "pace").read_text()))


def train_alone(steps: int) -> list[float]:
    """The loss of every step."""
    import torch

    torch.set_num_threads(1)
    dataset, model, optimizer, scheduler = make(steps)
    order = Order(SAMPLES, BATCH, epochs(steps), SEED, MICRO_BATCHES)
    losses = []
    for step in range(1, steps + 1):
        total = 0.0
        for micro in share(order, step, 0, 1).micros:
            torch.manual_seed(seed_of(SEED, step, micro.number))
            x, y = dataset[micro.indices.tolist()]
            loss = torch.nn.functional.mse_loss(model(x), y) * micro.weight
            loss.backward()
            total += loss.item()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def main(folder: Path, steps: int, max_workers: int) -> None:
    import ray

    ray.init(logging_level="warning")
    agent.start(os.environ[JOB_ID_ENV], folder)
    tw.fit(
        lambda run: train(run, folder, steps),
        workers=(1, max_workers),
        resources={"CPU": 1},
        storage=folder / "storage",
        name="run",
        checkpoint_every=CHECKPOINT_EVERY,
        ledger=folder / "ledger",
        curve=folder / "curve.jsonl",
        seed=SEED,
        settle_s=0.5,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
