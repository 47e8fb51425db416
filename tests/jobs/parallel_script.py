"""Run by test_parallel.py: one worker of four, which trains every example in every layout, and more.

parallel_script.py RANK WORLD PORT FOLDER    meets the others at the store of the test; writes FOLDER/rank-RANK.json
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from tradewind.jobs import named_state, regroup
from tradewind.jobs.examples import cnn, gpt, rnn
from tradewind.jobs.layout import Layout
from tradewind.jobs.losses import is_communication
from tradewind.jobs.membership import NOTHING_YET, Arrival, agree
from tradewind.jobs.mesh import make_mesh
from tradewind.jobs.peer_memory import Holding, PeerMemory, partners
from tradewind.jobs.refill import Move, refill
from tradewind.jobs.sharded import ShardedModel

CPU = torch.device("cpu")
EPOCHS = itertools.count()
BATCH, STEPS, CLIP = 12, 3, 0.5
LAYOUTS = ("fsdp=2", "tp=2", "pp=2", "fsdp=all", "fsdp=2,tp=2", "pp=2,fsdp=2", "pp=2,tp=2")


class Case:
    """One example, in double precision, with data for any number of steps."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float64) -> None:
        make: Callable[[], Any] = {"cnn": cnn.Cnn, "rnn": rnn.Rnn, "gpt": gpt.Gpt}[name]
        torch.manual_seed(3)
        self.model = make().to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        data = cnn.dataset(96, 0, dtype) if name == "cnn" else {"rnn": rnn, "gpt": gpt}[name].dataset(96, 0)
        self.x, self.y = data.tensors
        self.loss_fn = gpt.loss_fn if name == "gpt" else nn.functional.cross_entropy

    def batch(self, step: int, of: int = 1, part: int = 0) -> tuple[Any, Any]:
        """One of `of` equal parts of the global batch."""
        start = step * BATCH % 96 + part * BATCH // of
        return self.x[start : start + BATCH // of], self.y[start : start + BATCH // of]


def alone(name: str, steps: int = STEPS) -> list[list[float]]:
    """(loss, norm of the gradients before clipping) of each step in one process, by plain torch."""
    case, told = Case(name), []
    for step in range(steps):
        x, y = case.batch(step)
        loss = case.loss_fn(case.model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(case.model.parameters(), CLIP)
        case.optimizer.step()
        case.optimizer.zero_grad()
        told.append([loss.item(), norm.item()])
    return told


class Worker:
    """A case, spread over the present group."""

    def __init__(self, name: str, layout: str, dtype: torch.dtype = torch.float64) -> None:
        self.case = Case(name, dtype)
        self.layout = Layout.parse(layout, Layout.parse(layout, 24).replica_size)
        self.model = ShardedModel(self.case.model, self.layout, CPU)
        self.optimizer = self.case.optimizer
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)
        self.model.adopt(self.optimizer)
        self.kept = {"0:Net": self.model, "1:AdamW": self.optimizer, "2:StepLR": self.scheduler}

    def attach(self) -> bool:
        return self.model.attach(make_mesh(self.layout, CPU, next(EPOCHS)))

    def step(self, step: int, accumulate: int = 1, bf16: bool = False) -> list[float]:
        world, rank = dist.get_world_size(), dist.get_rank()
        data_world, data_rank = self.layout.data_world(world), self.layout.data_rank(rank, world)
        parts = data_world * accumulate
        total = torch.zeros((), dtype=torch.float64)
        for index in range(accumulate):
            x, y = self.case.batch(step, parts, data_rank * accumulate + index)
            last = index == accumulate - 1
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = self.model.learn(x, y, self.case.loss_fn, 1 / parts, last)
            total += loss.double() / parts
            norm = self.model.clip(CLIP)
            if not last:
                assert all(parameter.grad is None for parameter in self.model.parameters())
            self.optimizer.step()
            self.optimizer.zero_grad()
        total /= self.layout.pp * self.layout.tp
        dist.all_reduce(total)
        return [total.item(), norm.item()]

    def full(self) -> dict[str, Any]:
        """The whole state on every worker of a group, for comparisons."""
        found = {}
        for name, value in named_state.flat(self.kept).items():
            found[name] = value.full_tensor() if hasattr(value, "full_tensor") else value
        return found


# --- what is tried; each function returns what the test looks at


def losses(layout: str, name: str) -> Any:
    worker = Worker(name, layout)
    worker.attach()
    return [worker.step(step) for step in range(STEPS)]


def accumulation(layout: str) -> Any:
    """Three batches for each step of the optimizer, which finds gradients only after the last one."""
    worker = Worker("gpt", layout)
    worker.attach()
    return [worker.step(step, accumulate=3) for step in range(2)]


def plain_loop() -> Any:
    """The user's own forward, and torch's own clipping, which knows sharded tensors."""
    worker, told = Worker("cnn", "fsdp=2"), []
    worker.attach()
    for step in range(STEPS):
        x, y = worker.case.batch(step, 4, dist.get_rank())
        loss = worker.case.loss_fn(worker.model(x), y)
        worker.model.backward(loss / 4)
        norm = nn.utils.clip_grad_norm_(worker.model.parameters(), CLIP)
        worker.optimizer.step()
        worker.optimizer.zero_grad()
        total = loss.detach() / 4
        dist.all_reduce(total)
        told.append([total.item(), norm.full_tensor().item()])
    return told


def optimizers() -> Any:
    """Other optimizers, moved to another mesh between two steps: parameters afterwards."""
    kinds: dict[str, Callable[[Any], Any]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
        "foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
        "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    }
    told = {}
    for kind, make in kinds.items():
        told[kind] = []
        for spread in (False, True):
            torch.manual_seed(1)
            model: Any = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
            names = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}]
            optimizer = make(names)
            x = torch.randn(8, 3, dtype=torch.float64)
            if spread:
                model = ShardedModel(model, Layout(pp=2, fsdp=2), CPU)
                model.adopt(optimizer)
            for _ in range(3):
                if spread:
                    model.attach(make_mesh(model.layout, CPU, next(EPOCHS)))
                    model.learn(x, x[:, :1], nn.functional.mse_loss, 0.5)
                else:
                    nn.functional.mse_loss(model(x), x[:, :1]).backward()
                optimizer.step()
                optimizer.zero_grad()
            total = sum(float(p.to_local().sum() if spread else p.sum()) for p in model.parameters())
            whole = torch.tensor(total, dtype=torch.float64)
            if spread:
                dist.all_reduce(whole)
            told[kind].append(whole.item())
    return told


