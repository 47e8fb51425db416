"""For how long does a checkpoint stop training, and when is it durable?

In every round, one after another: a memory copy of the state into buffers that were used before (the floor), our save,
DCP's `async_save` as it comes and with its staging buffers kept, and a raw write of the same bytes with fsync, both
through the page cache and past it; then the same backwards. The first round only warms up.

    python benchmarks/checkpoint.py [--gib 1] [--rounds 5] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import logging
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from bars import Bar, show
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from tradewind.jobs.checkpoint import Checkpoints, Part
from tradewind.jobs.saver import Saver
from tradewind.jobs.shards import Layout

WIDTH = 2048  # of a layer; three float32 tensors each (weight, and Adam's two), 48 MiB
STALL_GOAL, DURABLE_GOAL = 1.2, 1.5


@dataclass(frozen=True, slots=True)
class Took:
    stall_s: float
    durable_s: float


def make_state(gib: float) -> dict[str, Any]:
    layers = max(1, round(gib * 2**30 / (3 * 4 * WIDTH**2)))
    state: dict[str, Any] = {}
    for layer in range(layers):
        state[f"0:Net/{layer}.weight"] = torch.randn(WIDTH, WIDTH) / WIDTH**0.5
        state[f"1:Adam/{layer}.weight/exp_avg"] = torch.randn(WIDTH, WIDTH) * 1e-3
        state[f"1:Adam/{layer}.weight/exp_avg_sq"] = torch.rand(WIDTH, WIDTH) * 1e-6
    return state


class Rounds:
    """All contestants on the same state, in one folder."""

    def __init__(self, state: dict[str, Any], folder: Path) -> None:
        self.state, self.folder = state, folder
        self.num_bytes = sum(value.nbytes for value in state.values())
        self._copies = {key: torch.zeros_like(value) for key, value in state.items()}
        self._raw = torch.frombuffer(mmap.mmap(-1, self.num_bytes), dtype=torch.uint8)
        torch.cat([value.view(-1).view(torch.uint8) for value in state.values()], out=self._raw)
        self._checkpoints = Checkpoints.at(folder / "ours")
        self._saver = Saver(self._checkpoints.store, lambda part: self._committed.append(self._commit(part)))
        self._committed: list[float] = []
        self._saver.prepare(state, Layout())
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options)
        self._step = 0

    def memory_copy(self) -> Took:
        began_s = time.perf_counter()
        for key, value in self.state.items():
            self._copies[key].copy_(value)
        return Took(time.perf_counter() - began_s, 0.0)

    def ours(self) -> Took:
        self._step += 1
        began_s = time.perf_counter()
        self._saver.begin(self.state, step=self._step, attempt=1, layout=Layout())
        stall_s = time.perf_counter() - began_s
        part = self._saver.wait()
        if part is None or part.error:
            raise SystemExit(f"the checkpoint was not written: {part}")
        self._checkpoints.prune(keep=1)
        return Took(stall_s, self._committed[-1] - began_s)

    def _commit(self, part: Part) -> float:
        self._checkpoints.commit([part])
        return time.perf_counter()

    def dcp_async(self, stager: Any = None) -> Took:
        began_s = time.perf_counter()
        more = {"async_stager": stager} if stager else {}
        found: Any = dcp.async_save(dict(self.state), checkpoint_id=self.folder / "dcp", **more)
        stall_s = time.perf_counter() - began_s
        getattr(found, "upload_completion", found).result()
        took = Took(stall_s, time.perf_counter() - began_s)
        shutil.rmtree(self.folder / "dcp")
        return took

    def dcp_async_kept(self) -> Took:
        return self.dcp_async(self._stager)

    def raw(self, flags: int = 0) -> Took:
        content, path = memoryview(self._raw.numpy()), self.folder / "raw"
        began_s = time.perf_counter()
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | flags, 0o644)
        for at in range(0, self.num_bytes, 16 << 20):
            os.write(handle, content[at : at + (16 << 20)])
        os.fsync(handle)
        os.close(handle)
        took = Took(0.0, time.perf_counter() - began_s)
        path.unlink()
        return took

    def raw_direct(self) -> Took:
        try:
            return self.raw(getattr(os, "O_DIRECT", 0))
        except OSError:  # this filesystem does not have it
            return self.raw()

    def run(self, rounds: int) -> dict[str, list[Took]]:
        contestants: dict[str, Callable[[], Took]] = {
            "memory copy": self.memory_copy,
            "ours": self.ours,
            "dcp async_save": self.dcp_async,
            "dcp async_save, kept buffers": self.dcp_async_kept,
            "raw write": self.raw,
            "raw write, direct": self.raw_direct,
        }
        found: dict[str, list[Took]] = {name: [] for name in contestants}
        for number in range(rounds + 1):
            for name in [*contestants, *reversed(contestants)]:
                os.sync()  # nobody pays for the writes of the one before
                took = contestants[name]()
                if number:
                    found[name].append(took)
        self._saver.close()
        return found


def bars(found: dict[str, list[Took]]) -> list[Bar]:
    stall = {name: statistics.median(took.stall_s for took in tooks) for name, tooks in found.items()}
    durable = {name: statistics.median(took.durable_s for took in tooks) for name, tooks in found.items()}
    copy_s, raw_s = stall["memory copy"], durable["raw write"]
    dcp_names, raw_names = ([name for name in found if name.startswith(prefix)] for prefix in ("dcp", "raw"))
    over_copy = _ratio(found, "memory copy", lambda took: took.stall_s)
    over_dcp = max(_ratio(found, name, lambda took: took.stall_s) for name in dcp_names)
    over_raw = _ratio(found, "raw write", lambda took: took.durable_s)
    best_dcp_s = min(stall[name] for name in dcp_names)
    return [
        Bar("checkpoint: training stands still, s", stall["ours"], {"memory copy": copy_s}, STALL_GOAL * copy_s,
            over_copy, f"<= {STALL_GOAL:g} x memory copy", over_copy <= STALL_GOAL),
        Bar("checkpoint: training stands still, s", stall["ours"], {name: stall[name] for name in dcp_names},
            best_dcp_s, over_dcp, "< 1 x DCP's best", over_dcp < 1),
        Bar("checkpoint: until durable, s", durable["ours"], {name: durable[name] for name in (*raw_names, *dcp_names)},
            DURABLE_GOAL * raw_s, over_raw, f"<= {DURABLE_GOAL:g} x raw write", over_raw <= DURABLE_GOAL),
    ]  # fmt: skip


def _ratio(found: dict[str, list[Took]], peer: str, figure: Callable[[Took], float]) -> float:
    """The median over rounds of ours against the peer in that round: a busy minute hits both."""
    rounds = zip(found["ours"], found[peer], strict=True)
    return statistics.median(figure(ours) / figure(other) for ours, other in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to write (and remove) the files")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each bar")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="tradewind-bench-", dir=given.folder) as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        found = Rounds(make_state(given.gib), Path(folder)).run(given.rounds)
        dist.destroy_process_group()
    return show(bars(found), given.json)


if __name__ == "__main__":
    sys.exit(main())
