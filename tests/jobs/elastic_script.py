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

STEPS, BATCH, SAMPLES, SEED, MOST = 240, 20, 333, 5, 3


def make() -> tuple[Any, Any, Any]:
    import torch

    torch.manual_seed(SEED)
    x = torch.randn(SAMPLES, 12, dtype=torch.float64)
    y = (x @ torch.randn(12, 1, dtype=torch.float64)).tanh()
    norm, drop = torch.nn.BatchNorm1d(24), torch.nn.Dropout(0.2)
    layers = torch.nn.Linear(12, 24, bias=False), norm, torch.nn.Tanh(), drop, torch.nn.Linear(24, 1)
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
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        use_ray_train(run, folder)
        time.sleep(float((folder / "pace").read_text()))
    if run.is_first:
        write_norm(model.module, folder / "norm.json")


def use_ray_train(run: Any, folder: Path) -> None:
    """What Ray Train offers to user code works, through every change of the group."""
    import ray.train

    context = ray.train.get_context()
    assert (context.get_world_rank(), context.get_world_size()) == (run.rank, run.world)
    notice = ray.train.get_preemption_info()
    if notice and run.is_first:
        (folder / "notice.json").write_text(json.dumps([notice.deadline_ms, notice.preempted_ranks]))
    if run.done % 20 == 0:
        ray.train.report({"done": run.done})


def write_norm(model: Any, path: Path) -> None:
    path.write_text(json.dumps([model[1].running_mean.tolist(), model[1].running_var.tolist()]))


def plain(folder: Path) -> None:
    """What the training means, without any of our machinery but the order of the data and the seeds."""
    import torch

    from tradewind.jobs.data import Order, seed_of, share

    dataset, model, optimizer = make()
    order = Order(SAMPLES, BATCH, epochs=-(-STEPS * BATCH // SAMPLES), seed=SEED, micro_batches=MOST)
    norm, losses = model[1], []
    for step in range(1, STEPS + 1):
        before = norm.running_mean.clone(), norm.running_var.clone()
        after, total = [torch.zeros(24, dtype=torch.float64) for _ in before], 0.0
        for micro in share(order, step, 0, 1).micros:
            torch.manual_seed(seed_of(SEED, step, micro.number))
            x, y = dataset[micro.indices.tolist()]
            loss = torch.nn.functional.mse_loss(model(x), y) * micro.weight
            loss.backward()
            total += loss.item()
            for own, mean, old in zip((norm.running_mean, norm.running_var), after, before, strict=True):
                mean += own * micro.weight
                own.copy_(old)
        norm.running_mean.copy_(after[0])
        norm.running_var.copy_(after[1])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    (folder / "plain.json").write_text(json.dumps(losses))
    write_norm(model, folder / "plain-norm.json")


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
        workers=(1, MOST),
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
