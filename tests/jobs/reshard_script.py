"""Processes for test_checkpoint_reshard.py: torch is imported once, and every group is forked from that.

reshard_script.py reshard FOLDER     each way to save, restored in each other way, with other numbers of workers
reshard_script.py kill FOLDER        writers that are killed at any moment; what is left is whole, or is not there
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # sharded tensors import it at their first use: once, before the forks
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tradewind.jobs.checkpoint import Checkpoints, Part
from tradewind.jobs.committer import Committer
from tradewind.jobs.dcp import Reader, restore
from tradewind.jobs.saver import Saver
from tradewind.jobs.shards import Layout

State = dict[str, Any]
Way = Callable[[int, int], tuple[State, Layout]]  # rank, world -> what it holds, where it stands


def together(world: int, folder: Path, body: Callable[[int], None]) -> None:
    """Run `body(rank)` in so many forked processes that form a group."""
    rendezvous = folder / f"group-{time.monotonic_ns()}"
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            try:
                dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
                body(rank)
                dist.destroy_process_group()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * world, codes


def whole(key: str) -> torch.Tensor:
    """What a tensor holds: known to everybody. Ten rows are not divisible by three or four."""
    torch.manual_seed(sum(key.encode()))
    return torch.randn(10, 6) if key != "step" else torch.tensor(3.0)


KEYS = ("w", "b", "step")


def spread(mesh: DeviceMesh, *placements: Any) -> State:
    state: State = {key: distribute_tensor(whole(key), mesh, placements) for key in ("w", "b")}
    return state | {"step": whole("step"), "note": {"lr": 0.1}}


def data_parallel(rank: int, world: int) -> tuple[State, Layout]:
    return {key: whole(key) for key in KEYS} | {"note": {"lr": 0.1}}, Layout(rank, world)


def rows(rank: int, world: int) -> tuple[State, Layout]:
    """FSDP over all workers."""
    return spread(DeviceMesh("cpu", range(world)), Shard(0)), Layout(rank, world, replica_size=world)


def columns(rank: int, world: int) -> tuple[State, Layout]:
    """Tensor parallel replicas of two, on a mesh of their own each."""
    meshes = [DeviceMesh("cpu", [first, first + 1]) for first in range(0, world, 2)]
    return spread(meshes[rank // 2], Shard(1)), Layout(rank, world, replica_size=2)


def hybrid(rank: int, world: int) -> tuple[State, Layout]:
    """HSDP: shards within a replica, replicas across nodes."""
    mesh = DeviceMesh("cpu", torch.arange(world).view(-1, 2))
    return spread(mesh, Replicate(), Shard(0)), Layout(rank, world, replica_size=2)


def partly(rank: int, world: int) -> tuple[State, Layout]:
    """One replica, in which each piece is on several workers."""
    mesh = DeviceMesh("cpu", torch.arange(world).view(2, -1))
    return spread(mesh, Shard(0), Replicate()), Layout(rank, world, replica_size=world)


def stages(rank: int, world: int) -> tuple[State, Layout]:
    """A pipeline of two stages, in each replica."""
    keys = ("w",) if rank % 2 == 0 else ("b", "step")
    state = {key: whole(key) for key in keys} | {"note": {"lr": 0.1}}
    return state, Layout(rank, world, replica_size=2, stage=(rank,))


def both(rank: int, world: int) -> tuple[State, Layout]:
    """Rows over one dimension of the mesh, columns over the other."""
    return spread(DeviceMesh("cpu", torch.arange(world).view(2, -1)), Shard(0), Shard(1)), Layout(rank, world, world)


WAYS: dict[str, tuple[Way, list[int]]] = {  # with numbers of workers
    "data_parallel": (data_parallel, [1, 3]),
    "rows": (rows, [3, 4]),
    "columns": (columns, [2, 4]),
    "hybrid": (hybrid, [4]),
    "partly": (partly, [4]),
    "stages": (stages, [2, 4]),
    "both": (both, [4]),
}


def save_all(rank: int, world: int, folder: Path) -> None:
    for name, (way, worlds) in WAYS.items():
        if world not in worlds:
            continue
        checkpoints = Checkpoints.at(folder / f"{name}-{world}")
        state, layout = way(rank, world)
        saver = Saver(checkpoints.store)
        saver.begin(state, step=7, attempt=1, layout=layout)
        parts: list[Any] = [None] * world
        dist.all_gather_object(parts, saver.wait())
        saver.close()
        if rank == 0:
            checkpoints.commit(parts, layout={"way": name})
            check_size(parts)


def check_size(parts: list[Part]) -> None:
    """Nothing is written twice, but for the note of each stage."""
    tensors = {(entry.key, entry.offsets): entry.num_bytes for part in parts for entry in part.entries if entry.dtype}
    assert sum(tensors.values()) == sum(whole(key).nbytes for key in KEYS)
    assert sum(entry.num_bytes for part in parts for entry in part.entries if entry.dtype) == sum(tensors.values())


def load_all(rank: int, world: int, folder: Path) -> None:
    for way, worlds in WAYS.values():
        if world in worlds:
            wanted, layout = way(rank, world)
            for run in sorted(folder.glob("*-[0-9]")):
                load(Checkpoints.at(run), wanted, layout)


def load(checkpoints: Checkpoints, wanted: State, layout: Layout) -> None:
    def blank(contents: Any) -> State:
        assert set(contents) == {*KEYS, "note"}
        assert (contents["w"].shape, contents["note"]) == ((10, 6), None)
        return {key: torch.zeros_like(value) if key != "note" else None for key, value in wanted.items()}

    meta, state = restore(checkpoints, blank, is_first=layout.rank == 0, share=from_first, agree=all_agree) or ({}, {})
    assert state.keys() == wanted.keys(), meta
    for key, value in wanted.items():
        if isinstance(value, DTensor):
            assert torch.equal(state[key].to_local(), value.to_local()), key
        else:
            assert torch.equal(state[key], value) if key != "note" else state[key] == value, key


def from_first(value: Any) -> Any:
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_agree(answer: bool) -> bool:
    votes = torch.tensor([int(answer)])
    dist.all_reduce(votes, dist.ReduceOp.MIN)
    return bool(votes.item())


def fall_back(rank: int, world: int, folder: Path) -> None:
    """A block that only one rank reads is damaged: all ranks load the one before."""
    checkpoints = Checkpoints.at(folder / "fall-back")
    state, layout = rows(rank, world)
    saver = Saver(checkpoints.store)
    for step in (1, 2):
        if step == 2:
            for key in ("w", "b"):
                state[key].to_local().zero_()
        saver.begin(state, step=step, attempt=1, layout=layout)
        parts: list[Any] = [None] * world
        dist.all_gather_object(parts, saver.wait())
        if rank == 0:
            checkpoints.commit(parts)
    saver.close()
    dist.barrier()
    if rank == world - 1:
        path = next((folder / "fall-back" / "step-00000002-attempt-001").glob(f"rank-{rank:05d}-*.bin"))
        path.write_bytes(b"\1" + path.read_bytes()[1:])
    dist.barrier()
    load(checkpoints, *rows(rank, world))  # checks the values of the first
    assert "damaged.json" in checkpoints.store.listing("step-00000002-attempt-001")


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def trained(steps: int, shard: bool) -> State:
    """Parameters and optimizer state after some steps."""
    model = network()
    if shard:
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()
    state = dict(model.named_parameters())
    for name, parameter in model.named_parameters():
        state |= {f"{name}/{key}": value for key, value in optimizer.state[parameter].items()}
    return state


def train_and_save(rank: int, world: int, folder: Path) -> None:
    checkpoints = Checkpoints.at(folder / "fsdp")
    saver = Saver(checkpoints.store)
    saver.begin(trained(5, shard=True), step=5, attempt=1, layout=Layout(rank, world, replica_size=world))
    parts: list[Any] = [None] * world
    dist.all_gather_object(parts, saver.wait())
    saver.close()
    if rank == 0:
        checkpoints.commit(parts)


def load_trained(rank: int, world: int, folder: Path) -> None:
    """An FSDP model with its Adam goes on with another number of shards, and as a single plain one."""
    checkpoints = Checkpoints.at(folder / "fsdp")
    reader = Reader(checkpoints, checkpoints.check("step-00000005-attempt-001"))
    wanted = trained(5, shard=False)
    for found in (trained(1, shard=True), trained(1, shard=False)):
        reader.fill(found)
        for key, value in found.items():
            full = value.full_tensor() if isinstance(value, DTensor) else value
            torch.testing.assert_close(full, wanted[key])


def reshard(folder: Path) -> None:
    for world in (1, 2, 3, 4):
        together(world, folder, lambda rank, world=world: save_all(rank, world, folder))
    together(3, folder, lambda rank: train_and_save(rank, 3, folder))
    for world in (1, 2, 3, 4):
        together(world, folder, lambda rank, world=world: load_all(rank, world, folder))
    together(2, folder, lambda rank: load_trained(rank, 2, folder))
    together(3, folder, lambda rank: fall_back(rank, 3, folder))


# --- killed writers


def write_for_ever(folder: Path) -> None:
    checkpoints = Checkpoints.at(folder)
    committer = Committer(checkpoints, keep=2)
    saver = Saver(checkpoints.store, committer.add)
    attempt = checkpoints.next_attempt()
    found = restore(
        checkpoints, lambda contents: {key: torch.zeros_like(like, device="cpu") for key, like in contents.items()}
    )
    checkpoints.prune(2, idle=True)
    first = found[0].step if found else 0
    for step in range(first + 1, first + 1000):
        saver.begin(
            {f"x{number}": torch.full((200_000,), step) for number in range(4)},
            step=step,
            attempt=attempt,
            layout=Layout(),
        )
        saver.wait()


def await_step(folder: Path, step: int) -> None:
    deadline_s = time.monotonic() + 60
    while not any(meta.step >= step for meta in Checkpoints.at(folder).whole(quiet=True)):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def kill(folder: Path) -> None:
    """Each writer goes on where the killed ones stopped, and is killed in turn."""
    random.seed(0)
    reached = 0
    for _ in range(12):
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            write_for_ever(folder)
            os._exit(0)
        await_step(folder, reached + 1)
        time.sleep(random.uniform(0, 0.1))  # any moment will do
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        checkpoints = Checkpoints.at(folder)
        for meta in checkpoints.whole(quiet=True):
            checkpoints.verify(meta.name)
        newest = checkpoints.newest()
        assert newest is not None
        assert newest.step > reached  # what was committed is not lost
        reached = newest.step
        assert len(checkpoints.names()) <= 3, checkpoints.names()  # two kept, and those of killed writers


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"reshard": reshard, "kill": kill}[sys.argv[1]](Path(sys.argv[2]))
