"""Ours in `recovery.py`: the shared workload under `tw.fit`, with two or three workers.

python -m training.recovery_job FOLDER MAX_STEPS        a driver; the cell comes from the environment, see cell.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from training import agent, workload
from training.step_log import StepLog

import tradewind as tw
from tradewind.model import JOB_ID_ENV


def train(run: Any, folder: Path, max_steps: int) -> None:
    import ray
    import torch

    dataset, model, optimizer = workload.make()
    model, optimizer = run.prepare(model, optimizer)
    log = StepLog(folder, ray.util.get_node_ip_address())
    epochs = -(-max_steps * workload.GLOBAL_BATCH // workload.SAMPLES)
    done = run.done
    for batch in run.batches(dataset, global_batch=workload.GLOBAL_BATCH, epochs=epochs, max_steps=max_steps):
        if run.done > done:
            log.completed(run.done, run.rank, run.world, run.attempt)
        done = run.done
        loss = torch.nn.functional.cross_entropy(model(batch.x), batch.y)
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def main(folder: Path, max_steps: int) -> None:
    import ray

    ray.init(logging_level="warning")
    agent.start(os.environ[JOB_ID_ENV], folder)
    tw.fit(
        lambda run: train(run, folder, max_steps),
        workers=(2, 3),
        resources={"CPU": 1},
        storage=folder / "storage",
        name="run",
        settle_s=0.5,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
