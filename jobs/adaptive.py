"""A batch that follows the gradient noise scale, and a learning rate that follows it: `run.batches(max_batch=...)`.

Each micro-batch is a sample of the gradient, so its gradient is taken by itself, measured, and summed up; all-reduce
comes after the last one, not beside its backward pass. Rank 0 decides; its word rides on the sums of the step
(`step.py`), so that everybody changes at the same one, with the same learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from tradewind.errors import JobError
from tradewind.jobs.data import Order
from tradewind.jobs.noise import RULES, NoiseScale
from tradewind.jobs.step import Stash, Step, average

KEPT_AS = "noise scale"


class Adaptive:
    def __init__(self, order: Order, max_batch: int, rule: str, is_ddp: bool) -> None:
        if rule not in RULES:
            raise JobError(f"lr_rule {rule!r} is not known", f"use one of {', '.join(RULES)}")
        if not is_ddp:
            raise JobError("max_batch works with parallel='ddp' only", "leave out max_batch, or parallel")
        if order.micro_batches < 2:
            raise JobError("a batch of one micro-batch has no noise to measure", "set micro_batches to 2 or more")
        if max_batch < order.global_batch:
            raise JobError(f"max_batch {max_batch} is below global_batch {order.global_batch}", "make it larger")
        self.noise = NoiseScale(order.global_batch, max_batch // order.global_batch, rule)
        self._rates: list[tuple[dict[str, Any], Any]] = []  # of an optimizer that is moving: group, its own rate

    def backward(self, loss: torch.Tensor, now: Step, stash: Stash, parameters: list[torch.Tensor], world: int) -> None:
        """The gradient of one micro-batch."""
        scale = now.micro.weight * world
        (loss * scale).backward()
        if scale:
            now.small_sqr += _square(parameters) / scale**2
        stash.add(parameters)

    def close(self, now: Step, stash: Stash, parameters: list[torch.Tensor], world: int) -> None:
        """The gradient of the step, after its last micro-batch."""
        stash.lay_open()
        if world > 1:
            average(parameters, world)
        now.big_sqr = _square(parameters)

    def see(self, now: Step, order: Order) -> None:
        """A step was taken: its norms count."""
        count = order.micro_batches * order.place(now.part.step)[2]
        size = now.part.global_size
        if size >= count:  # the last batch of an epoch may be too short
            self.noise.see(now.head[now.NORM] / count, now.big_sqr, size / count, size)

    def wish(self, order: Order, step: int) -> tuple[float, float]:
        """Of rank 0: the factor of the batch from the next step on, and the gain of the rate for this one."""
        factor = order.place(step)[2]
        return float(self.noise.next_factor(factor, step)), self.noise.gain(factor)

    def grown(self, order: Order, done: int, factor: int) -> Order:
        """The order from the next step on."""
        if not factor or order.place(done + 1)[2] == factor:
            return order
        return replace(order, stages=(*order.stages, (done + 1, factor)))

    def speed_up(self, optimizer: Any, gain: float) -> None:
        """Before an optimizer moves; `slow_down` after it, so that schedulers see their own rate."""
        self._rates = [(group, group["lr"]) for group in optimizer.param_groups]
        for group, rate in self._rates:
            group["lr"] = rate * gain

    def slow_down(self, *_: Any) -> None:
        for group, rate in self._rates:
            group["lr"] = rate
        self._rates = []


def _square(parameters: Iterable[torch.Tensor]) -> float:
    return float(sum(p.grad.double().square().sum() for p in parameters if p.grad is not None))
