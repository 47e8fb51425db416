"""Train on a TPU slice by Ray Train's JaxTrainer: one worker a host, saved and resumed by Ray Train's checkpoints.

    python -m tradewind.jobs.examples.jax_slice --topology 2x2x2 --accelerator TPU-V4 --steps 200

A slice is bought whole, and taken away whole: there is nothing to shrink to. When it goes, Ray Train waits for another
one of the same topology, which Tradewind buys, and the run goes on from its last checkpoint. `--platform cpu` computes
on the hosts' CPUs, so that the same program runs where the slice is a pretended one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tradewind.model import JOB_ID_ENV, STORAGE_ENV

FEATURES = 16


def train(options: dict[str, Any]) -> None:
    """On each host. The data are made here, the same on every host; each computes on its own part of a batch."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils
    from ray import train as ray_train

    hosts, host = jax.process_count(), jax.process_index()
    truth = jnp.arange(1.0, FEATURES + 1)

    @jax.jit
    def gradient(weights: Any, key: Any) -> tuple[Any, Any]:
        x = jax.random.normal(key, (options["batch"] // hosts, FEATURES))
        return jax.value_and_grad(lambda w: jnp.mean((x @ w - x @ truth) ** 2))(weights)

    first_step, weights = restore()
    for step in range(first_step, options["steps"]):
        began_s = time.monotonic()
        loss, grad = gradient(jnp.asarray(weights), jax.random.fold_in(jax.random.key(step), host))
        loss, grad = jax.tree.map(lambda part: part.mean(axis=0), multihost_utils.process_allgather((loss, grad)))
        weights = weights - 0.05 * grad
        time.sleep(max(0.0, began_s + options["step_s"] - time.monotonic()))
        told = {"step": step + 1, "loss": float(loss), "hosts": hosts, "resumed_at": first_step}
        if (step + 1) % options["save_every"] == 0 or step + 1 == options["steps"]:
            save(ray_train, told, [float(weight) for weight in weights], is_first=host == 0)


def restore() -> tuple[int, Any]:
    """Where the run stands: at its last checkpoint, or at the beginning."""
    import numpy as np
    from ray import train as ray_train

    checkpoint = ray_train.get_checkpoint()
    if checkpoint is None:
        return 0, np.zeros(FEATURES)
    with checkpoint.as_directory() as folder:
        state = json.loads((Path(folder) / "state.json").read_text())
    return state["step"], np.asarray(state["weights"])


def save(ray_train: Any, told: dict[str, Any], weights: list[float], *, is_first: bool) -> None:
    """Weights are alike on all hosts: the first one's are kept. All hosts report, since Ray Train waits for all."""
    if not is_first:
        ray_train.report(told)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "state.json").write_text(json.dumps({"step": told["step"], "weights": weights}))
        ray_train.report(told, checkpoint=ray_train.Checkpoint.from_directory(folder))
    print(json.dumps(told), flush=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="2x2x2")
    parser.add_argument("--accelerator", default="TPU-V4")
    parser.add_argument("--hosts", type=int, default=2, help="of the topology: one worker each")
    parser.add_argument("--chips-per-host", type=int, default=4)
    parser.add_argument("--platform", choices=("tpu", "cpu"), default="tpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--step-s", type=float, default=0.0, help="a step takes at least so long")
    parser.add_argument("--storage", default=os.environ.get(STORAGE_ENV, ""))
    options = parser.parse_args(argv)

    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer

    trainer = JaxTrainer(
        train,
        train_loop_config=vars(options),
        scaling_config=ScalingConfig(
            use_tpu=True,
            topology=options.topology,
            accelerator_type=options.accelerator,
            num_workers=options.hosts,
            resources_per_worker={"TPU": options.chips_per_host},
        ),
        run_config=RunConfig(
            name=os.environ.get(JOB_ID_ENV, "jax-slice"),  # the same name finds its checkpoints again
            storage_path=options.storage or None,
            failure_config=FailureConfig(max_failures=-1),
            worker_runtime_env={"env_vars": {"JAX_PLATFORMS": options.platform}},
        ),
    )
    result = trainer.fit()
    print(json.dumps({"done": result.metrics}), flush=True)


if __name__ == "__main__":
    main()