def mixed_precision(layout: str) -> Any:
    worker = Worker("gpt", layout, torch.float32)
    worker.attach()
    told = [worker.step(0, bf16=True)[0] for _ in range(8)]
    kinds = {str(parameter.dtype) for parameter in worker.model.parameters()}
    return [told[0], told[-1], sorted(kinds)]


def uneven() -> Any:
    """Batches of other sizes, also such that cannot be cut into equal chunks: mean losses of a pipeline."""
    worker = Worker("gpt", "pp=2,fsdp=2")
    worker.attach()
    sizes, told = (12, 7, 5, 12, 1), []
    for size in sizes:
        x, y = worker.case.x[:size], worker.case.y[:size]
        expected = worker_loss(x, y)
        told.append([worker.model.learn(x, y, worker.case.loss_fn).item(), expected])
        worker.optimizer.zero_grad()
    return told


def worker_loss(x: Any, y: Any) -> float:
    case = Case("gpt")
    with torch.no_grad():
        loss: float = case.loss_fn(case.model(x), y).item()
    return loss


def change_of_mesh(layout: str, rank: int, store: Any) -> Any:
    """Two replicas, one, two again: who comes back is given its part by who has it."""
    worker, told = Worker("gpt", layout), []
    worker.attach()
    told += [worker.step(step) for step in (0, 1)]
    dist.destroy_process_group()
    if rank < 2:
        join(store, f"{layout}-small", rank, 2)
        assert worker.attach()
        told += [worker.step(step) for step in (2, 3)]
        dist.destroy_process_group()
    store.add(f"{layout}-done", 1)
    store.wait([f"{layout}-done"])
    held = {0: named_state.local(worker.kept), 1: named_state.local(worker.kept)} if rank < 2 else {}
    join(store, f"{layout}-large", rank, 4)
    worker.attach()
    refill(worker.kept, Move(worker.layout, holders=(0, 1), receivers=(2, 3)), held)
    return told + [worker.step(step) for step in (4, 5)]


