"""What will be asked for: demand as quantiles over the launch horizon, chosen and calibrated per series."""

from tradewind.autoscaler.forecast.backtest import Backtest, Said, history_for_interval_s
from tradewind.autoscaler.forecast.buy_ahead import NodeEconomics, Prewarm, prewarm
from tradewind.autoscaler.forecast.forecaster import Forecaster
from tradewind.autoscaler.forecast.growth import Growth, GrowthBook
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import (
    DemandFold,
    Sampler,
    SeriesKey,
    Span,
    Step,
    Steps,
    levels_of_spans,
    series_of_jobs,
    series_of_spans,
    spans_of_events,
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
    "Prewarm",
    "Said",
    "Sampler",
    "SeriesKey",
    "Span",
    "Step",
    "Steps",
    "history_for_interval_s",
    "levels_of_spans",
    "prewarm",
    "series_of_jobs",
    "series_of_spans",
    "spans_of_events",
    "unit_of",
]
