"""A model that is spread over the workers of its group, whichever that is now: `ShardedModel`.

    full model of the user -> skeleton without memory
    attach(mesh): skeleton -> stage (pp) -> slices (tp) -> shards and replicas (fsdp) -> this worker's part of the state

Parameters of torch's parallel modules are bound to the process groups of their mesh. So after each change of the group
the parallel module is built anew, and the state that this worker has goes into it; optimizers follow. Users keep one
reference. Gradients are summed, not averaged, over replicas and shards: who calls `backward` weighs the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils._pytree import tree_leaves, tree_map_only

from tradewind.errors import JobError
from tradewind.jobs import layout as boxes
from tradewind.jobs import named_state, regroup
from tradewind.jobs.layout import Box, Coordinate, Layout
from tradewind.jobs.losses import PeerLost, is_communication
from tradewind.jobs.mesh import Mesh
from tradewind.jobs.pipeline import LossFn, Pipeline, blocks, split

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
)
CHUNKS_PER_STAGE = (
    2  # of a batch in a pipeline: half of the time is spent filling and emptying it with 1, a third with 2
)


@dataclass(frozen=True, slots=True)
class Part:
    """How a parameter of the full model is cut."""

    shape: tuple[int, ...]
    tp_dim: int | None

    def box(self, at: Coordinate, tp: int, fsdp: int) -> Box:
        return boxes.box(self.shape, self.tp_dim, at, tp, fsdp)


class ShardedModel(torch.nn.Module):  # type: ignore[misc]
    """The user's model in any layout but ddp. `parallel` is what computes now; nothing is registered as a submodule."""

    def __init__(
        self,
        module: torch.nn.Module,
        layout: Layout,
        device: torch.device,
        tp_plan: Mapping[str, Any] | None = None,
        chunks: int | None = None,
        precision: str | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.device, self.broken = layout, device, False
        self._precision = precision
        self.parts: dict[str, Part] = {}  # of this worker's stage
        self.at, self.mesh_shape = Coordinate(), (1, 1, 1, 1)
        self._skeleton = [skeleton(module)]  # in lists: not to be found by Module's own bookkeeping
        self._parallel: list[Any] = [module]
        self._plan = _plan(module, layout, tp_plan)
        self._chunks = chunks or CHUNKS_PER_STAGE * layout.pp
        self._origin = dict(module.named_parameters())  # kept for their identity, which optimizers were made with
        self._first_buffers = dict(module.named_buffers())  # constants, such as masks, of stages that may come here
        self._named: dict[str, Any] = dict(self._origin)
        self._leaves: dict[str, Any] = {}  # the same, of each only this worker's part, as a plain tensor
        self._boxes = {name: _whole(parameter.shape) for name, parameter in self._origin.items()}
        self._optimizers: list[Any] = []
        self._mesh: list[Mesh] = []
        self._pipeline: Pipeline | None = None
        self._complete = False  # the gradients of a step are

    # --- the group

    def adopt(self, optimizer: Any) -> None:
        """An optimizer that was made from the full model's parameters follows them from now on."""
        if optimizer.state:
            raise JobError("an optimizer has taken steps already", "prepare it before its first step")
        named_state.name_groups(optimizer, {id(parameter): name for name, parameter in self._origin.items()})
        self._optimizers.append(optimizer)
        if self._mesh:
            named_state.rebind(optimizer, self._targets(optimizer), lambda _, value: value)

    def has_adopted(self, item: Any) -> bool:
        return any(each is item for each in self._optimizers)

    def attach(self, mesh: Mesh) -> bool:
        """Be spread over this mesh from now on. Whether the state was carried over: if not (this worker has another
        part of the model now), parameters are undefined until `named_state.put` or `refill` gives them."""
        built, parts = self._build(mesh)
        named = dict(built.named_parameters())
        at, shape = _coordinate(self.layout), self.layout.mesh_shape(dist.get_world_size())
        new_boxes = {name: part.box(at, tp=shape[3], fsdp=shape[2]) for name, part in parts.items()}
        old_boxes, old = self._boxes, self._named
        carried = all(name in old_boxes and _inside(each, old_boxes[name]) for name, each in new_boxes.items())

        def carry(name: str, value: torch.Tensor) -> torch.Tensor | None:
            if not carried:
                return None
            if old_boxes[name] == new_boxes[name]:
                return value
            return value[boxes.within(new_boxes[name], old_boxes[name])].contiguous()

        with torch.no_grad():
            for name, parameter in named.items() if carried else ():
                part = carry(name, named_state.to_local(old[name].detach()))
                named_state.to_local(parameter).copy_(part)
            self._carry_buffers(built)
        for parameter in self._origin.values() if not self._mesh else ():
            parameter.data = parameter.data.new_empty(0)  # the full model has been cut up
        self._parallel, self._named, self._boxes, self.parts = [built], named, new_boxes, parts
        self._mesh, self.at, self.mesh_shape = [mesh], at, shape
        self._leaves = {name: _leaf(parameter) for name, parameter in named.items()}
        for optimizer in self._optimizers:
            named_state.rebind(optimizer, self._targets(optimizer), carry)
        self._pipeline = self._make_pipeline(mesh, built)
        self.broken = self._complete = False
        return carried

    @property
    def is_pipeline(self) -> bool:
        return self.layout.pp > 1

    @property
    def skeleton(self) -> Any:
        """The full model without memory."""
        return self._skeleton[0]

    @property
    def parallel(self) -> Any:
        return self._parallel[0]

    @property
    def mesh(self) -> Mesh:
        return self._mesh[0]

    # --- a step

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """As the full model. When a peer is lost, `broken` is set and zeros come out: the step is taken again."""
        if self._pipeline:
            hint = "call run.learn(model, x, y, loss_fn), which runs forward and backward through the stages"
            raise JobError("a model in a pipeline cannot be called like a function", hint)
        if not self.broken:
            try:
                with regroup.autocast(self._precision, self.device):
                    found = _arrived(self.parallel(*inputs, **named))
                return regroup.widen(found) if self._precision else found
            except RuntimeError as error:
                self._fail(error)
        return self._stand_in(inputs, named)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Gradients of a loss. They are kept aside, and summed over the group with the `last` batch of a step."""
        self._check()
        self._begin()
        self.parallel.set_requires_gradient_sync(last)
        self.parallel.set_is_last_backward(last)
        try:
            with torch.autocast(self.device.type, enabled=False):
                loss.backward()
        except RuntimeError as error:
            self._fail(error)
            raise
        self._finish(last)

    def learn(
        self, x: torch.Tensor, y: torch.Tensor, loss_fn: LossFn, scale: float = 1.0, last: bool = True
    ) -> torch.Tensor:
        """Forward, loss and backward of one batch in any layout. The mean loss, the same at all slices and stages."""
        self._check()
        if self._pipeline is None:
            loss = loss_fn(self(x), y)
            self.backward(loss * scale, last)
            return loss.detach()
        self._begin()
        try:
            with regroup.autocast(self._precision, self.device):
                loss = self._pipeline.learn(x, y, loss_fn, scale, last)
        except RuntimeError as error:
            self._fail(error)
            raise
        if not last:
            for part in _fsdp(self.parallel):
                part.reshard()
        self._finish(last)
        return loss

    def clip(self, max_norm: float) -> torch.Tensor:
        """As clip_grad_norm_ of the full model: over all shards, slices and stages. Nothing before the last batch."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        if not self._complete or self.broken:
            return total
        gradients = {name: p.grad for name, p in self._named.items() if p.grad is not None}
        slices = self.mesh_shape[3]
        for name, gradient in gradients.items():
            copies = slices if self.parts[name].tp_dim is None else 1  # every slice has it
            part = torch.linalg.vector_norm(named_state.to_local(gradient), dtype=torch.float64)
            total += part.square() / copies
        try:
            for axis in ("fsdp", "tp", "pp"):
                if self.mesh.has(axis):
                    dist.all_reduce(total, group=self.mesh.group(axis))
        except RuntimeError as error:
            self._fail(error)
            return total
        norm = total.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients.values():
            part = named_state.to_local(gradient)
            part.mul_(factor.to(part.dtype))
        return norm

    # --- gradients: torch puts them to its sharded parameters; optimizers see the same memory as plain tensors

    def _begin(self) -> None:
        """Whoever cleared the optimizer's gradients means the model's."""
        for name, leaf in self._leaves.items():
            if leaf.grad is None:
                self._named[name].grad = None

    def _finish(self, last: bool) -> None:
        self._complete = last
        for name, leaf in self._leaves.items() if last else ():
            leaf.grad = named_state.to_local(self._named[name].grad)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in (*self._leaves.values(), *self._named.values()):
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            else:
                named_state.to_local(parameter.grad).zero_()

    # --- as an ordinary module

    def named_parameters(self, prefix: str = "", *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        """This worker's, under the names of the full model; always the sharded ones."""
        yield from ((f"{prefix}.{name}" if prefix else name, parameter) for name, parameter in self._named.items())

    def named_buffers(self, prefix: str = "", *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield from self.parallel.named_buffers(prefix)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """This worker's part, sharded tensors as they are (DTensor.full_tensor gathers one)."""
        return dict((*self.named_parameters(), *self.named_buffers()))

    def train(self, mode: bool = True) -> ShardedModel:
        self.training = mode
        if hasattr(self, "_parallel"):
            self.parallel.train(mode)
        return self

    # --- inside

    def owners(self) -> Iterator[tuple[str, Any, Any]]:
        """(name, what an optimizer may have, the sharded parameter)."""
        for name, parameter in self._named.items():
            yield name, parameter, parameter
            if name in self._leaves:
                yield name, self._leaves[name], parameter

    def _targets(self, optimizer: Any) -> dict[str, Any]:
        """Element by element, plain tensors do, and are much faster: torch works out anew for each mesh how to compute
        with sharded ones (seconds on a CPU). Optimizers that look at whole tensors get those."""
        return self._leaves if type(optimizer) in ELEMENTWISE else self._named

    def _check(self) -> None:
        if not self._mesh:
            raise JobError("a sharded model has no group yet", "attach it to a mesh first")
        if self.broken:
            raise PeerLost("the group of a sharded model is broken")

    def _fail(self, error: RuntimeError) -> None:
        if not is_communication(error):
            raise error
        self.broken = True

    def _stand_in(self, inputs: Any, named: Any) -> Any:
        """Zeros of the shapes that the model would give, so that the user's loop runs on to the end of the step."""
        given = tree_map_only(torch.Tensor, lambda each: each.to("meta"), (inputs, named))
        found = self._skeleton[0](*given[0], **given[1])
        return tree_map_only(
            torch.Tensor,
            lambda each: torch.zeros(each.shape, dtype=each.dtype, device=self.device, requires_grad=True),
            found,
        )

    def _build(self, mesh: Mesh) -> tuple[Any, dict[str, Part]]:
        built = copy.deepcopy(self._skeleton[0])
        shapes = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
        if self.layout.pp > 1:
            built = split(built, self.layout.pp)[mesh.take("pp").get_local_rank()]
        if self._plan:
            names = [name for name, _ in built.named_modules()]
            plan = {key: style for key, style in self._plan.items() if any(fnmatch(name, key) for name in names)}
            parallelize_module(built, mesh.take("tp"), plan)
        parts = {name: Part(shapes[name], _tp_dim(parameter)) for name, parameter in built.named_parameters()}
        _shard(built, mesh.take("replica", "fsdp"), reshard=mesh.take("fsdp").size() > 1)
        built.to_empty(device=self.device)
        return built, parts

    def _carry_buffers(self, built: Any) -> None:
        """Buffers are whole on every worker that has their module; a stage that was elsewhere gets its own by `put`."""
        old = {**self._first_buffers, **dict(self.parallel.named_buffers())}
        modes = {name: module.training for name, module in self.parallel.named_modules()}
        for name, buffer in built.named_buffers():
            if name in old:
                buffer.copy_(old[name])
        for name, module in built.named_modules():
            module.training = modes.get(name, self.training)

    def _make_pipeline(self, mesh: Mesh, built: Any) -> Pipeline | None:
        if self.layout.pp == 1:
            return None
        stages = split(self._skeleton[0], self.layout.pp)
        return Pipeline(built, stages, mesh.group("pp"), self.device, self._chunks)


def skeleton(module: torch.nn.Module) -> Any:
    """A copy without memory: tensors have shapes only."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def _plan(module: Any, layout: Layout, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if layout.tp == 1:
        return {}
    if given is None and not hasattr(module, "tp_plan"):
        hint = "give it a method tp_plan() -> {name of a module: ColwiseParallel() or RowwiseParallel()}"
        raise JobError(f"{type(module).__name__} does not say how to cut it for tensor parallelism", hint)
    plan = dict(given if given is not None else module.tp_plan())
    names = [name for name, _ in module.named_modules()]
    unknown = [key for key in plan if not any(fnmatch(name, key) for name in names)]
    if unknown:
        raise JobError(f"the tp plan names {unknown}, which the model does not have", "use names of named_modules()")
    return plan


def _shard(built: Any, mesh: DeviceMesh, reshard: bool) -> None:
    """One unit of communication for each block, and one for the rest."""
    for block in blocks(built).values():
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(built, mesh=mesh, reshard_after_forward=reshard)
    for part in _fsdp(built):
        # A sum, also on gloo, which knows neither averages nor factors.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def _fsdp(built: Any) -> Iterator[Any]:
    yield from (module for module in built.modules() if isinstance(module, FSDPModule))


def _coordinate(layout: Layout) -> Coordinate:
    return layout.coordinate(dist.get_rank(), dist.get_world_size())


def _tp_dim(parameter: Any) -> int | None:
    if not isinstance(parameter, DTensor):
        return None
    (placement,) = parameter.placements
    return placement.dim if isinstance(placement, Shard) else None


def _arrived(out: Any) -> Any:
    """Tensor parallelism leaves its last sum under way. If it fails, then here and not in the user's code."""
    for each in tree_leaves(out):
        if isinstance(each, AsyncCollectiveTensor):
            each.trigger_wait()
    return out


def _leaf(parameter: Any) -> Any:
    return torch.nn.Parameter(named_state.to_local(parameter.detach()), requires_grad=parameter.requires_grad)


def _whole(shape: Any) -> Box:
    return tuple((0, length) for length in shape)


def _inside(inner: Box, outer: Box) -> bool:
    empty = any(start == end for start, end in inner)
    return empty or all(c <= a and b <= d for (a, b), (c, d) in zip(inner, outer, strict=True))
