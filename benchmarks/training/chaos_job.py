"""What `chaos_train.py` disturbs: a small model in double precision, with a schedule, under `tw.fit`.

    python -m training.chaos_job FOLDER STEPS MIN_WORKERS MAX_WORKERS        a driver; the cell comes from the environment

FOLDER/pace holds the seconds that a step takes at least: what disturbs it can slow it down, and let it run at the end.
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
from tradewind.model import JOB_ID_ENV

SAMPLES, BATCH, SEED = 1000, 24, 7
CHECKPOINT_EVERY = 50


def make(steps: int) -> tuple[Any, Any, Any, Any]:
    """(dataset, model, optimizer, scheduler)."""
    import torch

    torch.manual_seed(SEED)
    x = torch.randn(SAMPLES, 16, dtype=torch.float64)
    y = (x @ torch.randn(16, 4, dtype=torch.float64)).tanh() + 0.1 * torch.randn(SAMPLES, 4, dtype=torch.float64)
    layers = torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
    model = torch.nn.Sequential(*layers).to(torch.float64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    return torch.utils.data.TensorDataset(x, y), model, optimizer, scheduler


def train(run: Any, folder: Path, steps: int) -> None:
    import ray
    import torch

    dataset, *objects = make(steps)
    model, optimizer, scheduler = run.prepare(*objects)
    log = StepLog(folder, ray.util.get_node_ip_address())
    epochs, done = -(-steps * BATCH // SAMPLES) + 1, run.done
    for batch in run.batches(dataset, global_batch=BATCH, epochs=epochs, seed=SEED, max_steps=steps):
        if run.done > done:
            log.completed(run.done, run.world, run.attempt)
        done = run.done
        loss = torch.nn.functional.mse_loss(model(batch.x), batch.y)
        (loss * batch.weight).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        time.sleep(float((folder / "pace").read_text()))
        run.step(loss)


def main(folder: Path, steps: int, min_workers: int, max_workers: int) -> None:
    import ray

    ray.init(logging_level="warning")
    agent.start(os.environ[JOB_ID_ENV], folder)
    tw.fit(
        lambda run: train(run, folder, steps),
        workers=(min_workers, max_workers),
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
