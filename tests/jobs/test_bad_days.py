"""Days that are worse than a lost node: real workers and nodes, really killed, stopped, and taken away all at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from training_run import training

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def test_workers_are_resized_killed_and_stopped_on_a_live_node(cell: Any, tmp_path: Path) -> None:
    """A resize every few seconds, a worker that is killed (as by the kernel, when memory runs out), one that hangs."""
    with cell.nodes(1, cpus=3, gpus=3), training(tmp_path, cell.env, 0.2, steps=400, hang_timeout_s=4.0) as run:
        run.wait_for_group(3)
        for size in (1, 3, 2, 3):
            run.put("target", size)
            run.wait_for_group(size, more_steps=1)
        os.kill(run.workers()[1]["pid"], signal.SIGKILL)
        run.wait_for_group(2)
        run.wait_for_group(3)
        os.kill(run.workers()[1]["pid"], signal.SIGSTOP)
        run.wait_for_group(2)
        run.wait_for_group(3)
        run.put("pace", 0.0)
        run.end()
        assert run.check().recomputed_steps == 0


def test_two_nodes_at_once_then_too_few_then_all(cell: Any, tmp_path: Path) -> None:
    with (
        cell.nodes(3, gpus=1) as left,
        training(tmp_path, cell.env, 0.2, workers=[2, 3], steps=600, checkpoint_every=5) as run,
    ):
        run.wait_for_group(3, more_steps=8)
        cell.remove_node(left.pop())
        cell.remove_node(left.pop())
        run.wait_until(lambda: " 1 worker  restarting" in run.tail(), "the loss of two")
        step = run.curve()[-1]["step"]
        assert busy_share(run.process.pid) < 0.5  # it waits, it does not spin
        assert run.curve()[-1]["step"] <= step + 1  # below the minimum no steps are taken
        left.append(cell.add_node(cpus=1, gpus=1))
        run.wait_for_group(2)
        before = run.curve()[-1]["attempt"]
        cell.remove_node(left.pop())
        cell.remove_node(left.pop())
        left += [cell.add_node(cpus=1, gpus=1) for _ in range(2)]
        run.wait_until(lambda: run.curve()[-1]["attempt"] > before, "a group after all were lost")
        run.put("pace", 0.0)
        run.end()
        assert run.check().recomputed_steps <= 10  # since the last checkpoint, when all were lost; nothing before


def busy_share(driver_pid: int) -> float:
    """Of one core: what the job's control loop uses while it waits, over some seconds."""
    name = "ray::ElasticController"
    found = [p for p in psutil.process_iter(["cmdline"]) if any(name in word for word in p.info["cmdline"] or [])]
    assert found, f"no {name} of {driver_pid}"
    before = [sum(p.cpu_times()[:2]) for p in found]
    psutil.cpu_percent(interval=5.0)
    return max(sum(p.cpu_times()[:2]) - was for p, was in zip(found, before, strict=True)) / 5.0


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_the_state_before_it(cell: Any, tmp_path: Path) -> None:
    with cell.nodes(1, cpus=2, gpus=2):
        with training(tmp_path, cell.env, 0.0, workers=[2, 2], steps=40, nan_at=13) as run:
            run.end()
        error = (tmp_path / "error").read_text()
        assert "the loss of step 13 is nan" in error
        assert "step-00000012" in " ".join(path.name for path in (tmp_path / "run").iterdir())
        with training(tmp_path, cell.env, 0.0, workers=[1, 2], steps=40, nan_at=13, on_nan="skip") as run:
            run.end()
            assert run.check().recomputed_steps == 0  # a second driver goes on where the first one stopped


def test_gradients_that_are_not_summed_end_the_run_at_once(cell: Any, tmp_path: Path) -> None:
    """Workers would drift apart, and nobody would see it."""
    with cell.nodes(1, cpus=2, gpus=2), training(tmp_path, cell.env, 0.0, workers=[2, 2], unused=True) as run:
        run.end()
        assert "gradients of 1 of 2 workers were summed" in (tmp_path / "error").read_text()
        assert not run.curve()


def test_two_models_learn_together_one_of_them_past_its_wrapper(cell: Any, tmp_path: Path) -> None:
    with cell.nodes(1, cpus=2, gpus=2), training(tmp_path, cell.env, 0.0, workers=[2, 2], split=True) as run:
        run.end()
        assert run.check().recomputed_steps == 0
