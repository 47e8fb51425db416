"""Run by the tests of bad days and of layouts, in processes of its own: a small network in double precision.

fit_script.py fit FOLDER OPTIONS      train through Ray; OPTIONS is JSON, see DEFAULTS
fit_script.py plain FOLDER OPTIONS    the same training without Ray, workers, checkpoints: what it should come to

Every worker says in FOLDER/worker-PID.json where it is; FOLDER/pace is the length of a step, FOLDER/target the number
of workers that the platform grants.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

SAMPLES, SEED = 333, 5
DEFAULTS: dict[str, Any] = {
    "job_id": "fit-test",
    "workers": [1, 3],
    "micro_batches": 4,
    "batch": 20,
    "steps": 200,
    "parallel": None,
    "checkpoint_every": 20,
    "hang_timeout_s": 120.0,
    "on_nan": "fail",
    "nan_at": 0,
    "max_batch": None,
    "storage": None,  # FOLDER
    "worker_env": {},
    "full_at": [0, 0],  # steps: from the first one on there is no room for a checkpoint, until the second one
    "unused": False,  # a parameter that the loss does not depend on
    "split": False,  # two models, the second one called past its wrapper at every other step
    "ballast": 0,  # numbers that are kept beside the model
}


def make() -> tuple[Any, Any, Any]:
    import torch
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    class Net(torch.nn.Sequential):  # type: ignore[misc]
        def tp_plan(self) -> dict[str, Any]:
            return {"0": ColwiseParallel(), "2": RowwiseParallel()}

    torch.manual_seed(SEED)
    x = torch.randn(SAMPLES, 12, dtype=torch.float64)
    y = (x @ torch.randn(12, 1, dtype=torch.float64)).tanh()
    hidden = torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh()
    model = Net(*hidden, torch.nn.Linear(24, 1)).to(torch.float64)
    return torch.utils.data.TensorDataset(x, y), model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(run: Any, folder: Path, options: dict[str, Any]) -> None:
    import torch

    dataset, model, optimizer = make()
    if options["max_batch"]:  # labels that say little, so that larger batches are worth it
        x, y = dataset.tensors
        noise = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(SEED))
        dataset = torch.utils.data.TensorDataset(x, y + 3.0 * noise)
    if options["unused"]:
        model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    if options["split"]:
        body, head = model[:2], model[2:]
        first, second, optimizer = run.prepare(body, head, optimizer)

        def model(x: Any) -> Any:
            return (second if run.done % 2 else head)(first(x))
    else:
        model, optimizer = run.prepare(model, optimizer)
    if options["ballast"]:
        ballast = torch.nn.Module()
        ballast.register_buffer("numbers", torch.ones(options["ballast"]))
        run.keep("ballast", ballast)
    epochs, loss_fn = -(-options["steps"] * options["batch"] // SAMPLES), torch.nn.functional.mse_loss
    for batch in run.batches(
        dataset,
        global_batch=options["batch"],
        micro_batches=options["micro_batches"],
        epochs=epochs,
        seed=SEED,
        max_steps=options["steps"],
        max_batch=options["max_batch"],
        lr_rule="sqrt",
    ):
        spoil = float("nan") if batch.step == options["nan_at"] else 1.0
        run.learn(model, batch.x, batch.y, lambda out, y: loss_fn(out, y) * spoil)  # noqa: B023
        optimizer.step()
        optimizer.zero_grad()
        if batch.step in options["full_at"]:
            fill_disk(batch.step == options["full_at"][0])
        say(folder, rank=run.rank, world=run.world, step=batch.step)
        time.sleep(float((folder / "pace").read_text()))


def fill_disk(full: bool) -> None:
    """As far as this process is concerned: the kernel refuses to write files of more than 64 KiB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536 if full else resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def say(folder: Path, **words: Any) -> None:
    path = folder / f"worker-{os.getpid()}.json"
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps({"pid": os.getpid(), "at_s": time.time(), **words}))
    aside.rename(path)


def plain(folder: Path, options: dict[str, Any]) -> None:
    import torch

    from tradewind.jobs.data import Order

    dataset, model, optimizer = make()
    epochs = -(-options["steps"] * options["batch"] // SAMPLES)
    order = Order(SAMPLES, options["batch"], epochs, SEED)
    losses = []
    for step in range(1, options["steps"] + 1):
        x, y = dataset[order.indices(step).tolist()]
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        if step != options["nan_at"]:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() if step != options["nan_at"] else None)
    (folder / "plain.json").write_text(json.dumps(losses))


def grant(job_id: str, folder: Path) -> None:
    """Play the platform: what stands in the file is granted."""
    import ray

    from tradewind.jobs import coordinator

    granted, epoch = "", 0
    while True:
        time.sleep(0.1)
        path = folder / "target"
        wanted = path.read_text() if path.exists() else ""
        if wanted != granted:
            try:
                epoch += 1
                ray.get(coordinator.find(job_id).set_target.remote(epoch, int(wanted)))
                granted = wanted
            except (ValueError, ray.exceptions.RayActorError):
                continue


def fit(folder: Path, options: dict[str, Any]) -> None:
    import ray

    from tradewind.errors import JobFailed
    from tradewind.jobs.trainer import fit

    ray.init(runtime_env={"env_vars": options["worker_env"]} if options["worker_env"] else None)
    threading.Thread(target=grant, args=(options["job_id"], folder), daemon=True).start()
    try:
        result = fit(
            lambda run: train(run, folder, options),
            workers=tuple(options["workers"]),
            resources={"CPU": 1, "GPU": 1},
            parallel=options["parallel"],
            storage=options["storage"] or folder,
            name="run",
            checkpoint_every=options["checkpoint_every"],
            hang_timeout_s=options["hang_timeout_s"],
            on_nan=options["on_nan"],
            ledger=folder / "ledger",
            curve=folder / "curve.jsonl",
            seed=SEED,
            settle_s=0.5,
        )
    except JobFailed as error:
        (folder / "error").write_text(str(error))
        return
    (folder / "result.json").write_text(json.dumps({"step": result.step, "attempts": result.attempts}))


if __name__ == "__main__":
    {"fit": fit, "plain": plain}[sys.argv[1]](Path(sys.argv[2]), DEFAULTS | json.loads(sys.argv[3]))
