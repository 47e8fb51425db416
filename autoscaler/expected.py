"""What the forecasts want at the moment, and what one node more or less is worth. Pure.

Stands between the forecasts on the view and the two policies that heed them: ahead.py buys for them, idle.py keeps what
they want. Keeping is worth more than buying, since a node that is let go must be booted again, and paid while it boots:
so what was bought ahead is not let go at the next tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.forecast import GrowthBook, NodeEconomics, Outlook, SeriesKey, prewarm
from tradewind.autoscaler.forecast.forecaster import FEWEST_ERRORS
from tradewind.autoscaler.forecast.growth import LOOKS
from tradewind.autoscaler.packing_rooms import ANY_NUMBER
from tradewind.autoscaler.view import LoopSettings, View


def step_s_of(settings: LoopSettings) -> float:
    """Of the forecast that nodes are bought by."""
    return max(settings.forecast_step_s, settings.usual_boot_s)


def look_s_of(settings: LoopSettings) -> float:
    """Between two looks at a series: what comes and goes in less is seen by a running loop alone."""
    return step_s_of(settings) / LOOKS


def new_book(settings: LoopSettings) -> GrowthBook:
    return GrowthBook(step_s_of(settings))


def history_needed_s(settings: LoopSettings) -> float:
    """How long a series must have been seen before anything is bought ahead for it."""
    return (FEWEST_ERRORS + 1) * step_s_of(settings)


def outlooks_of(view: View) -> Iterator[tuple[SeriesKey, Outlook]]:
    """Of each series, the most that will be wanted until a node that is asked for now has booted."""
    for key, forecast in sorted(view.forecasts.items()) if view.settings.buy_ahead else ():
        outlook = forecast.at(view.settings.usual_boot_s + forecast.age_s)
        if outlook is not None and outlook.has_interval and key.shape.resources:
            yield key, outlook


def economics_of(settings: LoopSettings, per_node: int, price_uusd_per_h: int) -> NodeEconomics:
    """A node that turns out not to be needed is kept for one step of the forecast: then it is asked again."""
    return NodeEconomics(
        per_node=per_node,
        boot_s=settings.usual_boot_s,
        idle_s=max(settings.forecast_step_s, settings.usual_boot_s, settings.min_node_life_s),
        price_uusd_per_h=price_uusd_per_h,
        waiting_uusd_per_h=round(settings.waiting_factor * price_uusd_per_h),
    )


def spare_timeout_s(settings: LoopSettings) -> float:
    """For how long a node stays idle that the forecast does not keep. To wait for longer, in case it is wanted after
    all, costs more than it spares (docs/designs/simulate.md)."""
    return look_s_of(settings) if settings.spare_timeout_s is None else settings.spare_timeout_s


def kept_for_later(view: View) -> list[Need]:
    """Demand beyond the present for which nodes that are there should stay: by the same reckoning as buying, for each
    request by itself. The price of a node cancels out."""
    price = 1_000_000
    buying = economics_of(view.settings, 1, price)
    keeping = replace(buying, waiting_uusd_per_h=buying.waiting_uusd_per_h + price)
    found = []
    for key, outlook in outlooks_of(view):
        more = prewarm(outlook, view.wanted.get(key, 0.0), keeping, ANY_NUMBER).nodes
        if more:
            found.append(Need(key.shape, more, f"forecast of {key.tenant}"))
    return found
