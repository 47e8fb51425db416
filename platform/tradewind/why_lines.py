"""Lines and facts of a story, put in order. Pure; beside why.py, which finds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tradewind.api import StoryLine
from tradewind.autoscaler.actions import AS_CHEAP


def in_order(lines: Iterable[StoryLine | None]) -> list[StoryLine]:
    """A cloud tells late when a bill began or ended: the log's order is not quite that of time."""
    return sorted((line for line in lines if line is not None), key=lambda line: line.at_s or 0.0)


def with_others(line: StoryLine, others: Iterable[str]) -> StoryLine:
    """Alternatives that cost the same were not beaten."""
    told = list(others)
    beat = tuple(text for text in told if not text.endswith(AS_CHEAP))
    return replace(line, beat=beat, tied=tuple(text.removesuffix(AS_CHEAP) for text in told if text.endswith(AS_CHEAP)))


def newest(lines: Sequence[StoryLine], last: int) -> tuple[list[StoryLine], int]:
    """The last ones, and how many were left out."""
    return list(lines[-last:]), max(0, len(lines) - last)


def facts(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Those of which something is known."""
    return tuple(pair for pair in pairs if pair[1])
