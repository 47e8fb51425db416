"""Proof of what the model has seen: every worker writes down its samples, step by step; `audit` adds them up.

A worker that is lost takes steps with it that were never saved; the next group takes those steps again. The model that
comes out has seen them once. So the audit follows the model's lineage: where an attempt resumes after step s, all steps
above s of the attempts before it are struck out (they are counted as recomputed).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tradewind.errors import JobError
from tradewind.jobs.data import Indices, Order


class SampleLedger:
    """The page of one worker in one attempt. A line is in the operating system's hands before the step is saved."""

    def __init__(self, folder: Path, order: Order, attempt: int, rank: int, world: int, after_step: int) -> None:
        self.after_step = after_step
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"attempt-{attempt:05d}-rank-{rank:05d}.jsonl"
        self._file: TextIO = path.open("w", encoding="utf-8")
        head = {"attempt": attempt, "rank": rank, "world": world, "after_step": after_step, "order": asdict(order)}
        self._write(head)

    def record(self, step: int, indices: Indices) -> None:
        self._write({"step": step, "indices": indices.tolist()})

    def vouch(self, step: int, rank: int, indices: Sequence[int]) -> None:
        """Another rank's part of a step that this one has taken: the other may be lost before it could write."""
        self._write({"step": step, "rank": rank, "indices": list(indices)})

    def reorder(self, order: Order) -> None:
        """The batch has grown or shrunk."""
        self._write({"order": asdict(order)})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True)
class Page:
    """What one worker wrote."""

    attempt: int
    rank: int
    world: int
    after_step: int
    order: Order
    steps: dict[int, list[int]]
    vouched: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (rank, step) of others


@dataclass(frozen=True, slots=True)
class Audit:
    """What the model at the end of the last attempt has seen."""

    last_step: int
    samples: int  # seen, in the lineage
    skipped: int  # should have been seen by now, were not
    repeated: int  # seen more than once in an epoch
    misplaced_steps: int  # steps whose samples are not those of the order
    recomputed_steps: int  # taken, lost, and taken again
    recomputed_samples: int
    worlds: tuple[int, ...]  # the size of each attempt that took a step

    @property
    def exact(self) -> bool:
        return self.skipped == self.repeated == self.misplaced_steps == 0


def audit(folder: str | Path) -> Audit:
    """Read every page in `folder` and add up. Raises JobError where there is none."""
    pages = [read_page(path) for path in sorted(Path(folder).glob("attempt-*-rank-*.jsonl"))]
    found = [page for page in pages if page is not None]
    if not found:
        raise JobError(f"no sample ledger in {folder}", "run the job with a ledger folder first")
    return add_up(found)


def add_up(pages: Sequence[Page]) -> Audit:
    lineage, lost, worlds = _lineage(pages)
    order = max((page.order for page in pages), key=lambda order: len(order.stages))
    last = max(lineage, default=0)
    skipped, repeated = _count(order, lineage, last)
    wrong = sum(lineage.get(step, []) != order.indices(step).tolist() for step in range(1, last + 1))
    return Audit(
        last_step=last,
        samples=sum(map(len, lineage.values())),
        skipped=skipped,
        repeated=repeated,
        misplaced_steps=wrong,
        recomputed_steps=len(lost),
        recomputed_samples=sum(map(len, lost)),
        worlds=tuple(worlds),
    )


def read_page(path: Path) -> Page | None:
    """A page; None where the worker was ended before it wrote its first line. A torn last line does not count."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]
    if not lines:
        return None
    head = json.loads(lines[0])
    written = [json.loads(line) for line in lines]
    order = Order(**[line["order"] for line in written if "order" in line][-1])
    entries = [line for line in written if "step" in line]
    steps = {entry["step"]: entry["indices"] for entry in entries if "rank" not in entry}
    vouched = {(entry["rank"], entry["step"]): entry["indices"] for entry in entries if "rank" in entry}
    return Page(head["attempt"], head["rank"], head["world"], head["after_step"], order, steps, vouched)


def _lineage(pages: Iterable[Page]) -> tuple[dict[int, list[int]], list[list[int]], list[int]]:
    """step -> samples in rank order, for the steps that the last model descends from; and the steps struck out."""
    kept: dict[int, list[int]] = {}
    lost: list[list[int]] = []
    worlds: list[int] = []
    by_attempt: dict[int, list[Page]] = {}
    for page in pages:
        by_attempt.setdefault(page.attempt, []).append(page)
    for _, group in sorted(by_attempt.items()):
        after = max(page.after_step for page in group)
        lost += [kept.pop(step) for step in sorted(kept) if step > after]
        taken = _steps_of(group)
        kept.update(taken)
        if taken:
            worlds.append(group[0].world)
    return kept, lost, worlds


def _steps_of(group: Sequence[Page]) -> dict[int, list[int]]:
    known = {key: indices for page in group for key, indices in page.vouched.items()}
    known |= {(page.rank, step): indices for page in group for step, indices in page.steps.items()}
    steps = sorted({step for page in group for step in page.steps})
    ranks = range(max(page.world for page in group))
    return {step: [index for rank in ranks for index in known.get((rank, step), [])] for step in steps}


def _count(order: Order, lineage: dict[int, list[int]], last: int) -> tuple[int, int]:
    """(skipped, repeated), epoch by epoch: what should have been seen by step `last` against what was."""
    seen: dict[int, Counter[int]] = {}
    due: dict[int, set[int]] = {}
    for step in range(1, last + 1):
        epoch = order.epoch_of(step)
        seen.setdefault(epoch, Counter()).update(lineage.get(step, []))
        due.setdefault(epoch, set()).update(order.indices(step).tolist())
    skipped = sum(len(due[epoch] - seen[epoch].keys()) for epoch in due)
    repeated = sum(count - 1 for counts in seen.values() for count in counts.values())
    return skipped, repeated
