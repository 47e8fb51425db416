"""One optimizer step in the making: sums over its micro-batches, on this worker and over all.

`run.py` gives out micro-batches; what each leaves behind is collected here. With the backward pass of the last one,
loss, wishes of rank 0 and the statistics of normalisation layers go round: among the gradients where DDP sums them
(`regroup.py`), else in one small all-reduce. It belongs to the step: where it fails, the step does not count, so
whoever has taken a step knows its loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tradewind.errors import JobError
from tradewind.jobs.data import Micro, Share

NO_WISHES = (0.0,) * 5
ONE_BACKWARD = "call run.backward(loss) once for every batch; sum the losses if there are several"


class Stash:
    """Gradients of the micro-batches before the last of a step. They are put aside, so that the user's optimizer and
    gradient clipping find none and do nothing until the step is complete."""

    def __init__(self) -> None:
        self._aside: dict[torch.Tensor, torch.Tensor] = {}

    def lay_open(self) -> None:
        for parameter, gradient in self._aside.items():
            parameter.grad = gradient
        self._aside = {}

    def put_aside(self, parameters: Iterable[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                self._aside[parameter], parameter.grad = parameter.grad, None

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gradients of one micro-batch alone: to those before it."""
        for parameter in parameters:
            if parameter.grad is not None:
                before = self._aside.get(parameter)
                self._aside[parameter] = parameter.grad if before is None else before.add_(parameter.grad)
                parameter.grad = None

    def drop(self) -> None:
        self._aside = {}


class Statistics:
    """Running means and variances of normalisation layers. Each micro-batch starts from those of the step before; what
    counts after the step is the mean over its micro-batches. So they do not depend on the number of workers."""

    def __init__(self, modules: Iterable[torch.nn.Module], copies: int = 1) -> None:
        self.copies = copies  # workers that have the same ones
        self._buffers: list[tuple[int, torch.Tensor]] = []  # this worker's, and where they stand among all
        self.size = 0
        for module in modules:
            here = dict(module.named_buffers())
            for name, buffer in _norms(getattr(module, "skeleton", module)):
                if name in here:  # not in another stage of the pipeline
                    self._buffers.append((self.size, here[name]))
                self.size += buffer.numel()

    def add_to(self, values: torch.Tensor, weight: float) -> None:
        for at, buffer in self._buffers:
            values[at : at + buffer.numel()] += buffer.detach().reshape(-1).to(torch.float64) * (weight / self.copies)

    def write(self, values: torch.Tensor) -> None:
        with torch.no_grad():
            for at, buffer in self._buffers:
                buffer.copy_(values[at : at + buffer.numel()].view_as(buffer))


def _norms(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    for prefix, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.batchnorm._NormBase):
            for name in ("running_mean", "running_var"):
                if getattr(layer, name) is not None:
                    yield f"{prefix}.{name}" if prefix else name, getattr(layer, name)


class Step:
    """What is known of one step on this worker."""

    HEAD = 8  # loss, wishes of rank 0 (5), squared norms of micro-batches' gradients, workers that took part
    NORM = 6
    WORKERS = 7

    def __init__(self, part: Share, statistics: Statistics, copies: int, device: Any) -> None:
        self.part = part
        self.turn = 0  # the micro-batch that is out
        self.done_backward = False
        self.verdict: bool | None = None  # whether the step counts; None: not known yet
        self.whole = False  # all gradients are here
        self.small_sqr = self.big_sqr = 0.0  # squared norms of gradients, if they are measured
        self.void = False  # it counts, and changes nothing: its loss is no number
        self.values: Any = None  # the sums
        self._statistics, self._copies, self._device = statistics, copies, device
        self._loss: Any = 0.0  # a tensor on a GPU, which nobody waits for
        self._buffers = torch.zeros(statistics.size, dtype=torch.float64, device=device) if statistics.size else None
        self._head: list[float] | None = None
        self._work: Any = None

    @property
    def micro(self) -> Micro:
        return self.part.micros[self.turn]

    @property
    def is_last(self) -> bool:
        return self.turn == len(self.part.micros) - 1

    def next_turn(self) -> None:
        if not self.done_backward:
            raise JobError(f"a batch of step {self.part.step} had no backward pass", ONE_BACKWARD)
        self.turn, self.done_backward = self.turn + 1, False

    def add(self, loss: Any) -> None:
        """What this micro-batch leaves. `copies` workers of a replica all add the same."""
        if self.done_backward:
            raise JobError(f"a batch of step {self.part.step} had two backward passes", ONE_BACKWARD)
        self.done_backward = True
        weight = self.micro.weight
        if weight:
            mine = loss.item() if self._device.type == "cpu" else loss.detach().double()
            self._loss += mine * (weight / self._copies)
            if self._buffers is not None:
                self._statistics.add_to(self._buffers, weight)

    def numbers(self, wishes: Sequence[float] | None, times: int = 1) -> Sequence[float] | torch.Tensor:
        """Everything that is to be summed up, of this worker. `times`: for a mean over so many workers."""
        waits, wishes = isinstance(self._loss, torch.Tensor), wishes or NO_WISHES
        head = [times * value for value in (0.0 if waits else self._loss, *wishes, self.small_sqr, 1.0)]
        if self._buffers is None and not waits:
            return head
        found = torch.tensor(head, dtype=torch.float64, device=self._device)
        if waits:
            found[0] += self._loss * times
        return found if self._buffers is None else torch.cat([found, self._buffers * times])

    @property
    def head(self) -> list[float]:
        """The first of the sums, as numbers. Waits for a GPU."""
        if self._head is None:
            self._head = self.values[: self.HEAD].tolist()
        return self._head

    def load(self, numbers: Sequence[float] | torch.Tensor, alone: bool) -> None:
        """Sum them by an all-reduce of their own."""
        self.values = torch.as_tensor(numbers, dtype=torch.float64, device=self._device)
        if not alone:
            self._work = dist.all_reduce(self.values, async_op=True)

    def unload(self, sums: torch.Tensor) -> None:
        """They were summed together with gradients; the tensor is theirs."""
        if self._buffers is None and self._device.type == "cpu":
            self._head = sums.tolist()
        else:
            self.values = sums.to(torch.float64, copy=True)

    def take(self, sums: Sequence[float]) -> None:
        """The sums of a step as another worker has them."""
        self.values, self._head = torch.tensor(sums, dtype=torch.float64, device=self._device), None
        self._statistics.write(self.values[self.HEAD :])

    def wait(self) -> None:
        """Until the sums are there. Raises what torch raises when a worker is lost."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        if self._buffers is not None:
            self._statistics.write(self.values[self.HEAD :])


def average(parameters: Iterable[torch.Tensor], world: int) -> None:
    """The mean of gradients over all workers, for models that are not wrapped."""
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for dtype in sorted({gradient.dtype for gradient in found}, key=str):
        same = [gradient for gradient in found if gradient.dtype == dtype]
        flat = torch.cat([gradient.reshape(-1) for gradient in same])
        dist.all_reduce(flat)
        flat /= world
        for gradient, part in zip(same, flat.split([gradient.numel() for gradient in same]), strict=True):
            gradient.copy_(part.view_as(gradient))
