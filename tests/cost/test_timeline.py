"""Long timelines: marks, late reports and totals over many spans agree with telling everything in order."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from tradewind.cost.timeline import Timeline
from tradewind.model import Phase

Report = tuple[int, ...] | tuple[int, int, int, Phase]


def long_story(count: int, seed: int) -> list[Report]:
    """Steps, with a checkpoint now and then, and a loss that throws the job back."""
    chance, found = random.Random(seed), list[Report]()
    now_ms, step, attempt = 1000, 0, 1
    for sequence in range(count):
        dice = chance.random()
        if dice < 0.1:
            phase = Phase.CHECKPOINTING if dice < 0.08 else Phase.RESTARTING
            if phase is Phase.RESTARTING:
                attempt, step = attempt + 1, max(step - chance.randint(0, 9), 0)
            found.append((now_ms, attempt, sequence, phase))
            now_ms += chance.randint(1, 40)
            continue
        began_ms, now_ms = now_ms + chance.randint(0, 2), now_ms + chance.randint(3, 60)
        found.append((began_ms, now_ms, attempt, sequence, step + 1, step + 3, 30))
        step += 3
    return found


def tell(timeline: Timeline, report: Report) -> None:
    if isinstance(report[-1], Phase):
        timeline.add_phase(*report)  # type: ignore[arg-type]
    else:
        timeline.add_steps(*report)  # type: ignore[arg-type]


def told(reports: list[Report]) -> Timeline:
    timeline = Timeline()
    for report in reports:
        tell(timeline, report)
    return timeline


def totals(timeline: Timeline, from_ms: int, until_ms: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for label, spell_ms in timeline.between(from_ms, until_ms):
        found[label] += spell_ms
    return +found


@pytest.mark.parametrize("seed", range(4))
def test_late_and_repeated_reports_asked_in_between(seed: int) -> None:
    reports, chance = long_story(5000, seed), random.Random(seed)
    end_ms = 400_000
    # Each report is put off by up to 40 places, a few by up to 3000: behind several marks.
    delay = [i + (chance.random() * 3000 if chance.random() < 0.003 else chance.random() * 40) for i in range(5000)]
    arriving = [report for _, report in sorted(zip(delay, reports, strict=True), key=lambda each: each[0])]
    timeline, expected = Timeline(), told(reports)
    for i, report in enumerate(arriving):
        tell(timeline, report)
        if chance.random() < 0.05:
            tell(timeline, chance.choice(arriving[: i + 1]))
        if i % 97 == 0:
            timeline.between(0, end_ms)
    assert timeline.progress == expected.progress
    assert timeline.between(0, end_ms) == expected.between(0, end_ms)
    for _ in range(200):
        from_ms, until_ms = sorted(chance.sample(range(end_ms), 2))
        assert timeline.between(from_ms, until_ms) == expected.between(from_ms, until_ms)


def test_late_reports_are_the_same_told_at_once_in_reverse() -> None:
    reports = long_story(3000, 9)
    forward, backward = told(reports), told(reports[::-1])
    assert forward.between(0, 10**6) == backward.between(0, 10**6)
    assert forward.progress == backward.progress


def test_a_long_stretch_is_the_sum_of_short_ones() -> None:
    timeline, chance = told(long_story(2000, 3)), random.Random(3)
    for _ in range(50):
        cuts = sorted(chance.sample(range(150_000), 60))
        pieces: Counter[int] = Counter()
        for from_ms, until_ms in pairwise(cuts):
            pieces += totals(timeline, from_ms, until_ms)
        assert totals(timeline, cuts[0], cuts[-1]) == pieces
        assert sum(pieces.values()) == cuts[-1] - cuts[0]


def test_recomputed_steps_are_those_below_the_highest() -> None:
    steps = [(0, 100, 1, 1, 1, 10, 100), (200, 300, 2, 2, 6, 15, 100)]
    timeline = told(list(steps))
    assert (timeline.progress.steps, timeline.progress.recomputed_steps, timeline.progress.samples) == (15, 5, 150)


def test_an_empty_report_says_nothing() -> None:
    timeline = told([(0, 100, 1, 1, 5, 4, 0)])
    assert timeline.progress.attempts == 0
