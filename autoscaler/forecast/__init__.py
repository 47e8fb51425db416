"""What will be asked for: demand as quantiles over the launch horizon, chosen and calibrated per series."""

from tradewind.autoscaler.forecast.book import ForecastBook
from tradewind.autoscaler.forecast.buy_ahead import NodeEconomics, Prewarm, prewarm
from tradewind.autoscaler.forecast.forecaster import Forecaster
from tradewind.autoscaler.forecast.growth import Growth, GrowthBook
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import (
    Sampler,
    SeriesKey,
    Span,
    Step,
    Steps,
    series_of_events,
    series_of_jobs,
    spans_of_events,
    unit_of,
)

__all__ = [
    "Forecast",
    "ForecastBook",
    "Forecaster",
    "Growth",
    "GrowthBook",
    "NodeEconomics",
    "Outlook",
    "Prewarm",
    "Sampler",
    "SeriesKey",
    "Span",
    "Step",
    "Steps",
    "prewarm",
    "series_of_events",
    "series_of_jobs",
    "spans_of_events",
    "unit_of",
]
