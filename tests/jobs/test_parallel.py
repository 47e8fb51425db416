"""Every example in every layout, for real, on four processes over gloo: the same losses as in one process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

SCRIPT = Path(__file__).with_name("parallel_script.py")
LAYOUTS = ("fsdp=2", "tp=2", "pp=2", "fsdp=all", "fsdp=2,tp=2", "pp=2,fsdp=2", "pp=2,tp=2")

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the four workers tell; they must tell the same."""
    folder = tmp_path_factory.mktemp("parallel")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(4):
        with (folder / f"log-{rank}").open("w") as log:
            command = [sys.executable, str(SCRIPT), str(rank), str(store.port), str(folder)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(240) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    assert codes == [0, -9, -9, -9], "\n".join((folder / f"log-{rank}").read_text()[-3000:] for rank in range(4))
    found = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(4)]
    after = {name: json.loads((folder / f"losses-{name}.json").read_text()) for name in "ac"}
    return {"all": found, "after": after, "noticed": (folder / "noticed").read_text(), **found[0]}


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("parallel_script", SCRIPT)
    assert spec
    assert spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def alone(script: Any) -> dict[str, list[list[float]]]:
    """(loss, norm of gradients) of each step, by plain torch in this process."""
    torch.set_num_threads(1)
    return {name: script.alone(name, steps=6) for name in ("cnn", "rnn", "gpt")}


def same(found: Any, expected: Any) -> None:
    assert len(found) <= len(expected)
    for ours, theirs in zip(found, expected, strict=False):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["cnn", "rnn", "gpt"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_and_clipped_norms_are_those_of_one_process(told: Any, alone: Any, layout: str, name: str) -> None:
    assert len(told[f"{layout} {name}"]) == 3
    for each in told["all"]:
        same(each[f"{layout} {name}"], alone[name])


@pytest.mark.parametrize("layout", ["fsdp=2,tp=2", "pp=2,fsdp=2"])
def test_accumulated_gradients_are_those_of_the_whole_batch(told: Any, alone: Any, layout: str) -> None:
    same(told[f"accumulation {layout}"], alone["gpt"])


@pytest.mark.parametrize("layout", ["fsdp=2,tp=2", "pp=2,fsdp=2"])
def test_mixed_precision_learns_and_keeps_parameters_in_full_precision(told: Any, layout: str) -> None:
    first, last, kinds = told[f"bf16 {layout}"]
    assert last < 0.9 * first
    assert kinds == ["torch.float32"]


def test_an_ordinary_loop_with_clipping_of_torch(told: Any, alone: Any) -> None:
    same(told["plain loop"], alone["cnn"])


def test_optimizers_follow_their_parameters_to_another_mesh(told: Any) -> None:
    for kind, (by_one, by_four) in told["optimizers"].items():
        assert by_four == pytest.approx(by_one, rel=1e-12), kind


def test_a_pipeline_takes_batches_of_any_size(told: Any) -> None:
    for ours, expected in told["uneven"]:
        assert ours == pytest.approx(expected, rel=1e-12)


def test_a_checkpoint_can_be_read_in_any_layout_and_in_none(told: Any, alone: Any) -> None:
    for ours, theirs in zip(told["checkpoints"], alone["gpt"], strict=False):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-9)
    assert "0:Net/block0.attention.query.weight" in told["names"]
    assert "1:AdamW/block0.attention.query.weight/exp_avg" in told["names"]
    assert {"1:AdamW//groups", "2:StepLR"} <= set(told["names"])


@pytest.mark.parametrize("layout", ["fsdp=2", "tp=2", "pp=2"])
def test_replicas_leave_and_come_back_without_a_trace(told: Any, alone: Any, layout: str) -> None:
    same(told[f"change {layout}"], alone["gpt"])
    for rank in (2, 3):  # who was away has not seen the steps between
        same(told["all"][rank][f"change {layout}"][2:], alone["gpt"][4:])


def test_one_copy_is_cut_anew_for_more_workers(told: Any, alone: Any) -> None:
    same(told["resharding"], alone["cnn"])
    for rank in (2, 3):
        same(told["all"][rank]["resharding"], alone["cnn"][2:])


def test_a_killed_worker_is_replaced_from_the_memory_of_its_partner(told: Any, alone: Any) -> None:
    survivor, joiner = told["after"]["a"]["joined"], told["after"]["c"]["joined"]
    (lost,) = [each for each in survivor if isinstance(each, dict)]
    assert lost == {"lost": 1, "holders": ["a", "a"]}  # killed at step 5, copies are of step 4
    same(survivor[:5], alone["cnn"])
    same(survivor[6:], alone["cnn"][4:])
    assert [each for each in joiner if not isinstance(each, dict)] == survivor[6:]


def test_a_loop_runs_on_to_the_end_of_a_broken_step(told: Any) -> None:
    assert told["after"]["a"]["stand-in"] == [True, [3, 10], 0.0]


def test_a_pipeline_notices_a_lost_stage(told: Any) -> None:
    assert told["noticed"] == "2"


def test_one_copy_survives_a_killed_worker_in_fewer_parts(told: Any, alone: Any) -> None:
    for name in "ac":
        found = told["after"][name]["cut anew"]
        (lost,) = [each for each in found if isinstance(each, dict)]
        assert lost["lost"] == 1
        assert len(lost["holders"]) == 3
        assert "d" not in lost["holders"]
        same(found[:5], alone["cnn"])
        same(found[6:], alone["cnn"][4:])
