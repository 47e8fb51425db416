"""An interrupted step leaves no trace: what it touched is put back, and the optimizer does nothing."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tradewind.jobs.mark import Marker
from tradewind.jobs.regroup import void_gradients


def make() -> dict[str, Any]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5),
    }


def step(kept: dict[str, Any], void: bool = False) -> None:
    kept["model"](torch.randn(8, 4)).sum().backward()
    if void:
        void_gradients(kept["optimizer"])
    kept["optimizer"].step()
    kept["optimizer"].zero_grad()


def states(kept: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({name: item.state_dict() for name, item in kept.items()})


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_an_interrupted_step_leaves_no_trace() -> None:
    kept = make()
    step(kept)
    before, mark = states(kept), Marker(kept).take()
    step(kept, void=True)
    kept["scheduler"].step()
    assert not same(states(kept), before)
    mark.put_back()
    assert same(states(kept), before)


def test_a_step_with_gradients_does_leave_one() -> None:
    kept = make()
    step(kept)
    before = states(kept)
    step(kept)
    assert not same(states(kept)["optimizer"], before["optimizer"])


def test_a_step_that_is_left_out_touches_no_buffers_and_schedulers_go_on() -> None:
    kept = make()
    step(kept)
    before, mark = states(kept), Marker(kept).take()
    kept["model"](torch.full((8, 4), float("nan")))
    kept["scheduler"].step()
    mark.put_back_buffers()
    assert same(states(kept)["model"], before["model"])
    assert kept["scheduler"].last_epoch == before["scheduler"]["last_epoch"] + 1
