"""Leave a broken process group at once, and stand in the next one: what happens inside a worker when the group changes.

    a peer is lost -> the collective fails, or `Group.abort` makes it fail -> meet (the coordinator's roster)
        -> Group.build over a store of its own -> Replica.attach -> state (`transfer.py`) -> the same step again

gloo has no working abort: a survivor stays blocked in the ring until the time-out. So the connected sockets of the
group are shut down, and of nothing else: they are known by the listening ports of its members (a Ray worker has gRPC
sockets, too). NCCL has an abort.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tradewind.jobs.escape import Escape, average, leave_behind
from tradewind.jobs.layout import Layout
from tradewind.jobs.losses import is_communication
from tradewind.jobs.membership import Roster
from tradewind.jobs.mesh import make_mesh

REBUILD_TIMEOUT_S = 30.0  # to stand in a new group; members that are lost meanwhile are told of, and break it off
COLLECTIVE_TIMEOUT_S = 300.0
EXIT_PATIENCE_S = 2.0  # for gloo to end its sums
# Gradients of at most so much go round in one piece: to begin an all-reduce takes longer than they take on their way.
# By default torch begins with a bucket of 1 MiB, so that large models start early.
ONE_BUCKET_MIB = 4

Address = tuple[str, int]


def open_store(host: str) -> Any:
    """A store that other members can reach: each brings one along, that of rank 0 is used."""
    return dist.TCPStore(
        host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=REBUILD_TIMEOUT_S), use_libuv=True
    )


@dataclass(slots=True)
class Group:
    """The process group of one epoch. `abort` may be called from any thread, the rest from the training thread."""

    roster: Roster
    rank: int
    device: Any
    layout: Layout = field(default_factory=Layout)
    store: Any = None
    mesh: Any = None  # of a sharded layout
    ports: frozenset[int] = frozenset()  # on which members listen
    aborted: bool = field(default=False)
    escape: Escape = field(default_factory=Escape)

    @property
    def world(self) -> int:
        return len(self.roster.members)

    @property
    def backend(self) -> str:
        """State goes from memory to memory also where gradients go from GPU to GPU."""
        return "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"

    def build(self, own_store: Any) -> None:
        """Connect to the others. Raises what torch raises when one of them is lost meanwhile."""
        if self.world == 1:
            self._mesh()
            return
        self.store = own_store if self.rank == 0 else self._reach_store()
        before = set(_listening())
        dist.init_process_group(
            self.backend,
            store=self.store,
            rank=self.rank,
            world_size=self.world,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
        self._mesh()
        self.ports = self._publish(set(_listening()) - before)
        atexit.register(self._leave_at_exit)

    def _mesh(self) -> None:
        if not self.layout.is_ddp:
            self.mesh = make_mesh(self.layout, self.device, self.roster.epoch)

    def abort(self) -> None:
        """Every collective of this group fails from now on, here and at its other members."""
        self.aborted = True
        if self.device.type == "cuda" and dist.is_initialized():
            dist.distributed_c10d._abort_process_group()
        shut_down(self.ports | {self.roster.port})
        self.escape.open_soon()

    def close(self) -> None:
        """Free everything. The others see closed connections."""
        atexit.unregister(self._leave_at_exit)
        if dist.is_initialized():
            if stuck := self.escape.stuck():
                leave_behind(dist.group.WORLD, stuck)
            with contextlib.suppress(RuntimeError):  # of operations that are under way: the group is given up
                dist.destroy_process_group()
        self.store = None

    def _leave_at_exit(self) -> None:
        """Who ends in the midst of a sum, by an error or `sys.exit`: gloo's threads must not call an interpreter that
        is being taken down, which would abort the process."""
        if self.escape.is_under_way:
            self.abort()
            self.escape.wait(EXIT_PATIENCE_S)

    def _reach_store(self) -> Any:
        wait = timedelta(seconds=REBUILD_TIMEOUT_S)
        return dist.TCPStore(self.roster.host, self.roster.port, is_master=False, wait_for_workers=False, timeout=wait)

    def _publish(self, mine: set[int]) -> frozenset[int]:
        self.store.set(f"ports/{self.rank}", ",".join(map(str, mine)))
        told = [self.store.get(f"ports/{rank}").decode() for rank in range(self.world)]
        return frozenset(int(port) for text in told for port in text.split(",") if port)


@dataclass(slots=True)
class _Link:
    """What joins a model to the group of the moment. A plain object: a Module takes ten times as long to set a value,
    and would count what is in it among the parts of the model."""

    precision: str | None
    sums: bool = True  # whether the next backward pass completes a step, and goes round
    laden: bool = False  # whether the forward pass of this batch went through DDP, so that its backward carries freight
    group: Group | None = None
    wrapped: Any = None
    parameters: Sequence[torch.Tensor] = ()
    trained: Sequence[bool] = ()  # which of them DDP knows of
    freight: Any = None
    cargo: Any = None  # what becomes the gradient of the freight
    summed: set[int] | None = None  # by our hook in this step: where the gradients lie; None: DDP sums by itself
    shelf: Any = None  # the memory of the cargo, if it is not on a GPU


class Replica(torch.nn.Module):  # type: ignore[misc]
    """A model whose gradients are averaged over the group, whichever that is now. Users keep this one reference."""

    def __init__(self, module: torch.nn.Module, precision: str | None = None) -> None:
        super().__init__()
        self.module = module
        self.link = _Link(precision)

    def attach(self, group: Group, freight: int) -> None:
        """Average over this group from now on, and carry so many numbers beside. State is handed over by `transfer.py`,
        so DDP need not send it again; buffers are kept equal by `step.py`."""
        link = self.link
        link.group, link.wrapped, link.parameters = group, None, list(self.module.parameters())
        link.trained = [parameter.requires_grad for parameter in link.parameters]
        if group.world == 1 or not any(link.trained):
            return
        laden = _Laden(self.module, freight)
        link.freight, link.cargo = laden.freight, torch.zeros_like(laden.freight, requires_grad=False)
        link.shelf = link.cargo.numpy() if link.cargo.device.type == "cpu" else None
        size_bytes = sum(each.numel() * each.element_size() for each in laden.parameters() if each.requires_grad)
        # Gradients stay in the buckets in which they were summed: nothing is copied back.
        link.wrapped = torch.nn.parallel.DistributedDataParallel(
            laden,
            init_sync=False,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=ONE_BUCKET_MIB if size_bytes <= ONE_BUCKET_MIB * 2**20 else None,
        )
        link.summed = set() if group.device.type == "cpu" else None
        if link.summed is not None:
            # torch wants to see the classes in a hook's annotations, not their names
            link.wrapped.register_comm_hook(link.summed, lambda summed, bucket: average(group, summed, bucket))

    def backward(
        self,
        loss: torch.Tensor,
        weight: float,
        values: Sequence[float] | torch.Tensor,
        retain_graph: bool,
        beside: Sequence[Replica] = (),
    ) -> torch.Tensor:
        """As `(loss * weight).backward()`, with `values` among the gradients. Returns their means over the group, which
        stay where they are until the next call. A step of 15 ms notices each operation that can be left out here.
        `beside`: other models that took part; DDP waits for the gradient of their freight, too."""
        link = self.link
        if link.shelf is None or isinstance(values, torch.Tensor):
            link.cargo.copy_(torch.as_tensor(values))
        else:
            link.shelf[:] = values
        links = [link, *(other.link for other in beside)]
        for each in links:
            if each.summed:
                each.summed.clear()
        gradients = (torch.full_like(loss, weight), *(each.cargo for each in links))
        torch.autograd.backward((loss, *(each.freight for each in links)), gradients, retain_graph=retain_graph)
        found: torch.Tensor = link.freight.grad
        if link.summed is not None and link.group and found.untyped_storage().data_ptr() not in link.summed:
            found = found / link.group.world  # what it brought and nobody summed: as DDP itself leaves it
        for each in links:
            each.freight.grad = None
        return found

    def forward(self, *inputs: Any, **named: Any) -> Any:
        link = self.link
        if link.precision is None:
            return self._forward(link, inputs, named)
        with autocast(link.precision, link.group.device if link.group else torch.device("cpu")):
            return widen(self._forward(link, inputs, named))

    def _forward(self, link: _Link, inputs: Any, named: Any) -> Any:
        if link.wrapped is None or not link.sums or link.group is None or link.group.aborted:
            return self.module(*inputs, **named)
        if link.trained != [parameter.requires_grad for parameter in link.parameters]:  # frozen, or not any more
            self.attach(link.group, link.freight.numel())
            return self._forward(link, inputs, named)
        try:
            found = link.wrapped(*inputs, **named)
            link.laden = link.laden or torch.is_grad_enabled()  # a validation in between has no backward pass
            return found
        except RuntimeError as error:  # the order of buckets is exchanged here
            if not is_communication(error):
                raise
            link.group.abort()
            return self.module(*inputs, **named)


class _Laden(torch.nn.Module):  # type: ignore[misc]
    """A model and, beside it, a parameter whose gradient is whatever is to be summed together with the gradients of the
    model. In a bucket with them it costs nothing; an all-reduce of its own took a tenth of a step of 15 ms."""

    def __init__(self, module: torch.nn.Module, size: int) -> None:
        super().__init__()
        self.module = module
        like = next(parameter for parameter in module.parameters() if parameter.requires_grad)
        dtype = like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
        self.freight = torch.nn.Parameter(torch.zeros(size, dtype=dtype, device=like.device))

    def __call__(self, *inputs: Any, **named: Any) -> Any:  # nobody hangs a hook on this one
        return self.module(*inputs, **named)


def autocast(precision: str | None, device: torch.device) -> Any:
    """Forward passes in bfloat16 where that is safe, if it was asked for."""
    if precision is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def widen(found: Any) -> Any:
    """Outputs in single precision again: losses are computed outside."""
    if isinstance(found, torch.Tensor):
        return found.float() if found.dtype == torch.bfloat16 else found
    if isinstance(found, dict):
        return type(found)((key, widen(value)) for key, value in found.items())
    if isinstance(found, tuple | list) and not hasattr(found, "_fields"):
        return type(found)(widen(value) for value in found)
    return found


def agree(module: torch.nn.Module, group: Group) -> None:
    """Start from rank 0's parameters, as DDP does: others may have drawn different ones."""
    if group.world > 1:
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                whole = tensor.contiguous()  # itself, but for channels_last and the like
                dist.broadcast(whole, src=0)
                if whole is not tensor:
                    tensor.copy_(whole)


def void_gradients(optimizer: Any) -> None:
    """Without gradients a step of the optimizer changes nothing, its momenta and counters neither."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def shut_down(ports: frozenset[int] | set[int]) -> int:
    """Shut down this process's connected sockets that have one of `ports` at either end. Returns how many."""
    closed = 0
    for _, found in _sockets():
        with contextlib.suppress(OSError):  # not connected, or gone meanwhile
            if {found.getsockname()[1], found.getpeername()[1]} & ports:
                found.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed


def forget(ports: frozenset[int] | set[int]) -> None:
    """In a forked child: close its copies of sockets that have one of `ports` at either end, listening ones, too. The
    connections themselves go on; but they end with the parent, and not with the last of its children."""
    for number, found in _sockets():
        with contextlib.suppress(OSError):
            if found.getsockname()[1] in ports or found.getpeername()[1] in ports:
                os.close(number)


def _listening() -> Iterator[int]:
    for _, found in _sockets():
        with contextlib.suppress(OSError):
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield found.getsockname()[1]


def _sockets() -> Iterator[tuple[int, socket.socket]]:
    """This process's internet sockets, also those of libraries: number, and a copy, which is closed afterwards."""
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), found
