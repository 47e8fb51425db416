"""What a run keeps: models in their parallel wrapping, optimizers, schedulers, and whatever else is to be saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tradewind.errors import JobError
from tradewind.jobs import regroup
from tradewind.jobs.regroup import Group, Replica
from tradewind.jobs.settings import RunSettings
from tradewind.jobs.sharded import ShardedModel


class Models:
    def __init__(self, settings: RunSettings, device: Any) -> None:
        self._layout, self._precision, self._device = settings.layout, settings.precision, device
        self.kept: dict[str, Any] = {}
        self.sharded: ShardedModel | None = None  # the model of a layout other than ddp
        self._replicas: list[Replica] = []
        self.bare: list[torch.nn.Module] = []  # those that nothing is wrapped around
        self.on_move: list[Callable[..., None]] = []  # called when an optimizer has moved

    def prepare(self, objects: Sequence[Any], group: Group | None, guard: Callable[..., None]) -> list[Any]:
        """`group` is None for a worker that joins later. Models come first: optimizers follow their parameters."""
        models = {id(item): self._wrap(item, group, guard) for item in objects if isinstance(item, torch.nn.Module)}
        return [
            models[id(item)] if id(item) in models else self.keep(self._name(item), item, group, guard)
            for item in objects
        ]

    def keep(self, name: str, item: Any, group: Group | None, guard: Callable[..., None]) -> Any:
        if name in self.kept:
            raise JobError(f"{name!r} is kept already", "use another name")
        if not hasattr(item, "state_dict") or not hasattr(item, "load_state_dict"):
            hint = "prepare models, optimizers, schedulers, or objects with state_dict and load_state_dict"
            raise JobError(f"{type(item).__name__} has no state that could be saved", hint)
        if isinstance(item, torch.nn.Module) and group is not None and not isinstance(item, ShardedModel):
            regroup.agree(item, group)
        if isinstance(item, torch.optim.Optimizer):
            item.register_step_pre_hook(guard)
            item.register_step_post_hook(self._moved)
            if self.sharded:
                self.sharded.adopt(item)
        self.kept[name] = item
        return item

    def _moved(self, *arguments: Any) -> None:
        for call in self.on_move:
            call(*arguments)

    def attach(self, group: Group) -> None:
        """Compute with this group from now on; replicas follow with `wrap`."""
        if self.sharded:
            self.sharded.attach(group.mesh)

    def wrap(self, group: Group, freight: int) -> None:
        """Gradients are averaged over this group, and with them so many other numbers."""
        for replica in self._replicas:
            replica.attach(group, freight)
        wrapped = {replica.module for replica in self._replicas} | {self.sharded}
        self.bare = [item for item in self.all() if item not in wrapped]

    def begin_batch(self, is_last: bool) -> None:
        for replica in self._replicas:
            link = replica.link
            link.sums, link.laden = is_last, False  # a sharded model is told with its backward pass

    @property
    def carriers(self) -> list[Replica]:
        """The models that this batch went through. The gradients of the first carry the sums of the step."""
        return [replica for replica in self._replicas if replica.link.laden]

    @property
    def broken(self) -> bool:
        return self.sharded is not None and self.sharded.broken

    @property
    def unsummed(self) -> list[torch.nn.Module]:
        """Models whose gradients nobody has summed: kept ones, and prepared ones that were called past the wrapper."""
        return [*self.bare, *(replica.module for replica in self._replicas if not replica.link.laden)]

    def all(self) -> list[torch.nn.Module]:
        return [item for item in self.kept.values() if isinstance(item, torch.nn.Module)]

    def parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for model in self.all() for parameter in model.parameters())

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        if isinstance(model, ShardedModel):
            return model.clip(max_norm)
        found: torch.Tensor = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return found

    def _wrap(self, module: torch.nn.Module, group: Group | None, guard: Callable[..., None]) -> Any:
        name = self._name(module)
        module.to(self._device)
        if self._layout.is_ddp:
            self.keep(name, module, group, guard)
            replica = Replica(module, self._precision)
            self._replicas.append(replica)
            return replica
        if self.sharded:
            raise JobError(f"{self._layout} works for one model", "prepare one model, or use parallel='ddp'")
        if group is not None:
            regroup.agree(module, group)
        self.sharded = self.keep(
            name, ShardedModel(module, self._layout, self._device, precision=self._precision), group, guard
        )
        if group is not None:
            self.sharded.attach(group.mesh)
        return self.sharded

    def _name(self, item: Any) -> str:
        return f"{len(self.kept)}:{type(item).__name__}"
