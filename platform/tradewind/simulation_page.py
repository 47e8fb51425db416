"""A comparison of policies as one HTML page with charts, which needs no network. Pure text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from html import escape

from tradewind.autoscaler.simulate.compare import Figure, Result
from tradewind.chart import nice_top
from tradewind.simulation import Comparison
from tradewind.simulation_text import FIGURES, PLAIN, remarks
from tradewind.units import format_duration, format_usd

COLOURS = ("#3f8fa3", "#e08a3c", "#8f6bd1", "#2e9e6b", "#d64545")
_WIDTH, _ROW = 440, 34
_LINES = (920, 240)
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #66717f; --line: #e3e7ec; --paper: #fff; --card: #f7f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf1; --soft: #97a3b1; --line: #2c3541; --paper: #12171e; --card: #1a212b } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 980px; padding: 32px 20px }
h1 { font-size: 26px; margin: 0 } h2 { font-size: 17px; margin: 36px 0 10px } h3 { font-size: 14px; margin: 0 0 6px }
p, .soft, li { color: var(--soft) } p { margin: 4px 0 } ul { padding-left: 20px; margin: 6px 0 }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(205px, 1fr)); gap: 12px; margin: 22px 0 }
.card { background: var(--card); border-radius: 10px; padding: 12px 16px; border-left: 5px solid }
.card b { display: block; font-size: 22px; white-space: nowrap; font-variant-numeric: tabular-nums }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 14px }
.chart { background: var(--card); border-radius: 10px; padding: 14px 16px }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; font-size: 13px }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px }
.wide { overflow-x: auto } .wide svg { min-width: 560px }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--soft); font-weight: 500 } th:first-child, td:first-child { text-align: left }
td small { display: block; color: var(--soft) } details { margin-top: 24px; color: var(--soft); font-size: 13px }
svg text { fill: var(--ink); font-size: 12px } svg .soft { fill: var(--soft); font-size: 11px }
svg .rule { stroke: var(--line) } svg .whisker { stroke: var(--ink); stroke-width: 1.5 }
"""


def render_page(comparison: Comparison) -> str:
    results = comparison.results
    title = f"Simulation of {escape(comparison.fleet)}"
    charts = "".join(_chart(name, pick, text, results) for name, pick, text in FIGURES if _is_drawn(name, results))
    notes = "".join(f"<li>{escape(line)}</li>" for line in remarks(comparison))
    markets = "".join(f"<li>{escape(line)}</li>" for line in comparison.markets)
    parts = [
        f"<h1>{title}</h1><p>{escape(comparison.jobs)}</p>",
        f'<div class="cards">{"".join(map(_card, results, itertools.cycle(COLOURS)))}</div>',
        "<h2>Side by side</h2><p>The whiskers hold 95 %.</p>" if results[0].cost_uusd.low is not None else "",
        f'<div class="charts">{charts}</div>',
        "<h2>Paid up to then</h2>" + _lines(results),
        "<h2>All figures</h2>" + _table(results),
        f"<h2>To be read with it</h2><ul>{notes}</ul>",
        f"<details><summary>{len(comparison.markets)} markets</summary><ul>{markets}</ul></details>",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n'


def _is_drawn(name: str, results: Sequence[Result]) -> bool:
    if name == "deadlines missed":
        return any(result.deadlines for result in results)
    return name != "cost, to the first" or len(results) > 1


def _card(result: Result, colour: str) -> str:
    missed = f", {round(result.misses.value * result.deadlines):,} of {result.deadlines:,} deadlines missed"
    ratio = "" if result.cost_ratio.value == 1.0 else f" &middot; {result.cost_ratio.value:.2f} of the first"
    return (
        f'<div class="card" style="border-color:{colour}"><span class="soft">{escape(result.policy)}{ratio}</span>'
        f"<b>{format_usd(round(result.cost_uusd.value))}</b>"
        f'<span class="soft">mean wait {format_duration(result.wait_mean_s.value)}{missed if result.deadlines else ""}'
        "</span></div>"
    )


def _chart(name: str, pick: Callable[[Result], Figure], text: Callable[[float], str], results: Sequence[Result]) -> str:
    """A bar for each policy, from nothing on; its interval as a whisker."""
    most = max(pick(result).high or pick(result).value for result in results) or 1.0
    room = _WIDTH - 200
    rows = []
    for number, (result, colour) in enumerate(zip(results, itertools.cycle(COLOURS), strict=False)):
        figure, top = pick(result), number * _ROW
        long = max(figure.value / most * room, 1.0)
        rows.append(
            f'<text x="0" y="{top + 21}">{escape(result.policy)}</text>'
            f'<rect x="84" y="{top + 6}" width="{long:.1f}" height="22" rx="4" fill="{colour}" opacity="0.9"/>'
            + _whisker(figure, most, room, top)
            + f'<text x="{84 + max(long, (figure.high or 0.0) / most * room) + 8:.1f}" y="{top + 21}">'
            f"{text(figure.value)}</text>"
        )
    height = len(results) * _ROW
    return (
        f'<div class="chart"><h3>{escape(name)}</h3>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="100%" role="img">{"".join(rows)}</svg></div>'
    )


def _whisker(figure: Figure, most: float, room: int, top: int) -> str:
    if figure.low is None or figure.high is None:
        return ""
    low, high = (84 + max(value, 0.0) / most * room for value in (figure.low, figure.high))
    ends = "".join(
        f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 12}" y2="{top + 22}"/>' for x in (low, high)
    )
    return f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{top + 17}" y2="{top + 17}"/>{ends}'


