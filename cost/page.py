"""The cost of a fleet as one HTML page with charts, which needs no network: to be mailed, kept, printed. Pure text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from tradewind.cost.figures import Line, Summary
from tradewind.cost.labels import Label
from tradewind.units import format_usd

# Work is green, what a loss costs is red, what a change costs is amber, what stands around is grey.
COLOURS: Mapping[Label, str] = {
    Label.USEFUL: "#2e9e6b",
    Label.RECOMPUTED: "#d64545",
    Label.STARTING: "#5b8def",
    Label.RESTARTING: "#f08a8a",
    Label.RESIZING: "#e8b339",
    Label.CHECKPOINTING: "#8f6bd1",
    Label.ENDING: "#9ec5e8",
    Label.UNMEASURED: "#c9a27c",
    Label.BOOTING: "#7f8b99",
    Label.QUEUED: "#a9b4c0",
    Label.PLATFORM: "#3f8fa3",
    Label.IDLE: "#cfd6de",
    Label.FAILED: "#4b5563",
}
_MOST_ROWS = 25
_CHART = (920, 220)  # width and height of the chart of days
_WIDE_ENOUGH = 45.0  # of a column: its amount fits above it

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #66717f; --line: #e3e7ec; --paper: #fff; --card: #f7f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8ecf1; --soft: #97a3b1; --line: #2c3541; --paper: #12171e; --card: #1a212b } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 980px; padding: 32px 20px }
h1 { font-size: 26px; margin: 0 } h2 { font-size: 17px; margin: 36px 0 10px }
p, .soft { color: var(--soft) } p { margin: 4px 0 }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px; margin: 22px 0 }
.card { background: var(--card); border-radius: 10px; padding: 12px 16px }
.card b { display: block; font-size: 18px; font-variant-numeric: tabular-nums }
.bar { display: flex; height: 26px; border-radius: 6px; overflow: hidden } .bar i { display: block }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0; font-size: 13px }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px }
.scroll { overflow-x: auto } .scroll svg { min-width: 640px; display: block }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px }
th, td { text-align: right; padding: 6px 8px; border-bottom: 1px solid var(--line); white-space: nowrap }
th { color: var(--soft); font-weight: 500 }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 130px; padding-left: 0 }
td .bar { height: 8px; min-width: 110px; border-radius: 4px } tr:last-child td { font-weight: 600; border: 0 }
svg text { fill: var(--soft); font-size: 12px } .simulated { color: #b7791f; font-weight: 600 }
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows: the same cost, added up in several ways."""

    fleet: str
    days: Summary
    tenants: Summary
    jobs: Summary
    markets: Summary
    rate_uusd_per_h: int = 0  # now


