"""What the examples cnn, rnn and gpt have in common: options of the command line, and the call of `fit`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from tradewind.jobs.examples.digits import loss_text, parse_workers


def parse(name: str, doc: str, arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m tradewind.jobs.examples.{name}", description=doc.split("\n")[0])
    parser.add_argument("--workers", type=parse_workers, default=None, help="least..most, for example 2..4")
    parser.add_argument("--parallel", default="ddp", help='"ddp", "fsdp", "fsdp=all", "tp=2", "pp=2,fsdp=2", ...')
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all")
    parser.add_argument("--batch", type=int, default=64, help="global batch, over all workers")
    parser.add_argument("--accumulate", type=int, default=None, help="micro-batches of a global batch")
    parser.add_argument("--samples", type=int, default=4096, help="size of the dataset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clip", type=float, default=None, help="largest norm of the gradients")
    parser.add_argument("--bf16", action="store_true", help="mixed precision: compute in bfloat16 where it is safe")
    parser.add_argument("--double", action="store_true", help="compute in double precision")
    parser.add_argument("--storage", default=None, help="folder for checkpoints")
    parser.add_argument("--name", default=None, help="of the run; the same name goes on where it stopped")
    return parser.parse_args(arguments)


def start(train: Callable[[Any, argparse.Namespace], None], options: argparse.Namespace) -> None:
    from tradewind.jobs.trainer import fit

    result = fit(
        lambda run: train(run, options),
        workers=options.workers,
        parallel=options.parallel,
        precision="bf16" if options.bf16 else None,
        storage=options.storage,
        name=options.name,
        seed=options.seed,
    )
    print(f"done: step {result.step}, loss {loss_text(result.loss)}")


def loop(run: Any, options: argparse.Namespace, model: Any, dataset: Any, loss_fn: Any, rate: float) -> None:
    """An ordinary loop of PyTorch; the lines that make it elastic and parallel are marked with `# tw`."""
    import torch

    model = model.to(torch.float64) if options.double else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, options.steps))
    model, optimizer, scheduler = run.prepare(model, optimizer, scheduler)  # tw
    epochs = -(-options.steps * options.batch // len(dataset))
    for batch in run.batches(  # tw
        dataset,
        global_batch=options.batch,
        micro_batches=options.accumulate,
        epochs=epochs,
        seed=options.seed,
        max_steps=options.steps,
    ):
        run.learn(model, batch.x, batch.y, loss_fn)  # tw: loss_fn(model(x), y) and its backward, also in a pipeline
        if options.clip:
            run.clip(model, options.clip)  # tw: over all shards, slices and stages
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
