"""What a step touches before it is known to succeed: marked before it, put back when it has to be taken again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tradewind.jobs import randomness


@dataclass(slots=True)
class Mark:
    """What a step touches beside parameters and momenta (which change only when it succeeds)."""

    rng: Mapping[str, Any]
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
            name: [copy.deepcopy({key: value for key, value in group.items() if key != "params"}) for group in groups]
            for name, groups in _param_groups(kept).items()
        }
        return cls(randomness.capture(), buffers, small, rates)

    def put_back(self, kept: Mapping[str, Any]) -> None:
        randomness.put_back(self.rng)
        with torch.no_grad():
            for name, saved in self.buffers.items():
                for buffer, before in zip(kept[name].buffers(), saved, strict=True):
                    buffer.copy_(before)
        for name, state in self.small.items():
            kept[name].load_state_dict(state)
        for name, groups in _param_groups(kept).items():
            for group, settings in zip(groups, self.rates[name], strict=True):
                group.update(copy.deepcopy(settings))


def _param_groups(kept: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {name: item.param_groups for name, item in kept.items() if isinstance(item, torch.optim.Optimizer)}
