"""Run by test_elastic_fit.py in processes of its own: a small model in double precision.

elastic_script.py elastic FOLDER    train with 1 to 3 workers, and play the platform's agent beside it
elastic_script.py plain FOLDER      the same training without Ray, workers, checkpoints: what it should come to
elastic_script.py failing FOLDER    a training function with a mistake
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

STEPS, BATCH, SAMPLES, SEED = 240, 20, 333, 5


def make() -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(SEED)
    x = torch.randn(SAMPLES, 12, dtype=torch.float64)
    y = (x @ torch.randn(12, 1, dtype=torch.float64)).tanh()
    layers = torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1)
    model = torch.nn.Sequential(*layers).to(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.utils.data.TensorDataset(x, y), model, optimizer


def train(run: Any, folder: Path) -> None:
    import torch

    dataset, model, optimizer = make()
    model, optimizer = run.prepare(model, optimizer)
    epochs = -(-STEPS * BATCH // SAMPLES)
    for batch in run.batches(dataset, global_batch=BATCH, epochs=epochs, seed=SEED, max_steps=STEPS):
        loss = torch.nn.functional.mse_loss(model(batch.x), batch.y)
        (loss * batch.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(float((folder / "pace").read_text()))
        run.step(loss)


def plain(folder: Path) -> None:
    import torch

    from tradewind.jobs.data import Order

    dataset, model, optimizer = make()
    order = Order(SAMPLES, BATCH, epochs=-(-STEPS * BATCH // SAMPLES), seed=SEED)
    losses = []
    for step in range(1, STEPS + 1):
        x, y = dataset[order.indices(step).tolist()]
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    (folder / "plain.json").write_text(json.dumps(losses))


def play_agent(job_id: str, folder: Path) -> None:
    """Poll the coordinator as the platform does, and write down what it tells."""
    import ray

    from tradewind.events import decode
    from tradewind.jobs import coordinator

    after, found = 0, None
    with (folder / "events.jsonl").open("wb") as log:
        while True:
            try:
                found = found or coordinator.find(job_id)
                events = ray.get(found.poll.remote(after))["events"]
            except ValueError:  # not there yet
                events = []
            except ray.exceptions.RayActorError:
                return
            for event in events:
                log.write(event + b"\n")
                after = getattr(decode(event), "sequence", after)
            log.flush()
            time.sleep(0.1)


def elastic(folder: Path) -> None:
    import ray

    from tradewind.jobs.trainer import fit

    ray.init()
    threading.Thread(target=play_agent, args=(os.environ["TRADEWIND_JOB_ID"], folder), daemon=True).start()
    result = fit(
        lambda run: train(run, folder),
        workers=(1, 3),
        resources={"CPU": 1, "GPU": 1},
        storage=folder,
        name="run",
        checkpoint_every=10,
        ledger=folder / "ledger",
        curve=folder / "curve.jsonl",
        seed=SEED,
        settle_s=0.5,
    )
    (folder / "result.json").write_text(json.dumps({"step": result.step, "attempts": result.attempts}))


def failing(folder: Path) -> None:
    from tradewind.errors import JobFailed
    from tradewind.jobs.trainer import fit

    def train_badly(run: Any) -> None:
        with (folder / "calls").open("a") as calls:
            calls.write(f"{run.attempt}\n")
        raise ValueError("the labels are upside down")

    try:
        fit(train_badly, workers=(1, 3), resources={"CPU": 1, "GPU": 1}, storage=folder, name="run", progress=False)
    except JobFailed as error:
        (folder / "error").write_text(str(error))


if __name__ == "__main__":
    {"elastic": elastic, "plain": plain, "failing": failing}[sys.argv[1]](Path(sys.argv[2]))
