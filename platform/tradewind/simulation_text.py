"""A comparison of policies as text: a table with intervals, bars, the cost over time. Pure; coloured only when told."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Sequence

from tradewind.autoscaler.simulate.compare import Figure, Result
from tradewind.chart import Canvas, nice_top, with_labels
from tradewind.simulation import Comparison
from tradewind.units import format_duration, format_usd

_COLOURS = ("\x1b[1;36m", "\x1b[1;33m", "\x1b[1;35m", "\x1b[1;32m", "\x1b[1;34m")
_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_ROWS, _NARROWEST = 8, 72
FIGURES: tuple[tuple[str, Callable[[Result], Figure], Callable[[float], str]], ...] = (
    ("cost", lambda result: result.cost_uusd, lambda value: format_usd(round(value))),
    ("cost, to the first", lambda result: result.cost_ratio, lambda value: f"{value:.3f}"),
    ("wait, mean", lambda result: result.wait_mean_s, format_duration),
    ("wait, 95th percentile", lambda result: result.wait_p95_s, format_duration),
    ("completion, mean", lambda result: result.completion_mean_s, format_duration),
    ("completion, 95th percentile", lambda result: result.completion_p95_s, format_duration),
    ("deadlines missed", lambda result: result.misses, lambda value: f"{value:.1%}"),
    ("utilisation", lambda result: result.utilisation, lambda value: f"{value:.1%}"),
    ("fairness of jobs (Jain)", lambda result: result.fairness, lambda value: f"{value:.3f}"),
)
PLAIN: tuple[tuple[str, Callable[[Result], str]], ...] = (
    ("fairness of tenants (Jain)", lambda result: f"{result.fairness_tenants:.3f}"),
    ("spot, of the cost", lambda result: f"{result.spot_share:.0%}"),
    ("GPU-hours paid", lambda result: f"{result.paid_gpu_h:,.0f}"),
    ("... done again or restarting", lambda result: f"{result.lost_gpu_h:,.1f}"),
    ("nodes launched", lambda result: f"{result.launches:,}"),
    ("nodes taken by the cloud", lambda result: f"{result.preemptions:,}"),
    ("launches refused", lambda result: f"{result.refusals:,}"),
    ("restarts of jobs", lambda result: f"{result.restarts:,}"),
    ("moves to cheaper nodes", lambda result: f"{result.moves:,}"),
)


def comparison_text(comparison: Comparison, width: int = 80, *, coloured: bool = False) -> str:
    width = max(width, _NARROWEST)
    results = comparison.results
    parts = [
        f"{comparison.fleet}: {comparison.jobs}",
        _tables(results, width),
        "\n".join(
            [
                *_bars("cost", results, lambda result: result.cost_uusd, FIGURES[0][2], width, coloured),
                "",
                *_bars(
                    "completion, mean",
                    results,
                    lambda result: result.completion_mean_s,
                    format_duration,
                    width,
                    coloured,
                ),
            ]
        ),
        "\n".join(_chart(results, width, coloured)),
        "\n".join(textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in remarks(comparison)),
    ]
    return "\n\n".join(parts)


def remarks(comparison: Comparison) -> list[str]:
    first = comparison.results[0]
    lines = [f"{result.policy}: {result.summary}" for result in comparison.results]
    times = f" of {comparison.repeat} repeats" if comparison.repeat > 1 else ""
    if first.cost_uusd.low is None:
        lines.append("too short for confidence intervals: they need eight windows of time at least")
    else:
        lines.append(
            f"in brackets: 95 % intervals by drawing {first.windows} windows{times} of "
            f"{format_duration(first.window_s)} each with replacement; seed {comparison.seed}"
        )
    return [*lines, *comparison.notes]


def _tables(results: Sequence[Result], width: int) -> str:
    """As many policies side by side as the width takes."""
    whole = _table(results)
    if _width(whole) <= width:
        return whole
    blocks: list[list[Result]] = []
    for result in results:
        wider = [*blocks[-1], result] if blocks else [result]
        if blocks and _width(_table(wider, stacked=True)) <= width:
            blocks[-1] = wider
        else:
            blocks.append([result])
    return "\n\n".join(_table(block, stacked=True) for block in blocks)


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def _table(results: Sequence[Result], stacked: bool = False) -> str:
    """`stacked`: intervals stand below their figures, which takes half of the width."""
    rows = [["", *(result.policy for result in results)]]
    for name, pick, text in FIGURES:
        if name == "deadlines missed" and not any(result.deadlines for result in results):
            continue
        cells = [_with_interval(pick(result), text) for result in results]
        if stacked:
            rows += [[name, *(value for value, _ in cells)], ["", *(interval for _, interval in cells)]]
        else:
            rows.append([name, *(f"{value} {interval}".strip() for value, interval in cells)])
    rows += [[name, *(text(result) for result in results)] for name, text in PLAIN]
    rows = [row for row in rows if any(row)]
    sizes = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(_cell(cell, sizes[place], place) for place, cell in enumerate(row)).rstrip() for row in rows]
    return "\n".join(lines)


def _cell(text: str, size: int, place: int) -> str:
    return text.rjust(size) if place else text.ljust(size)


def _with_interval(figure: Figure, text: Callable[[float], str]) -> tuple[str, str]:
    if figure.low is None or figure.high is None:
        return text(figure.value), ""
    return text(figure.value), f"[{text(figure.low)} .. {text(figure.high)}]"


def _bars(
    title: str,
    results: Sequence[Result],
    pick: Callable[[Result], Figure],
    text: Callable[[float], str],
    width: int,
    coloured: bool,
) -> list[str]:
    """The interval is the lighter end of a bar."""
    most = max(pick(result).high or pick(result).value for result in results) or 1.0
    names = max(len(result.policy) for result in results)
    values = max(len(text(pick(result).value)) for result in results)
    room = width - names - values - 4
    lines = [title]
    for result, colour in zip(results, itertools.cycle(_COLOURS), strict=False):
        figure = pick(result)
        full = round(room * (figure.low if figure.low is not None else figure.value) / most)
        end = round(room * (figure.high if figure.high is not None else figure.value) / most)
        bar = "█" * full + "░" * (end - full)
        shown = f"{colour}{bar}{_RESET}" if coloured else bar
        lines.append(f"  {result.policy.ljust(names)} {text(figure.value).rjust(values)} {shown}")
    return lines


def _chart(results: Sequence[Result], width: int, coloured: bool) -> list[str]:
    """What has been paid up to each moment."""
    paid = [list(itertools.accumulate((0, *result.cost_by_window_uusd))) for result in results]
    most = max(max(each) for each in paid) / 1e6
    if not most:
        return []
    top = nice_top(most)
    marks = {0: _mark(top), _ROWS // 2: _mark(top / 2), _ROWS - 1: "$0"}
    margin = max(map(len, marks.values())) + 1
    canvas = Canvas(width - margin - 2, _ROWS, top)
    longest = max(len(each) for each in paid) - 1
    for number, each in enumerate(paid):
        points = [(place / longest, uusd / 1e6) for place, uusd in enumerate(each)]
        canvas.line(points, _COLOURS[number % len(_COLOURS)], dotted=number % 2 == 1)
    drawn = canvas.lines(coloured)
    days = longest * results[0].window_s / 86400.0
    axis = with_labels([(0.0, "0"), (0.5, f"{days / 2:.3g} days"), (0.97, f"{days:.3g} days")], width - margin - 2)
    keys = ", ".join(f"{result.policy} {'dotted' if number % 2 else 'solid'}" for number, result in enumerate(results))
    return [
        f"dollars paid up to then ({keys})",
        *(f"{marks.get(row, '').rjust(margin)} {line}" for row, line in enumerate(drawn)),
        " " * (margin + 1) + axis,
    ]


def _mark(usd: float) -> str:
    """Small amounts need their cents: two marks must not read the same."""
    return f"${usd:,.0f}" if usd >= 10 else format_usd(round(usd * 1e6))
