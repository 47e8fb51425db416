"""What will be asked for: demand as quantiles over the launch horizon, chosen and calibrated per series."""

from tradewind.autoscaler.forecast.forecaster import Forecaster
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import Sampler, SeriesKey, Step, Steps, series_of_events, series_of_jobs

__all__ = [
    "Forecast",
    "Forecaster",
    "Outlook",
    "Sampler",
    "SeriesKey",
    "Step",
    "Steps",
    "series_of_events",
    "series_of_jobs",
]
