"""Shards in the memory of peers, so that one lost node needs no storage: what each holds, and how it comes back.

    every k steps:  own part -> host buffer -> partner on another node (and somebody else's part comes in)
    after a loss:   supplies of all -> `membership.agree`: the newest step that is whole -> refill: parts to new owners

With several replicas on several nodes every part is there more than once anyway, and nothing is copied (`exposed`).
Two buffers take turns: a loss in the middle of an exchange leaves the copies of the one before it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

BUDGET = 0.01  # of the time may go into copies


# --- decisions


def partners(hosts: Sequence[str]) -> tuple[int | None, ...]:
    """For each rank, who holds a copy of its part: on another host where there is one, each for one other if possible.

    Ranks sorted by host are shifted by the size of the largest host: nobody meets its own host, unless that host has
    more than half of them. Then its surplus goes round among the others.
    """
    if len(hosts) < 2:
        return (None,) * len(hosts)
    order = sorted(range(len(hosts)), key=lambda rank: (hosts[rank], rank))
    shift = max(list(hosts).count(host) for host in set(hosts)) % len(hosts) or 1
    found: dict[int, int] = {}
    for place, rank in enumerate(order):
        choice = order[(place + shift) % len(order)]
        others = [other for other in order if hosts[other] != hosts[rank]]
        found[rank] = choice if hosts[choice] != hosts[rank] or not others else others[place % len(others)]
    return tuple(found[rank] for rank in range(len(hosts)))


def exposed(coordinates: Sequence[int], hosts: Sequence[str]) -> bool:
    """Whether losing one host would lose a part of the model: only then copies are worth anything."""
    parts = set(coordinates)
    left = ({c for c, host in zip(coordinates, hosts, strict=True) if host != lost} for lost in set(hosts))
    return any(remaining != parts for remaining in left)


def every_steps(cost_s: float, step_s: float, loss_per_s: float | None = None, budget: float = BUDGET) -> int:
    """k: a copy after every k steps.

    Copies every T seconds cost c/T of the time, and a loss repeats T/2 on average, so the waste c/T + h T/2 is least at
    T = sqrt(2 c / h) (Young 1974); but never more than the budget: T >= c / budget.
    """
    least_s = cost_s / budget
    best_s = math.sqrt(2.0 * cost_s / loss_per_s) if loss_per_s else 0.0
    return max(1, math.ceil(max(least_s, best_s) / max(step_s, 1e-9)))


class Holding(NamedTuple):
    """One part of the model's state at one step. Parts of another number of shards are other parts."""

    coordinate: int
    of: int  # so many parts that make one copy of the model
    step: int


# --- copies


@dataclass(slots=True)
class Snapshot:
    """One part of the state at one step, in a host buffer that is used again."""

    holding: Holding | None = None  # None: nothing in it
    index: list[tuple[str, str, tuple[int, ...], int]] = field(default_factory=list)  # name, dtype, shape, start
    objects: dict[str, Any] = field(default_factory=dict)
    buffer: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def take(self, holding: Holding, state: Mapping[str, Any]) -> None:
        """Copy a worker's `named_state.local`."""
        self.holding = None
        self.index, end_bytes = [], 0
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        for name, value in tensors.items():
            self.index.append((name, str(value.dtype).removeprefix("torch."), tuple(value.shape), end_bytes))
            end_bytes += -(-value.numel() * value.element_size() // 16) * 16
        self.reserve(end_bytes)
        for name, view in self.tensors().items():
            view.copy_(tensors[name])
        self.objects = {name: value for name, value in state.items() if name not in tensors}
        self.holding = holding

    def reserve(self, size_bytes: int) -> None:
        if self.buffer.numel() != size_bytes:
            self.buffer = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Views into the buffer."""
        found = {}
        for name, kind, shape, start in self.index:
            dtype = getattr(torch, kind)
            end = start + math.prod(shape) * dtype.itemsize
            found[name] = self.buffer[start:end].view(dtype).view(shape)
        return found

    def state(self) -> dict[str, Any]:
        return {**self.tensors(), **self.objects}


class PeerMemory:
    """This worker's snapshots: two of its own part, and two for each worker that it is the partner of."""

    def __init__(self) -> None:
        self._own = [Snapshot(), Snapshot()]
        self._others: list[list[Snapshot]] = []

    def exchange(self, state: Mapping[str, Any], holding: Holding, to: Sequence[int | None], rank: int) -> None:
        """Copy this worker's part, send it to its partner, take in others'. All members call it at the same step, on
        the present group."""
        mine = _older(self._own)
        mine.take(holding, state)
        partner = to[rank]
        works = [] if partner is None else send(mine, partner)
        sources = [other for other, its_partner in enumerate(to) if its_partner == rank]
        while len(self._others) < len(sources):
            self._others.append([Snapshot(), Snapshot()])
        for source, pair in zip(sources, self._others, strict=False):
            receive(_older(pair), source)
        for work, _ in works:
            work.wait()

    def supplies(self, live: Holding | None) -> list[Holding]:
        """What this worker can give: what it trains with, its snapshots, its partners'."""
        kept = [each.holding for each in self._snapshots() if each.holding]
        return ([live] if live else []) + kept

    def find(self, holding: Holding) -> dict[str, Any] | None:
        return next((each.state() for each in self._snapshots() if each.holding == holding), None)

    def _snapshots(self) -> list[Snapshot]:
        return [*self._own, *(each for pair in self._others for each in pair)]


def _older(pair: list[Snapshot]) -> Snapshot:
    return min(pair, key=lambda each: each.holding.step if each.holding else -1)


def send(snapshot: Snapshot, to: int) -> list[tuple[Any, Any]]:
    """Works, with the tensors that must live until they are done."""
    packed = pack((snapshot.holding, snapshot.index, snapshot.objects))
    sizes = torch.tensor([packed.numel(), snapshot.buffer.numel()])
    return [(dist.isend(each, to), each) for each in (sizes, packed, snapshot.buffer)]


def receive(snapshot: Snapshot, source: int) -> Snapshot:
    snapshot.holding = None
    sizes = torch.zeros(2, dtype=torch.int64)
    dist.recv(sizes, source)
    packed = torch.empty(int(sizes[0]), dtype=torch.uint8)
    dist.recv(packed, source)
    holding, index, objects = unpack(packed)
    snapshot.reserve(int(sizes[1]))
    dist.recv(snapshot.buffer, source)
    snapshot.index, snapshot.objects, snapshot.holding = index, objects, holding
    return snapshot


def pack(value: Any) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> Any:
    # It comes from a member of the same job; schedulers' states are not plain tensors.
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=False)
