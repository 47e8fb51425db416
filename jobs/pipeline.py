"""Cut a model into the stages of a pipeline, and run a batch through them: torch.distributed.pipelining underneath.

A model is cut between its blocks: the children of an `nn.Sequential`, or what its method `stages()` returns (direct
children, whose composition is the model's forward). Parameters keep the names that they have in the full model.

torch finds out the shapes between stages by a trial run of the first batch, which disturbs buffers and accumulated
gradients. Every worker has the full model as a skeleton without memory: shapes are found there, for each size of batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from tradewind.errors import JobError

LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def blocks(module: Any) -> dict[str, Any]:
    """The parts of a model that follow one another, by name. Empty if it does not say."""
    if hasattr(module, "stages"):
        names = {id(child): name for name, child in module.named_children()}
        parts = list(module.stages())
        if any(id(part) not in names for part in parts):
            hint = "let stages() return modules that are attributes of the model"
            raise JobError(f"stages() of {type(module).__name__} returns what is none of its children", hint)
        return {names[id(part)]: part for part in parts}
    if isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward:
        return dict(module.named_children())
    return {}


def split(module: Any, num_stages: int) -> list[torch.nn.Sequential]:
    """Stages with about the same number of parameters. They share the model's modules."""
    parts = blocks(module)
    if len(parts) < num_stages:
        hint = "write the model as nn.Sequential, or give it a method stages() -> list[nn.Module], with enough parts"
        raise JobError(f"{type(module).__name__} has {len(parts)} parts, a pipeline of {num_stages} needs more", hint)
    weights = [sum(parameter.numel() for parameter in part.parameters()) for part in parts.values()]
    stages, names = [], list(parts)
    for start, end in partition(weights, num_stages):
        stage = torch.nn.Sequential()
        for name in names[start:end]:
            stage.add_module(name, parts[name])
        stages.append(stage)
    _refuse_shared(stages)
    return stages


def partition(weights: list[int], parts: int) -> list[tuple[int, int]]:
    """Cut a row of weights into `parts` pieces, none of them empty, so that the heaviest is as light as possible."""
    count = len(weights)
    best: dict[tuple[int, int], tuple[int, int]] = {(0, 0): (0, 0)}  # (taken, pieces) -> (heaviest, last cut)
    for pieces in range(1, parts + 1):
        for taken in range(pieces, count - (parts - pieces) + 1):
            options = (
                (max(best[(start, pieces - 1)][0], sum(weights[start:taken])), start)
                for start in range(pieces - 1, taken)
                if (start, pieces - 1) in best
            )
            best[(taken, pieces)] = min(options)
    spans, end = [], count
    for pieces in range(parts, 0, -1):
        start = best[(end, pieces)][1]
        spans.append((start, end))
        end = start
    return spans[::-1]


def _refuse_shared(stages: list[torch.nn.Sequential]) -> None:
    seen: dict[int, int] = {}
    for index, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            if seen.setdefault(id(parameter), index) != index:
                hint = "do not tie parameters over stages, or use tp or fsdp instead of pp"
                raise JobError(f"{name} is shared by two stages of the pipeline", hint)


class _Stage(PipelineStage):  # type: ignore[misc]
    """torch's stage, with accumulation over batches and with autocast."""

    last = True  # batch of this optimizer step: gradients are summed over replicas and shards
    out_dtype = torch.float32

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        kind = self.device.type
        # Autocast keeps casted weights, with their graph, for all forward passes; each chunk has a backward of its own.
        with torch.autocast(
            kind, dtype=torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            out = super().forward_maybe_with_nosync(*args, **kwargs)
        return out.to(self.out_dtype).contiguous()  # as the buffers between stages: in the type of the model

    def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device.type, enabled=False):
            gradients, groups = super().backward_maybe_with_nosync(*args, **kwargs)
        return tuple(each if each is None else each.contiguous() for each in gradients), groups  # gloo sends no others

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if self.last:
            super().perform_reduce_grad(grad_scale_factor)

    def _post_metadata_inference_cleanup(self) -> None:
        """There was no trial run (shapes are given), and what was accumulated must stay."""


class Pipeline:
    """One worker's stage, and the schedule that runs batches through it. Made anew for each group."""

    def __init__(
        self, stage: Any, skeletons: list[torch.nn.Sequential], group: Any, device: torch.device, chunks: int
    ) -> None:
        self.stage, self.device, self.group = stage, device, group
        self.chunks = chunks
        self.index, self.count = dist.get_rank(group), dist.get_world_size(group)
        self._skeletons = skeletons
        self._ready: dict[Any, tuple[_Stage, Any]] = {}

    def learn(self, x: torch.Tensor, y: torch.Tensor, loss_fn: LossFn, scale: float, last: bool) -> torch.Tensor:
        """Forward and backward of one batch; the mean loss, at every stage."""
        chunks = largest_divisor(len(x), self.chunks)
        stage, schedule = self._schedule(x, chunks)
        total = torch.zeros((), dtype=torch.float64, device=self.device)

        def weighed(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            loss = loss_fn(out, target)
            total.add_(loss.detach() / chunks)
            return loss * (scale / chunks)

        stage.last, schedule._loss_fn = last, weighed
        inputs, target = ((x,) if stage.is_first else ()), (y if stage.is_last else None)
        schedule.step(*inputs, target=target, return_outputs=False)
        dist.broadcast(total, src=dist.get_global_rank(self.group, self.count - 1), group=self.group)
        return total

    def _schedule(self, x: torch.Tensor, chunks: int) -> tuple[_Stage, Any]:
        """A stage has buffers of fixed shapes: one for each size of batch, of which there are few."""
        key = (tuple(x.shape), x.dtype, chunks)
        if key not in self._ready:
            given, taken = self._shapes(x, chunks)
            kind = Schedule1F1B if chunks >= self.count else ScheduleGPipe
            stage = _Stage(self.stage, self.index, self.count, self.device, given, taken, group=self.group)
            stage.out_dtype = taken.dtype
            # The loss function is set for each batch; one must be there, as it says that there is a backward pass.
            self._ready[key] = (stage, kind(stage, chunks, loss_fn=lambda out, _: out.sum(), scale_grads=False))
        return self._ready[key]

    def _shapes(self, x: torch.Tensor, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What this stage is given and gives, without memory."""
        given = torch.empty((len(x) // chunks, *x.shape[1:]), dtype=x.dtype, device="meta")
        for index, skeleton in enumerate(self._skeletons):
            taken = skeleton(given)
            if index == self.index:
                return given.detach().requires_grad_(index > 0), taken.detach().contiguous().requires_grad_(True)
            given = taken.contiguous()
        raise AssertionError("a stage has a skeleton")


def largest_divisor(size: int, most: int) -> int:
    """Into how many equal chunks a batch is cut: the mean of their means is its mean only if they are equal."""
    return next(chunks for chunks in range(min(size, most), 0, -1) if size % chunks == 0)