def render_page(report: Report) -> str:
    total, simulated = report.days.total, report.days.simulated
    note = '<p class="simulated">Simulated: nothing is billed.</p>' if simulated else ""
    made = datetime.fromtimestamp(report.days.until_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [
        f"<h1>Cost of {escape(report.fleet)}</h1><p>up to {made}</p>{note}",
        _cards(report),
        "<h2>What the money bought</h2>" + _bar(total) + _legend(total),
        "<h2>Day by day</h2>" + _day_chart(report.days.lines),
        _table("Tenants", report.tenants),
        _table("Jobs", report.jobs),
        _table("Markets", report.markets),
    ]
    title = f"Cost of {escape(report.fleet)}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = "".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}<style>{_STYLE}</style></head><body>{body}</body></html>\n'


def _cards(report: Report) -> str:
    total = report.days.total
    cards = [
        ("paid", format_usd(total.cost_uusd)),
        ("now, per hour", format_usd(report.rate_uusd_per_h)),
        ("per accelerator-hour", _maybe(total.paid_uusd_per_accelerator_h)),
        ("per useful accelerator-hour", _maybe(total.effective_uusd_per_accelerator_h)),
        ("saved against on-demand", _saved(total)),
        ("of it for useful steps", _percent(total.labels_uusd.get(Label.USEFUL, 0), total.cost_uusd)),
    ]
    if total.utilisation:
        use = total.utilisation
        told = f"{use.allocated:.0%} / {use.busy:.0%} / {use.useful:.0%}"
        cards.append(("time allocated / busy / useful", told))
    shown = "".join(f'<div class="card"><span class="soft">{name}</span><b>{text}</b></div>' for name, text in cards)
    return f'<div class="cards">{shown}</div>'


def _bar(line: Line) -> str:
    """The labels of a line as one bar."""
    pieces = "".join(
        f'<i style="width:{100 * cost / line.cost_uusd:.3f}%;background:{COLOURS[label]}"'
        f' title="{label}: {format_usd(cost)}"></i>'
        for label, cost in _in_order(line)
    )
    return f'<div class="bar">{pieces}</div>'


def _legend(line: Line) -> str:
    entries = "".join(
        f'<span><i style="background:{COLOURS[label]}"></i>{label} {format_usd(cost)}'
        f' <span class="soft">{_percent(cost, line.cost_uusd)}</span></span>'
        for label, cost in _in_order(line)
    )
    return f'<div class="legend">{entries}</div>'


def _in_order(line: Line) -> list[tuple[Label, int]]:
    return [(label, line.labels_uusd[label]) for label in COLOURS if line.labels_uusd.get(label)]


def _day_chart(days: Sequence[Line]) -> str:
    """Stacked columns, a day each; at most the last 62 days."""
    shown = days[-62:]
    if not shown:
        return "<p>Nothing was billed yet.</p>"
    width, height = _CHART
    most_uusd = max(line.cost_uusd for line in shown) or 1
    step = width / len(shown)
    drawn = "".join(_column(line, i * step, min(step * 0.8, 60.0), height, most_uusd) for i, line in enumerate(shown))
    every = max(1, len(shown) // 8)
    names = "".join(
        f'<text x="{i * step:.1f}" y="{height + 16}">{line.name[5:]}</text>'
        for i, line in enumerate(shown)
        if i % every == 0
    )
    drawing = f'<svg viewBox="0 0 {width} {height + 22}" width="100%" role="img">{drawn}{names}</svg>'
    return f'<div class="scroll">{drawing}</div>'


def _column(line: Line, x: float, width: float, height: int, most_uusd: int) -> str:
    found, bottom = [], float(height)
    for label, cost in _in_order(line):
        tall = cost / most_uusd * (height - 18)
        bottom -= tall
        found.append(
            f'<rect x="{x:.1f}" y="{bottom:.2f}" width="{width:.1f}" height="{tall:.2f}" fill="{COLOURS[label]}">'
            f"<title>{line.name}, {label}: {format_usd(cost)}</title></rect>"
        )
    # Few columns each tell their amount; of many, only the highest.
    if width > _WIDE_ENOUGH or line.cost_uusd == most_uusd:
        found.append(f'<text x="{x:.1f}" y="{bottom - 5:.2f}">{format_usd(line.cost_uusd)}</text>')
    return "".join(found)


def _table(title: str, summary: Summary) -> str:
    shown, rest = summary.lines[:_MOST_ROWS], summary.lines[_MOST_ROWS:]
    rows = "".join(_row(line, summary.total) for line in shown)
    if rest:
        rest_uusd = format_usd(sum(line.cost_uusd for line in rest))
        rows += f'<tr><td class="soft">and {len(rest)} more</td><td>{rest_uusd}</td><td colspan="6"></td></tr>'
    heads = (
        _HEADS.get(summary.by, summary.by),
        "cost",
        "share",
        "acc-hours",
        "per acc-hour",
        "per useful",
        "saved",
        "labels",
    )
    head = "".join(f"<th>{name}</th>" for name in heads)
    table = f"<table><tr>{head}</tr>{rows}{_row(summary.total, summary.total)}</table>"
    return f'<h2>{title}</h2><div class="scroll">{table}</div>'


_HEADS = {"team": "tenant / team"}


def _row(line: Line, total: Line) -> str:
    cells: Iterable[str] = (
        escape(line.name).replace("/", "/<wbr>"),
        format_usd(line.cost_uusd) + (" + unpriced" if line.unpriced_s else ""),
        _percent(line.cost_uusd, total.cost_uusd),
        _hours(line.accelerator_hours),
        _maybe(line.paid_uusd_per_accelerator_h),
        _maybe(line.effective_uusd_per_accelerator_h),
        _saved(line),
        _bar(line),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 or not hours else f"{hours:.3g}"


def _saved(line: Line) -> str:
    if line.saved_uusd is None or not line.on_demand_uusd:
        return "-"
    return f"{format_usd(line.saved_uusd)} ({_percent(line.saved_uusd, line.on_demand_uusd)})"


def _maybe(amount_uusd: int | None) -> str:
    return "-" if amount_uusd is None else format_usd(amount_uusd)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