def resharding(rank: int, store: Any) -> Any:
    """One copy over two workers, then over four: every part is cut anew."""
    worker, told = Worker("cnn", "fsdp=all"), []
    dist.destroy_process_group()
    if rank < 2:
        join(store, "two", rank, 2)
        worker.attach()
        told += [worker.step(step) for step in (0, 1)]
        dist.destroy_process_group()
    held = {rank: named_state.local(worker.kept)} if rank < 2 else {}
    join(store, "four", rank, 4)
    assert not (worker.attach() and rank == 1)
    refill(worker.kept, Move(worker.layout, holders=(0, 1), receivers=(0, 1, 2, 3)), held)
    return told + [worker.step(step) for step in (2, 3)]


def checkpoints(folder: Path) -> Any:
    """Saved in one layout, read in another, saved, and read without any: losses go on."""
    told, before = [], None
    for number, layout in enumerate(("fsdp=2,tp=2", "pp=2,fsdp=2", "tp=2")):
        worker = Worker("gpt", layout)
        worker.attach()
        if before:
            load(worker.kept, before)
        told.append(worker.step(number))
        before = folder / f"checkpoint-{number}"
        dcp.save(named_state.flat(worker.kept), checkpoint_id=before)
    case = Case("gpt")
    kept = {
        "0:Net": case.model,
        "1:AdamW": case.optimizer,
        "2:StepLR": torch.optim.lr_scheduler.StepLR(case.optimizer, 1),
    }
    load(kept, before, no_dist=True)
    x, y = case.batch(3)
    return [*told, [case.loss_fn(case.model(x), y).item(), None]], sorted(named_state.flat(kept))


def load(kept: Any, path: Any, no_dist: bool = False) -> None:
    found = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    tensors = {name: each for name, each in found.items() if hasattr(each, "size")}
    named_state.allocate(kept, {name: (tuple(each.size), each.properties.dtype) for name, each in tensors.items()})
    state = named_state.flat(kept)
    dcp.load(state, checkpoint_id=path, no_dist=no_dist)
    named_state.put(kept, state)


# --- losses: members are killed, the others go on from what is in their memory


def arrivals(supplies: list[list[Holding]], count: int) -> list[Arrival]:
    """What members hold of a state that is cut into `count` parts, as they would tell the coordinator."""
    held = [tuple((each.coordinate, each.step) for each in given if each.of == count) for given in supplies]
    return [Arrival(str(at), 1, NOTHING_YET, "", 0, copies=copies) for at, copies in enumerate(held)]


