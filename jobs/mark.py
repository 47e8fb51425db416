"""What a micro-batch touches before its step is known to succeed: marked before the step, put back after each
micro-batch but the last, and when the step has to be taken again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(slots=True)
class Mark:
    """All but parameters and momenta (which change only when a step succeeds) and random numbers (which are drawn from
    the seed of the micro-batch)."""

    buffers: dict[str, list[torch.Tensor]]
    small: dict[str, Any]  # schedulers and the like
    rates: dict[str, list[dict[str, Any]]]  # learning rates and other settings, which schedulers write into optimizers

    @classmethod
    def take(cls, kept: Mapping[str, Any]) -> Mark:
        buffers = {
            name: [buffer.detach().clone() for buffer in item.buffers()]
            for name, item in kept.items()
            if isinstance(item, torch.nn.Module)
        }
        small = {
            name: copy.deepcopy(item.state_dict())
            for name, item in kept.items()
            if not isinstance(item, torch.nn.Module | torch.optim.Optimizer)
        }
        rates = {
            name: [{key: _copy(value) for key, value in group.items() if key != "params"} for group in groups]
            for name, groups in _param_groups(kept).items()
        }
        return cls(buffers, small, rates)

    def put_back(self, kept: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, saved in self.buffers.items():
                for buffer, before in zip(kept[name].buffers(), saved, strict=True):
                    buffer.copy_(before)
        for name, state in self.small.items():
            kept[name].load_state_dict(copy.deepcopy(state))
        for name, groups in _param_groups(kept).items():
            for group, settings in zip(groups, self.rates[name], strict=True):
                group.update({key: _copy(value) for key, value in settings.items()})


def _copy(value: Any) -> Any:
    """Settings of optimizers are numbers and tuples, seldom tensors."""
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _param_groups(kept: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {name: item.param_groups for name, item in kept.items() if isinstance(item, torch.optim.Optimizer)}
