"""A model that is spread over the workers of its group, whichever that is now: `ShardedModel`.

    full model of the user -> skeleton without memory
    attach(mesh): skeleton -> stage (pp) -> slices (tp) -> shards and replicas (fsdp) -> this worker's part of the state

Parameters of torch's parallel modules are bound to the process groups of their mesh. So after each change of the group
the parallel module is built anew, and the state that this worker has goes into it; optimizers follow. Users keep one
reference. Gradients are summed, not averaged, over replicas and shards: who calls `backward` weighs the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from tradewind.errors import JobError
from tradewind.jobs import layout as boxes
from tradewind.jobs import named_state, regroup
from tradewind.jobs.build_parallel import Part, build, plan_of, sharded_parts, skeleton
from tradewind.jobs.layout import Box, Coordinate, Layout
from tradewind.jobs.losses import PeerLost, is_communication
from tradewind.jobs.mesh import Mesh
from tradewind.jobs.pipeline import LossFn, Pipeline, split

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
# Of a batch. Filling and emptying the pipeline takes half of the time with 1, a third with 2.
CHUNKS_PER_STAGE = 2


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
        self._plan = plan_of(module, layout, tp_plan)
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
        built, parts = build(self.skeleton, self.layout, self._plan, mesh, self.device)
        named = dict(built.named_parameters())
        world = dist.get_world_size()
        at, shape = self.layout.coordinate(dist.get_rank(), world), self.layout.mesh_shape(world)
        new_boxes = {name: part.box(at, tp=shape[3], fsdp=shape[2]) for name, part in parts.items()}
        carry = self._carrier(new_boxes)
        with torch.no_grad():
            if carry:
                for name, parameter in named.items():
                    old = named_state.to_local(self._named[name].detach())
                    named_state.to_local(parameter).copy_(carry(name, old))
            self._carry_buffers(built)
        if not self._mesh:
            for parameter in self._origin.values():
                parameter.data = parameter.data.new_empty(0)  # the full model has been cut up
        self._parallel, self._named, self._boxes, self.parts = [built], named, new_boxes, parts
        self._mesh, self.at, self.mesh_shape = [mesh], at, shape
        self._leaves = {name: _leaf(parameter) for name, parameter in named.items()}
        for optimizer in self._optimizers:
            named_state.rebind(optimizer, self._targets(optimizer), carry)
        self._pipeline = self._make_pipeline(mesh, built)
        self.broken = self._complete = False
        return carry is not None

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
            for part in sharded_parts(self.parallel):
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

    def _carrier(self, new: Mapping[str, Box]) -> named_state.Carry | None:
        """What turns this worker's old part of a tensor into its new one. None if it does not hold all of that."""
        old = self._boxes
        if not all(name in old and _inside(box, old[name]) for name, box in new.items()):
            return None

        def carry(name: str, value: torch.Tensor) -> torch.Tensor:
            same = old[name] == new[name]
            return value if same else value[boxes.within(new[name], old[name])].contiguous()

        return carry

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
