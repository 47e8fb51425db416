"""From what the log tells of spot markets (sightings.py, quotes.py) to what is believed of those of one job (odds.py).
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tradewind.autoscaler.contract.odds import Sightings, Watch
from tradewind.autoscaler.quotes import Quotes
from tradewind.autoscaler.sightings import Spells

_TOLD_S = 30 * 86400.0  # what is older has faded


class _Told(NamedTuple):
    """That there were machines in a market, or none, or that nothing is known any more; or a price of it."""

    at_s: float
    key: str
    state: bool | None = None
    price: int | None = None


def watch_of(keys: Iterable[str], spells: Mapping[str, Spells], prices: Quotes, now_s: float) -> Watch:
    """What is believed of these markets together. There is none anywhere only where all are known to have none."""
    watch = Watch(list(keys))
    known: dict[str, bool | None] = dict.fromkeys(watch.markets)
    until_s = {key: _known_until_s(spells[key], now_s) if key in spells else now_s for key in known}
    for told in _told(known, spells, prices, now_s):
        if told.price is not None:
            is_known, are_known = told.at_s <= until_s[told.key], told.at_s <= max(until_s.values())
            watch.priced(told.at_s, told.key, told.price, is_known, are_known)
            continue
        known[told.key] = told.state
        _look(watch.markets[told.key], told.at_s, told.state)
        any_up = any(known.values())
        _look(watch.any, told.at_s, True if any_up else None if None in known.values() else False)
    for each in (*watch.markets.values(), watch.any):
        each.price.advance(now_s)  # what was unusual then may be usual by now
    return watch


def _told(keys: Iterable[str], spells: Mapping[str, Spells], prices: Quotes, now_s: float) -> list[_Told]:
    """All changes in order of time. A market where a node of ours runs has some until now; one that refused has been
    known to have none until it was last asked. A price that came later says nothing of it."""
    found: list[_Told] = []
    since_s = now_s - _TOLD_S
    for key in keys:
        found += [
            _Told(at_s, key, price=price)
            for at_s, price in prices.get(key, ())
            if since_s <= at_s <= now_s and price > 0
        ]
        if (mine := spells.get(key)) is not None and mine.changes:
            found += [_Told(max(at_s, since_s), key, state) for at_s, state in _recent(list(mine.changes), since_s)]
            found.append(_Told(_known_until_s(mine, now_s), key, mine.state))
    return sorted(found, key=lambda told: told.at_s)


def _recent(changes: list[tuple[float, bool | None]], since_s: float) -> list[tuple[float, bool | None]]:
    """Those since then, and the one that held then."""
    before = sum(at_s <= since_s for at_s, _ in changes)
    return changes[max(before - 1, 0) :]


def _known_until_s(spells: Spells, now_s: float) -> float:
    return now_s if spells.state and spells.running else spells.seen_s


def _look(market: Sightings, at_s: float, state: bool | None) -> None:
    if state is not None:
        market.see(at_s, state)
    elif market.is_up is not None:
        market.see(at_s, market.is_up)
        market.is_up, market.since_s = None, float("-inf")
