"""Stock Ray Train as it is tuned best: elastic TorchTrainer, every knob for speed, a checkpoint every few steps.

python -m training.peer FOLDER MAX_STEPS        a driver; the cell comes from the environment, see cell.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from training import workload
from training.step_log import StepLog

CHECKPOINT_EVERY = 5  # steps: little to repeat, and little time spent on saving
# To be set for the driver. The cell itself notices a dead node in 1 to 2 s, see raylets.py.
TUNED_ENV = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "3",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "10",
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
}
RESIZE_INTERVAL_S = 2.0


def train(config: dict[str, Any]) -> None:
    import ray
    import ray.train
    import ray.train.torch
    import torch

    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    dataset, bare, optimizer = workload.make()
    step = _restore(bare, optimizer)
    model = ray.train.torch.prepare_model(bare)
    log = StepLog(Path(config["folder"]), ray.util.get_node_ip_address())
    size = workload.GLOBAL_BATCH // world
    while step < config["max_steps"]:
        step += 1
        first = (step * workload.GLOBAL_BATCH + rank * size) % (workload.SAMPLES - size)
        x, y = dataset[first : first + size]
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        log.completed(step, rank, world)
        if step % CHECKPOINT_EVERY == 0:
            _save(bare, optimizer, step, rank)


def _restore(model: Any, optimizer: Any) -> int:
    import ray.train
    import torch

    found = ray.train.get_checkpoint()
    if found is None:
        return 0
    with found.as_directory() as folder:
        state = torch.load(f"{folder}/state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _save(model: Any, optimizer: Any, step: int, rank: int) -> None:
    import ray.train
    import torch

    if rank != 0:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{folder}/state.pt")
        ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main(folder: Path, max_steps: int) -> None:
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init()
    TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), "max_steps": max_steps},
        scaling_config=ScalingConfig(
            num_workers=(2, 3),
            resources_per_worker={"CPU": 1},
            elastic_resize_monitor_interval_s=RESIZE_INTERVAL_S,
        ),
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            name="peer",
            storage_path=str(folder / "storage"),
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