class Elastic:
    """A worker with copies of its part at a peer. Members are names; ranks follow from their order."""

    def __init__(self, me: str, store: Any, layout: str, every: int) -> None:
        self.me, self.store, self.every = me, store, every
        self.worker = Worker("cnn", layout)
        self.memory = PeerMemory()
        self.ports: set[int] = set()
        self.done = 0
        self.told: list[Any] = []

    def enter(self, name: str, members: tuple[str, ...], knows: bool = True) -> None:
        """Stand in a new group, and take over the newest state that its members have."""
        live = self.holding() if knows and self.worker.model.parts else None
        parts = {live: named_state.local(self.worker.kept)} if live else {}
        self.name, self.members = name, members
        self.rank, self.world = members.index(self.me), len(members)
        before = listening()
        join(self.store, name, self.rank, self.world)
        self.worker.attach()
        self.ports = listening() - before
        told: list[Any] = [None] * self.world
        dist.all_gather_object(told, (self.me, self.memory.supplies(live), sorted(self.ports)))
        self.ports = {port for _, _, ports in told for port in ports}
        supplies = [each for _, each, _ in told]
        counts = {holding.of for each in supplies for holding in each}
        found = [
            (answer[0], count, answer[1]) for count in counts if (answer := agree(arrivals(supplies, count), count))
        ]
        if found:
            self.take_over(*max(found), members, parts)

    def take_over(
        self, step: int, count: int, holders: tuple[int, ...], members: tuple[str, ...], parts: dict[Holding, Any]
    ) -> None:
        self.told.append({"lost": self.done - step, "holders": [members[holder] for holder in holders]})
        held = {}
        for coordinate, holder in enumerate(holders):
            if holder == self.rank:
                part = Holding(coordinate, count, step)
                held[coordinate] = parts.get(part) or self.memory.find(part)
        refill(self.worker.kept, Move(self.worker.layout, holders, range(self.world)), held)
        self.done = step

    def holding(self) -> Holding:
        count = self.world if self.worker.layout.whole else self.worker.layout.replica_size
        return Holding(self.rank % count, count, self.done)

    def train(self, until: int, dies_at: int = -1) -> None:
        while self.done < until:
            self.told.append(self.worker.step(self.done))
            self.done += 1
            if self.done % self.every == 0:
                # Each process stands for a node of its own.
                to = partners([str(rank) for rank in range(self.world)])
                self.memory.exchange(named_state.local(self.worker.kept), self.holding(), to, self.rank)
            self.store.set(f"{self.name}/{self.me}/{self.done}", "done")
            if self.done == dies_at:  # all have finished this step: it is the next one that breaks
                self.store.wait([f"{self.name}/{member}/{self.done}" for member in self.members])
                os.kill(os.getpid(), signal.SIGKILL)

    def survive(self) -> None:
        """Train until a peer is lost."""
        try:
            self.train(until=10**6)
        except RuntimeError as error:
            if not is_communication(error):
                raise
            regroup.shut_down(self.ports)
            dist.destroy_process_group()


def losses_of_nodes(rank: int, store: Any, folder: Path) -> None:
    """b is killed in a group of two, and c joins in its place. Then d is killed in a group of three, and two go on.
    Then c is killed in a pipeline: a must notice, not wait."""
    me = "abcd"[rank]
    told: dict[str, Any] = {}
    if me in "abc":
        pair = Elastic(me, store, "tp=2", every=2)
        if me in "ab":
            pair.enter("pair", ("a", "b"))
        if me == "b":
            pair.train(until=6, dies_at=5)
        if me == "a":
            pair.survive()
            out = pair.worker.model(pair.worker.case.x[:3])
            told["stand-in"] = [pair.worker.model.broken, list(out.shape), float(out.detach().abs().sum())]
        pair.enter("pair again", ("a", "c"), knows=me == "a")
        pair.train(until=6)
        told["joined"] = pair.told
        dist.destroy_process_group()
    three = Elastic(me, store, "fsdp=all", every=2)
    three.enter("three", ("a", "c", "d"))
    if me == "d":
        three.train(until=6, dies_at=5)
    three.survive()
    three.enter("two are left", ("a", "c"))
    three.train(until=6)
    told["cut anew"] = three.told
    dist.destroy_process_group()
    line = Elastic(me, store, "pp=2", every=100)
    line.enter("line", ("a", "c"))
    (folder / f"losses-{me}.json").write_text(json.dumps(told))
    if me == "c":
        line.train(until=6, dies_at=2)
    line.survive()
    (folder / "noticed").write_text(str(line.done))


def listening() -> set[int]:
    found = psutil.Process().net_connections(kind="tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}


def join(store: Any, name: str, rank: int, world: int) -> None:
    """Each group has a name of its own: addresses under an old one would be those of processes that are gone."""
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )


def main(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    join(store, "first", rank, 4)
    told: dict[str, Any] = {
        f"{layout} {name}": losses(layout, name) for layout in LAYOUTS for name in ("cnn", "rnn", "gpt")
    }
    for layout in ("fsdp=2,tp=2", "pp=2,fsdp=2"):
        told[f"accumulation {layout}"] = accumulation(layout)
        told[f"bf16 {layout}"] = mixed_precision(layout)
    told |= {"plain loop": plain_loop(), "optimizers": optimizers(), "uneven": uneven()}
    told["checkpoints"], told["names"] = checkpoints(folder)
    for layout in ("fsdp=2", "tp=2", "pp=2"):
        told[f"change {layout}"] = change_of_mesh(layout, rank, store)
    told["resharding"] = resharding(rank, store)
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
    losses_of_nodes(rank, store, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