def _lines(results: Sequence[Result]) -> str:
    width, height = _LINES
    paid = [list(itertools.accumulate((0, *result.cost_by_window_uusd))) for result in results]
    longest = max(max(len(each) for each in paid) - 1, 1)
    most = nice_top(max(max(each) for each in paid) / 1e6) * 1e6
    drawn = ""
    for part in (0.25, 0.5, 0.75, 1.0):
        y = height - part * (height - 20)
        drawn += f'<line class="rule" x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        drawn += f'<text class="soft" x="0" y="{y - 4:.1f}">{format_usd(round(most * part))}</text>'
    for each, colour in zip(paid, itertools.cycle(COLOURS), strict=False):
        points = " ".join(
            f"{place / longest * width:.1f},{height - uusd / most * (height - 20):.1f}"
            for place, uusd in enumerate(each)
        )
        drawn += f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
    days = longest * results[0].window_s / 86400.0
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        drawn += (
            f'<text class="soft" x="{part * width}" y="{height + 16}" text-anchor="{anchor}">'
            f"day {days * part:.3g}</text>"
        )
    names = "".join(
        f'<span><i style="background:{colour}"></i>{escape(result.policy)}</span>'
        for result, colour in zip(results, itertools.cycle(COLOURS), strict=False)
    )
    return (
        f'<div class="wide"><svg viewBox="0 0 {width} {height + 22}" width="100%" role="img">{drawn}</svg></div>'
        f'<div class="legend">{names}</div>'
    )


def _table(results: Sequence[Result]) -> str:
    head = "".join(f"<th>{escape(result.policy)}</th>" for result in results)
    rows = ""
    for name, pick, text in FIGURES:
        if _is_drawn(name, results):
            cells = "".join(f"<td>{_cell(pick(result), text)}</td>" for result in results)
            rows += f"<tr><td>{escape(name)}</td>{cells}</tr>"
    for name, plain in PLAIN:
        rows += f"<tr><td>{escape(name)}</td>{''.join(f'<td>{plain(result)}</td>' for result in results)}</tr>"
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>'


def _cell(figure: Figure, text: Callable[[float], str]) -> str:
    if figure.low is None or figure.high is None:
        return text(figure.value)
    return f"{text(figure.value)}<small>{text(figure.low)} to {text(figure.high)}</small>"
