"""What will be asked for: demand as quantiles over the launch horizon, chosen and calibrated per series."""

from tradewind.autoscaler.forecast.backtest import Backtest, Said, history_for_interval_s
from tradewind.autoscaler.forecast.buy_ahead import NodeEconomics, Prewarm, prewarm
from tradewind.autoscaler.forecast.demand_log import (
    DemandFold,
    Part,
    Told,
    asked_of,
    key_of,
    part_of,
    spans_of_events,
    stated_by,
    states_workers,
    told_after,
    total_of,
)
from tradewind.autoscaler.forecast.forecaster import Forecaster
from tradewind.autoscaler.forecast.growth import Growth, GrowthBook
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import (
    Sampler,
    SeriesKey,
    Span,
    Step,
    Steps,
    levels_of_spans,
    series_of_jobs,
    series_of_spans,
    unit_of,
)

__all__ = [
    "Backtest",
    "DemandFold",
    "Forecast",
    "Forecaster",
    "Growth",
    "GrowthBook",
    "NodeEconomics",
    "Outlook",
    "Part",
    "Prewarm",
    "Said",
    "Sampler",
    "SeriesKey",
    "Span",
    "Step",
    "Steps",
    "Told",
    "asked_of",
    "history_for_interval_s",
    "key_of",
    "levels_of_spans",
    "part_of",
    "prewarm",
    "series_of_jobs",
    "series_of_spans",
    "spans_of_events",
    "stated_by",
    "states_workers",
    "told_after",
    "total_of",
    "unit_of",
]
