"""The state of a run under names that are the same in every layout: what checkpoints, peers and joiners exchange.

    flat      "0:Net/fc1.weight", "1:Adam/fc1.weight/exp_avg", "1:Adam//groups", "2:StepLR" -> tensors, objects
    local     the same, but of sharded tensors only this worker's part, without a copy
    put       the other way round: into the tensors that are there; what an optimizer does not have yet is made

Parameters are named as in the full model, so that a checkpoint of one layout can be read in another. Optimizers are
made by the user from the full model; when its parameters are replaced by sharded ones, `rebind` follows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from tradewind.errors import JobError

FULL_NAMES = "full_names"  # in an optimizer's groups: its parameters in the full model, also those of other stages
HELD_NAMES = "held_names"  # those on this worker, in the order of the group's parameters

Kept = Mapping[str, Any]
Carry = Callable[[str, torch.Tensor], torch.Tensor]  # name, old part -> new part


def flat(kept: Kept) -> dict[str, Any]:
    """Everything by name. Tensors are the live ones (sharded: DTensors), other values are as their owner gave them."""
    found: dict[str, Any] = {}
    for key, item in kept.items():
        if isinstance(item, torch.nn.Module):
            found.update((f"{key}/{name}", tensor) for name, tensor in _tensors(item))
        elif isinstance(item, torch.optim.Optimizer):
            found.update(_optimizer_state(key, item, kept))
        else:
            found[key] = item.state_dict()
    return found


def local(kept: Kept) -> dict[str, Any]:
    """As `flat`, with this worker's part of each tensor: no copies, no communication."""
    return {name: to_local(value) for name, value in flat(kept).items()}


def put(kept: Kept, values: Mapping[str, Any]) -> None:
    """Take over the values of `local` (of a worker with the same part) or of `flat`, in place where there is room."""
    ours = flat(kept)
    with torch.no_grad():
        for name, value in values.items():
            mine = ours.get(name)
            if isinstance(mine, torch.Tensor):
                _copy(name, mine, value)
    for key, item in kept.items():
        if isinstance(item, torch.optim.Optimizer):
            _put_optimizer(key, item, kept, values, ours)
        elif not isinstance(item, torch.nn.Module) and key in values:
            item.load_state_dict(values[key])


