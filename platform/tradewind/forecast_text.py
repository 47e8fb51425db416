"""A ForecastReport as text: a chart for each series, then the figures. Pure; fits the width, coloured only when told.

Left of the now-line lies the past, with what had been forecast for it shaded; right of it what is expected. Both have
one time scale, unless one of them would be too narrow to read (two hours beside a week): then each has its own, the
now-line is a double one, and the legend tells how long a column is on either side.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, tzinfo

from tradewind.api import ForecastPoint, ForecastReport, HorizonForecast, SeriesForecast
from tradewind.chart import SHADE, Canvas, column_of, nice_top, with_labels
from tradewind.render import WIDTH, table
from tradewind.units import format_duration

ROWS = 9
NARROWEST = 56
SHARE_OF_PAST = 0.7  # of the width, where past and forecast have scales of their own
_LEAST = 7  # columns that past and forecast must have to be read
_FEW = 70  # columns, in which not all figures have room
_NOW = ("┊", "─"), ("║", "╨")  # the now-line and its foot, on one scale and between two
_DEMAND, _MEDIAN, _DIM = "\x1b[1;36m", "\x1b[1;33m", "\x1b[2m"
_SAID, _EXPECTED = "\x1b[2;34m", "\x1b[34m"
_RESET = "\x1b[0m"
_TICKS_H = (1 / 12, 1 / 6, 1 / 4, 1 / 2, 1, 2, 3, 4, 6, 12, 24, 48)
_PARTS = 3  # of a mixed model that are named
_ROOM = 12  # columns for one time on the axis


def forecast_text(
    report: ForecastReport, width: int = WIDTH, *, coloured: bool = False, zone: tzinfo | None = None
) -> str:
    """`zone` is where the reader lives; None: as this machine is set."""
    parts = [_series_text(each, report, max(width, NARROWEST), coloured, zone) for each in report.series]
    if report.others:
        names = "; ".join(report.others[:3]) + (f" and {len(report.others) - 3} more" if len(report.others) > 3 else "")
        parts.append(f"Not shown: {names}. Name a tenant or a shape to see it.")
    return "\n\n".join([*parts, *(_wrapped("", note, max(width, NARROWEST)) for note in report.notes)])


def _series_text(
    series: SeriesForecast, report: ForecastReport, width: int, coloured: bool, zone: tzinfo | None
) -> str:
    head = f"{series.tenant}: {series.shape}, {series.now:g} wanted now"
    below = [*_figures(series, zone, width), *_remarks(series, report, width)]
    return "\n".join([head, "", *_chart(series, report, width, coloured, zone), "", *below])


# --- the chart -----------------------------------------------------------------------------------------------------


def _chart(
    series: SeriesForecast, report: ForecastReport, width: int, coloured: bool, zone: tzinfo | None
) -> list[str]:
    points = [each.point for each in series.ahead]
    amounts = [point.amount for point in series.history] + [point.p90 for point in (*points, *series.said)]
    top = nice_top(max(amounts, default=1.0))
    label_width = max(len(f"{amount:g}") for amount in (top, top / 2)) + 1
    canvas = Canvas(width - label_width - 2, ROWS if width < 110 else ROWS + 3, top)
    scale = _Scale(series, report, points, canvas.columns)
    _draw(canvas, series, scale, points)
    labels = {0: f"{top:g}", canvas.rows // 2: f"{top / 2:g}", canvas.rows - 1: "0"}
    lines = [
        f"{labels.get(row, ''):>{label_width}} {'┤' if row in labels else '│'}{line}"
        for row, line in enumerate(canvas.lines(coloured))
    ]
    pad = " " * (label_width + 2)
    return [
        *(line.rstrip() for line in lines),
        f"{pad[:-1]}└{_foot(scale, canvas.columns)}",
        pad + with_labels(list(scale.labels(canvas.columns, zone)), canvas.columns),
        *(pad + line for line in _legend(series, scale, canvas.columns, coloured)),
    ]


def _foot(scale: _Scale, columns: int) -> str:
    place = column_of(scale.share, columns)
    return "─" * place + _NOW[scale.is_broken][1] + "─" * (columns - place - 1)


class _Scale:
    """Time -> a place between 0 and 1. The past takes its share of the time, and so of the width, the forecast the
    rest; where that leaves one of them too little, the shares are fixed, and the scale is broken at the now-line."""

    def __init__(
        self, series: SeriesForecast, report: ForecastReport, ahead: Sequence[ForecastPoint], columns: int
    ) -> None:
        self.now_s = report.made_at_s
        first_s = series.history[0].at_s if series.history else self.now_s
        self.past_s = min(max(self.now_s - first_s, 60.0), report.hours * 3600.0)
        self.ahead_s = max((point.at_s - self.now_s for point in ahead), default=0.0)
        fair = self.past_s / (self.past_s + self.ahead_s)
        self.is_broken = self.ahead_s > 0 and min(fair, 1.0 - fair) * columns < _LEAST
        self.share = SHARE_OF_PAST if self.is_broken else min(fair, 0.97)

    def x(self, at_s: float) -> float:
        if at_s <= self.now_s:
            return max(self.share * (1.0 - (self.now_s - at_s) / self.past_s), 0.0)
        return self.share + (1.0 - self.share) * (at_s - self.now_s) / max(self.ahead_s, 1.0)

    def columns_s(self, columns: int) -> tuple[float, float]:
        """What one column stands for, before and after now."""
        return self.past_s / (self.share * columns), self.ahead_s / ((1.0 - self.share) * columns)

    def labels(self, columns: int, zone: tzinfo | None) -> Iterator[tuple[float, str]]:
        yield self.share, "now"
        for hours in (2.0, 1.0, 0.5):
            if self.ahead_s and hours * 3600.0 <= self.ahead_s + 900.0:
                yield min(self.x(self.now_s + hours * 3600.0), 1.0), f"+{format_ahead(hours * 3600.0)}"
        room = max(int(self.share * columns / _ROOM), 1)
        tick_h = next((each for each in _TICKS_H if self.past_s / 3600.0 / each <= room), 168.0)
        for moment in _round_times(self.now_s - self.past_s, self.now_s, tick_h, zone):
            is_long = self.past_s > 86400.0
            yield self.x(moment.timestamp()), f"{moment:%a %H:%M}" if is_long else f"{moment:%H:%M}"


def _round_times(since_s: float, until_s: float, every_h: float, zone: tzinfo | None) -> Iterator[datetime]:
    """Multiples of `every_h` from local midnight on."""
    first = datetime.fromtimestamp(since_s, zone)
    at = first.replace(hour=0, minute=0, second=0, microsecond=0)
    while at.timestamp() <= until_s:
        if at.timestamp() >= since_s:
            yield at
        at += timedelta(hours=every_h)


def _draw(canvas: Canvas, series: SeriesForecast, scale: _Scale, ahead: Sequence[ForecastPoint]) -> None:
    """What had been said first, then what is expected, and the demand above both."""
    said = [(scale.x(point.at_s), point) for point in series.said]
    canvas.band([(x, p.p10) for x, p in said], [(x, p.p90) for x, p in said], _SAID)
    now = ForecastPoint(at_s=scale.now_s, p10=series.now, p50=series.now, p90=series.now)
    fan = [(scale.x(point.at_s), point) for point in (now, *ahead)] if ahead else []
    canvas.band([(x, p.p10) for x, p in fan], [(x, p.p90) for x, p in fan], _EXPECTED)
    canvas.rule(scale.share, _DIM, _NOW[scale.is_broken][0])
    canvas.line([(x, p.p50) for x, p in fan], _MEDIAN, dotted=True)
    canvas.line([(scale.x(point.at_s), point.amount) for point in series.history], _DEMAND)


def _legend(series: SeriesForecast, scale: _Scale, columns: int, coloured: bool) -> list[str]:
    if not series.ahead:
        return []
    known = [(_DEMAND, "⣀⣀", "demand"), (_MEDIAN, "⡀⡀", "median")]
    if any(each.has_interval for each in series.ahead):
        known.append((_EXPECTED, SHADE * 2, "10 to 90 %"))
    marks = "  ".join(f"{style}{mark}{_RESET} {text}" if coloured else f"{mark} {text}" for style, mark, text in known)
    taken = sum(len(mark) + len(text) + 3 for _, mark, text in known)
    said = f"left of now: as said {format_ahead(series.said_ahead_s)} before" if series.said else ""
    first, *more = [f"{marks}  {said}".rstrip()] if taken + len(said) <= columns else [marks, said]
    return [first, *more, *_broken(scale, columns)]


def _broken(scale: _Scale, columns: int) -> list[str]:
    before, after = (format_duration(column_s) for column_s in scale.columns_s(columns))
    told = f"two time scales: a column is {before} before now, {after} after"
    return textwrap.wrap(told, columns) if scale.is_broken else []


# --- the figures ---------------------------------------------------------------------------------------------------

_HEADS = ("IN", "AT", ">P10", ">P50", ">P90", ">WAPE", ">PERSISTENCE", ">GAIN", ">P90 HELD", ">OF")
_WIDE = _HEADS.index(">PERSISTENCE")  # left out first: the gain is over it


def _figures(series: SeriesForecast, zone: tzinfo | None, width: int) -> list[str]:
    rows = [_HEADS, *(_row(each, zone) for each in series.ahead)]
    if width < _FEW:
        rows = [(*row[:_WIDE], *row[_WIDE + 1 :]) for row in rows]
    return table(rows[0], rows[1:], width).split("\n") if series.ahead else []


def _row(each: HorizonForecast, zone: tzinfo | None) -> tuple[str, ...]:
    point = each.point
    low, high = (_amount(value) if each.has_interval else "-" for value in (point.p10, point.p90))
    gain = 1.0 - each.wape / each.persistence_wape if each.wape is not None and each.persistence_wape else None
    return (
        format_ahead(each.ahead_s),
        f"{datetime.fromtimestamp(point.at_s, zone):%H:%M}",
        low,
        _amount(point.p50),
        high,
        _percent(each.wape),
        _percent(each.persistence_wape),
        _percent(gain),
        _percent(each.covered_p90) if each.has_interval else "-",
        str(each.scored),
    )


def format_ahead(ahead_s: float) -> str:
    return f"{ahead_s / 3600:g}h" if ahead_s >= 3600 else f"{ahead_s / 60:g}m"


def _amount(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if value < 100 else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}".replace("-0.0%", "0.0%")


def _remarks(series: SeriesForecast, report: ForecastReport, width: int) -> list[str]:
    found = [("Model", f"{ahead} ahead: {model}; {reason}") for ahead, model, reason in _models(series.ahead)]
    if not found:
        seen = format_duration(max(report.made_at_s - series.since_s, 0.0))
        found = [("Model", f"no quantiles yet: {seen} of history, {format_ahead(series.needed_s)} are needed")]
    return [_wrapped(f"{name}: ", text, width) for name, text in (*found, ("Used for buying", series.use))]


def _models(ahead: Sequence[HorizonForecast]) -> Iterator[tuple[str, str, str]]:
    """Horizons with the same model and reason together."""
    known = [each for each in ahead if each.has_interval]
    for model, reason in dict.fromkeys((each.model, each.reason) for each in known):
        same = [each for each in known if (each.model, each.reason) == (model, reason)]
        parts = model.split(" + ")
        shown = " + ".join(parts[:_PARTS]) + (" + others" if len(parts) > _PARTS else "")
        yield ", ".join(format_ahead(each.ahead_s) for each in same), shown, reason.removeprefix(f"{model}: ")


def _wrapped(lead: str, text: str, width: int) -> str:
    return textwrap.fill(text, width, initial_indent=lead, subsequent_indent="  ", break_on_hyphens=False)
