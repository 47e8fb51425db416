"""Which prices were seen lately, by market: a price that has just moved is not yet believed. Pure.

Kept by the loop and handed to the view. Every price that is new is on record, so a new start knows since when a market
has had the price that it has now. Whether it had another one while nobody looked is not known: it is taken for steady,
since spot prices change a few times a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tradewind.model import Offer

Quote = tuple[float, int]  # (seen from then on, micro-dollars per hour)
Quotes = Mapping[str, tuple[Quote, ...]]  # by market key, oldest first

QUOTES_KEPT_S = 14 * 86400.0  # on record: what contracts learn of a market by its price (contract/signs.py)
_MOST = 256  # of a market, whatever their age


def note_quotes(known: Quotes, offers: Iterable[Offer], now_s: float, keep_s: float) -> dict[str, tuple[Quote, ...]]:
    """What was seen, with what is seen now. An offer that is missing or has no price begins anew when it is back."""
    found: dict[str, tuple[Quote, ...]] = {}
    for offer in offers:
        price = offer.price_uusd_per_h
        if price is not None:
            key = offer.market.key
            found[key] = with_quote(known.get(key, ()), now_s, price, keep_s)
    return found


def with_quote(quotes: tuple[Quote, ...], at_s: float, price_uusd_per_h: int, keep_s: float) -> tuple[Quote, ...]:
    """With the price that holds from `at_s` on, and those before it that are younger than `keep_s`."""
    if quotes and quotes[-1][1] == price_uusd_per_h:
        return quotes
    return (*_recent(quotes, at_s - keep_s)[1 - _MOST :], (at_s, price_uusd_per_h))


def _recent(quotes: tuple[Quote, ...], since_s: float) -> tuple[Quote, ...]:
    """Those that were still good at `since_s` or came later."""
    last_before = max((number for number, (at_s, _) in enumerate(quotes) if at_s <= since_s), default=0)
    return quotes[last_before:]


def price_range(quotes: tuple[Quote, ...], since_s: float) -> tuple[int, int] | None:
    """(lowest, highest) price from `since_s` until now; None: it was not watched for so long."""
    if not quotes or quotes[0][0] > since_s:
        return None
    prices = [price for _, price in _recent(quotes, since_s)]
    return min(prices), max(prices)