def allocate(kept: Kept, specs: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
    """Make the optimizers' tensors exist that a checkpoint has, given (full shape, dtype), so that it can be read into
    them. Names of parameters that this worker does not hold (other stages) are left out."""
    for key, item in kept.items():
        if not isinstance(item, torch.optim.Optimizer):
            continue
        for name, (group, parameter, sharded) in _named(item, kept).items():
            for entry, (shape, dtype) in specs.items():
                if entry.startswith(f"{key}/{name}/"):
                    field = entry.removeprefix(f"{key}/{name}/")
                    if field not in item.state[parameter]:
                        item.state[parameter][field] = _blank(group, parameter, sharded, tuple(shape), dtype)


def to_local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A worker's part of something that has the shape of a parameter, sharded as it is."""
    if not isinstance(parameter, DTensor):
        return part
    found: torch.Tensor = DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return found


# --- optimizers follow their parameters


def name_groups(optimizer: Any, names: Mapping[int, str]) -> None:
    """Write down which parameters of the full model (by id) each group has."""
    for group in optimizer.param_groups:
        unknown = [parameter for parameter in group["params"] if id(parameter) not in names]
        if unknown:
            hint = "make one optimizer for each model, from its parameters, and prepare the model first"
            raise JobError("an optimizer has parameters that are none of the sharded model's", hint)
        group[FULL_NAMES] = [names[id(parameter)] for parameter in group["params"]]


def rebind(optimizer: Any, named: Mapping[str, torch.Tensor], carry: Carry | None) -> None:
    """Point an optimizer to new parameters. `carry` makes of momenta those of the new part; None: they are lost."""
    old = {
        name: (parameter, optimizer.state.get(parameter, {}))
        for group in optimizer.param_groups
        for name, parameter in zip(held(group), group["params"], strict=True)
    }
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group[HELD_NAMES] = [name for name in group[FULL_NAMES] if name in named]
        group["params"][:] = [named[name] for name in group[HELD_NAMES]]
        for name in group[HELD_NAMES]:
            before, fields = old.get(name, (None, {}))
            if fields and carry:
                optimizer.state[named[name]] = {
                    field: like(named[name], carry(name, to_local(value))) if _is_like(before, value) else value
                    for field, value in fields.items()
                }


def held(group: Mapping[str, Any]) -> list[str]:
    """Names of the parameters that a group has on this worker."""
    found: list[str] = group.get(HELD_NAMES, group[FULL_NAMES])
    return found


def _is_like(parameter: Any, value: Any) -> bool:
    """Momenta are cut as their parameter is; step counters are not cut."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape


# --- inside


def _tensors(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        yield name, parameter.detach()
    yield from _buffers(getattr(module, "parallel", module))  # behind the proxy of a sharded model


def _buffers(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that belong to the state; masks and the like do not."""
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def _owners(item: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, what an optimizer has, the parameter itself): they differ in sharded models."""
    if hasattr(item, "owners"):
        yield from item.owners()
    elif isinstance(item, torch.nn.Module):
        yield from ((name, parameter, parameter) for name, parameter in item.named_parameters())


def _named(optimizer: Any, kept: Kept) -> dict[str, tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
    """An optimizer's (group, parameter, the model's parameter) by name. With several models, the model's key comes
    before."""
    owners = {id(has): (key, name, own) for key, item in kept.items() for name, has, own in _owners(item)}
    pairs = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]]
    missing = [parameter for _, parameter in pairs if id(parameter) not in owners]
    if missing:
        hint = "prepare every model whose parameters an optimizer has"
        raise JobError(f"an optimizer has {len(missing)} parameters of no prepared model", hint)
    several = len({owners[id(parameter)][0] for _, parameter in pairs}) > 1
    found = {}
    for group, parameter in pairs:
        key, name, own = owners[id(parameter)]
        found[f"{key}.{name}" if several else name] = (group, parameter, own)
    return found


def _optimizer_state(key: str, optimizer: Any, kept: Kept) -> Iterator[tuple[str, Any]]:
    named = _named(optimizer, kept)
    for name, (_, parameter, sharded) in named.items():
        for field, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                like_it = _is_like(parameter, value) and not isinstance(value, DTensor)
                yield f"{key}/{name}/{field}", like(sharded, value) if like_it else value
    yield f"{key}//groups", [_settings(group) for group in optimizer.param_groups]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Learning rate and the like: the same on every worker."""
    ours = ("params", HELD_NAMES, FULL_NAMES)
    return copy.deepcopy({name: value for name, value in group.items() if name not in ours})


def _put_optimizer(key: str, optimizer: Any, kept: Kept, values: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    for group, settings in zip(optimizer.param_groups, values.get(f"{key}//groups", ()), strict=False):
        group.update(copy.deepcopy(settings))
    fields: dict[str, list[tuple[str, Any]]] = {}
    for entry, value in values.items():
        if entry.startswith(f"{key}/") and entry not in ours:
            name, _, field = entry.removeprefix(f"{key}/").rpartition("/")
            fields.setdefault(name, []).append((field, value))
    for name, (_, parameter, _) in _named(optimizer, kept).items():
        for field, value in fields.get(name, ()):
            optimizer.state[parameter][field] = _taken(parameter, value)


def _taken(parameter: torch.Tensor, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    part = to_local(value).detach().clone()
    return like(parameter, part) if _is_like(to_local(parameter), part) else part


def _copy(name: str, mine: torch.Tensor, value: Any) -> None:
    target, source = to_local(mine), to_local(value)
    if target.shape != source.shape:
        hint = "the state comes from a worker with another part of the model, or from another model"
        raise JobError(f"{name} has the shape {tuple(source.shape)}, here it is {tuple(target.shape)}", hint)
    if target.data_ptr() != source.data_ptr() or target.numel() == 0:
        target.copy_(source)


def _blank(
    group: Mapping[str, Any], parameter: Any, sharded: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    if shape and shape == tuple(sharded.shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
    # Step counters are kept on the CPU, unless the optimizer runs as one kernel on the device.
    on_device = group.get("capturable") or group.get("fused")
    return torch.zeros(shape, dtype=dtype, device=parameter.device if on_device else "cpu")
