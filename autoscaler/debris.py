"""What ended nodes left in the clouds, removed now and then: disks, interfaces, failed machines.

Stands beside the loop like every call to a cloud (beside.py): one look per cloud every few minutes. What is there at
two looks with the grace between them belongs to nobody; what a launch is just making is gone from the list by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from tradewind.autoscaler.beside import Beside
from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.providers.base import Provider
from tradewind.errors import ProviderError

logger = logging.getLogger(__name__)

EVERY_S = 300.0
GRACE_S = 600.0


def first_seen(before: Mapping[str, float], listed: Iterable[str], now_s: float) -> dict[str, float]:
    """Since when each is there. Pure."""
    return {name: before.get(name, now_s) for name in listed}


def ripe(seen: Mapping[str, float], now_s: float, grace_s: float = GRACE_S) -> list[str]:
    return sorted(name for name, since_s in seen.items() if now_s - since_s >= grace_s)


@dataclass
class DebrisWatch:
    """One for a loop; called from its thread alone. `providers` are by name, each once."""

    providers: Mapping[str, Provider]
    clock: Clock
    beside: Beside
    every_s: float = EVERY_S
    grace_s: float = GRACE_S
    _next_s: dict[str, float] = field(default_factory=dict)  # steady; the first look comes after one period
    _seen: dict[str, dict[str, float]] = field(default_factory=dict)
    _calls: dict[str, Future[tuple[list[str], list[str]]]] = field(default_factory=dict)

    def tick(self) -> Iterator[tuple[str, str]]:
        """Takes in what looks have found, begins those that are due: (cloud, name) of what was removed."""
        now_s = self.clock.steady_s()
        for cloud in self.providers:
            call = self._calls.get(cloud)
            if call is not None and call.done():
                del self._calls[cloud]
                yield from ((cloud, name) for name in self._take(cloud, call, now_s))
            elif call is None and now_s >= self._next_s.setdefault(cloud, now_s + self.every_s):
                self._next_s[cloud] = now_s + self.every_s
                old = ripe(self._seen.get(cloud, {}), now_s, self.grace_s)
                self._calls[cloud] = self.beside.submit(f"{cloud}-debris", partial(self._look, cloud, old))

    def _look(self, cloud: str, old: list[str]) -> tuple[list[str], list[str]]:
        """What is there, and what of it was removed: only what was there before, too."""
        provider = self.providers[cloud]
        listed = list(provider.list_debris())
        doomed = [name for name in old if name in set(listed)]
        if doomed:
            provider.delete_debris(doomed)
        return listed, doomed

    def _take(self, cloud: str, call: Future[tuple[list[str], list[str]]], now_s: float) -> list[str]:
        error = None if call.cancelled() else call.exception()
        if call.cancelled() or error is not None:
            known = isinstance(error, ProviderError)
            logger.warning("debris in %s: %s", cloud, error, exc_info=None if known else error)
            return []
        listed, removed = call.result()
        self._seen[cloud] = first_seen(self._seen.get(cloud, {}), set(listed) - set(removed), now_s)
        return removed
