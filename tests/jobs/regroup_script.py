"""Run by test_regroup.py: one member of a group that trains, loses one of its own, and goes on.

regroup_script.py MEMBER FOLDER [joins]    meets the others through files in FOLDER; the test plays the coordinator
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tradewind.jobs import regroup
from tradewind.jobs.layout import Layout
from tradewind.jobs.losses import is_communication
from tradewind.jobs.membership import Roster
from tradewind.jobs.transfer import Holdings

SAMPLES = 60


def make() -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(3)
    x = torch.randn(SAMPLES, 6, dtype=torch.float64)
    y = x.sum(1, keepdim=True).tanh()
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(torch.float64)
    return x, y, model, torch.optim.Adam(model.parameters(), lr=0.01)


def write(path: Path, value: Any) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(value))
    aside.rename(path)


def wait_for(path: Path) -> Any:
    end = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(path.name)
        time.sleep(0.002)
    return json.loads(path.read_text())


class Member:
    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.epoch, self.done = 0, 0
        self.group: Any = None
        torch.set_num_threads(1)
        self.x, self.y, model, self.optimizer = make()
        self.model = regroup.Replica(model)
        self.kept = {"model": model, "optimizer": self.optimizer}
        self.holds = Holdings(Layout(), 0)

    def meet(self, step: int) -> None:
        self.holds.step = step
        self.holds.remember(self.kept, step)
        store = regroup.open_store("127.0.0.1")
        write(self.folder / f"arrive-{self.name}-{self.epoch}", {"step": step, "port": store.port})
        found = wait_for(self.folder / f"roster-{self.name}-{self.epoch}")
        roster = Roster(**{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})
        self.group = regroup.Group(roster, roster.members.index(self.name), torch.device("cpu"))
        self.group.build(store)
        self.epoch, self.done = roster.epoch, roster.step
        self.model.attach(self.group, freight=1)
        self.holds.take_over(self.group, self.kept, None, lambda: 0)
        threading.Thread(target=self.watch, args=(self.group,), daemon=True).start()

    def watch(self, group: Any) -> None:
        """The coordinator's word that somebody is lost."""
        path = self.folder / f"hard-{group.roster.epoch}"
        while not path.exists():
            time.sleep(0.002)
        group.abort()

    def train(self) -> None:
        while self.done < float((self.folder / "steps").read_text()):
            if not self.step():
                seen_s = time.time()
                self.group.abort()
                self.group.close()
                self.meet(self.done)
                self.tell(again_s=time.time() - seen_s)
        total = sum(float(parameter.detach().sum()) for parameter in self.model.parameters())
        self.tell(total=total, connections=len(OTHER) if all(still_open(each) for each in OTHER) else -1)

    def step(self) -> bool:
        rank, world = self.group.rank, self.group.world
        mine = slice(SAMPLES * rank // world, SAMPLES * (rank + 1) // world)
        weight = (mine.stop - mine.start) * world / SAMPLES
        self.model.link.laden = False
        loss = torch.nn.functional.mse_loss(self.model(self.x[mine]), self.y[mine])
        try:
            if self.model.link.laden:
                self.model.backward(loss, weight, [1.0], retain_graph=False)
            else:
                (loss * weight).backward()
        except RuntimeError as error:
            if not is_communication(error):
                raise
            self.group.abort()
        broken = self.group.aborted
        if broken:
            regroup.void_gradients(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += not broken
        self.tell()
        time.sleep(0.01)
        return not broken

    def tell(self, **more: Any) -> None:
        line = {"member": self.name, "epoch": self.epoch, "step": self.done, "pid": os.getpid(), **more}
        with (self.folder / f"told-{self.name}").open("a") as file:
            file.write(json.dumps(line) + "\n")


def still_open(pair: tuple[socket.socket, socket.socket]) -> bool:
    pair[0].sendall(b"x")
    return pair[1].recv(1) == b"x"


def connection() -> tuple[socket.socket, socket.socket]:
    """A connection that is none of the group's business, as Ray's are."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()), server.accept()[0]


OTHER = [connection() for _ in range(2)]


if __name__ == "__main__":
    member = Member(sys.argv[1], Path(sys.argv[2]))
    member.meet(0 if len(sys.argv) < 4 else -1)
    member.train()
    if dist.is_initialized():
        dist.destroy_process_group()
