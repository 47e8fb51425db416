"""What the forecasts want at the moment, and what one node more or less is worth. Pure.

Stands between the forecasts on the view and the two policies that heed them: ahead.py buys for them, idle.py keeps what
they want. Keeping is worth more than buying, since a node that is let go must be booted again, and paid while it boots:
so what was bought ahead is not let go at the next tick.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.forecast import ForecastBook, NodeEconomics, Outlook, SeriesKey, level_worth_having
from tradewind.autoscaler.view import LoopSettings, View


def new_book(settings: LoopSettings) -> ForecastBook:
    """A forecast is up to one step old when it is used, and must still reach as far as a boot."""
    return ForecastBook(
        settings.forecast_step_s, (settings.usual_boot_s, settings.usual_boot_s + settings.forecast_step_s)
    )


def outlooks_of(view: View) -> Iterator[tuple[SeriesKey, Outlook]]:
    """Of each series, where the demand is when a node that is asked for now has booted."""
    for key, forecast in sorted(view.forecasts.items()) if view.settings.buy_ahead else ():
        outlook = forecast.at(view.settings.usual_boot_s + forecast.age_s)
        if outlook is not None and outlook.has_interval and key.shape.resources:
            yield key, outlook


def economics_of(settings: LoopSettings, per_node: int, price_uusd_per_h: int) -> NodeEconomics:
    """A node that turns out not to be needed is kept for one step of the forecast: then it is asked again."""
    return NodeEconomics(
        per_node=per_node,
        boot_s=settings.usual_boot_s,
        idle_s=max(settings.forecast_step_s, settings.min_node_life_s),
        price_uusd_per_h=price_uusd_per_h,
        waiting_uusd_per_h=round(settings.waiting_factor * price_uusd_per_h),
    )


def kept_for_later(view: View) -> list[Need]:
    """Demand beyond the present for which nodes that are there should stay. The price of a node cancels out."""
    settings, unit = view.settings, 1_000_000
    buying = economics_of(settings, 1, unit)
    keeping = NodeEconomics(1, buying.boot_s, buying.idle_s, unit, buying.waiting_uusd_per_h + unit)
    found = []
    for key, outlook in outlooks_of(view):
        more = math.ceil(level_worth_having(outlook, keeping) - view.wanted.get(key, 0.0) - 1e-6)
        if more > 0:
            found.append(Need(key.shape, more, f"forecast of {key.tenant}"))
    return found
