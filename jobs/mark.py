"""What a micro-batch touches before its step is known to succeed: marked before the step, put back after each
micro-batch but the last, and when the step has to be taken again."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


class Marker:
    """Where to look: found once for everything that is kept, for marks are taken at every step."""

    def __init__(self, kept: Mapping[str, Any]) -> None:
        items = kept.values()
        models = [item for item in items if isinstance(item, torch.nn.Module)]
        # Where buffers stand, not the buffers: a module may put another tensor into the same place.
        self.places = [(each._buffers, name) for model in models for each in model.modules() for name in each._buffers]
        self.optimizers = [item for item in items if isinstance(item, torch.optim.Optimizer)]
        self.small = [item for item in items if not isinstance(item, torch.nn.Module | torch.optim.Optimizer)]

    def take(self) -> Mark:
        return Mark(
            self,
            [None if (found := home[name]) is None else found.detach().clone() for home, name in self.places],
            [_settings(group) for optimizer in self.optimizers for group in optimizer.param_groups],
            [copy.deepcopy(item.state_dict()) for item in self.small],
        )


@dataclass(slots=True)
class Mark:
    """All but parameters and momenta (which change only when a step succeeds) and random numbers (which are drawn from
    the seed of the micro-batch)."""

    of: Marker
    buffers: list[torch.Tensor | None]
    rates: list[dict[str, Any]]  # learning rates and other settings, which schedulers write into optimizers
    small: list[Any]  # states of schedulers and the like

    def put_back(self) -> None:
        self.put_back_buffers()
        for item, state in zip(self.of.small, self.small, strict=True):
            item.load_state_dict(copy.deepcopy(state))
        groups = (group for optimizer in self.of.optimizers for group in optimizer.param_groups)
        for group, settings in zip(groups, self.rates, strict=True):
            group.update(_settings(settings))

    def put_back_buffers(self) -> None:
        with torch.no_grad():
            for (home, name), before in zip(self.of.places, self.buffers, strict=True):
                now = home[name]
                if now is not None and before is not None:
                    now.copy_(before)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """All but the parameters. Settings of optimizers are numbers and tuples, seldom tensors."""
    found = dict(group)
    found.pop("params", None)
    for key, value in found.items():
        if isinstance(value, torch.Tensor):
            found[key] = value.clone()
    return found
