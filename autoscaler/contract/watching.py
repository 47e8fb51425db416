"""From what the log tells of spot markets (sightings.py) to what is believed of those of one job (odds.py). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tradewind.autoscaler.contract.odds import Sightings, Watch
from tradewind.autoscaler.sightings import Spells


def watch_of(keys: Iterable[str], spells: Mapping[str, Spells], now_s: float) -> Watch:
    """What is believed of these markets together. There is none anywhere only where all are known to have none."""
    watch = Watch(list(keys))
    known: dict[str, bool | None] = dict.fromkeys(watch.markets)
    for at_s, key, state in _told(known, spells, now_s):
        known[key] = state
        _look(watch.markets[key], at_s, state)
        any_up = any(known.values())
        _look(watch.any, at_s, True if any_up else None if None in known.values() else False)
    return watch


def _told(keys: Iterable[str], spells: Mapping[str, Spells], now_s: float) -> list[tuple[float, str, bool | None]]:
    """All changes in order of time. A market where a node of ours runs has some until now; one that refused has been
    known to have none until it was last asked."""
    found: list[tuple[float, str, bool | None]] = []
    for key in keys:
        if (mine := spells.get(key)) is not None and mine.changes:
            found += [(at_s, key, state) for at_s, state in list(mine.changes)]
            found.append((now_s if mine.state and mine.running else mine.seen_s, key, mine.state))
    return sorted(found, key=lambda row: row[0])


def _look(market: Sightings, at_s: float, state: bool | None) -> None:
    if state is not None:
        market.see(at_s, state)
    elif market.is_up is not None:
        market.see(at_s, market.is_up)
        market.is_up, market.since_s = None, float("-inf")
