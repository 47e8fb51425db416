"""What will be asked for: demand as quantiles over the launch horizon, chosen and calibrated per series."""

from tradewind.autoscaler.forecast.book import ForecastBook
from tradewind.autoscaler.forecast.buy_ahead import NodeEconomics, Prewarm, level_worth_having, prewarm
from tradewind.autoscaler.forecast.forecaster import Forecaster
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import Sampler, SeriesKey, Step, Steps, series_of_events, series_of_jobs

__all__ = [
    "Forecast",
    "ForecastBook",
    "Forecaster",
    "NodeEconomics",
    "Outlook",
    "Prewarm",
    "Sampler",
    "SeriesKey",
    "Step",
    "Steps",
    "level_worth_having",
    "prewarm",
    "series_of_events",
    "series_of_jobs",
]
