"""The clouds as the loop sees them: questions that are asked again and again, launches and ends under way.

Calls are made beside the loop (beside.py), each with a deadline; a tick takes in what has arrived. Everything here is
called from the loop's thread, which alone changes the state. docs/designs/calls.md tells what may be concluded when.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tradewind.autoscaler.beside import Beside
from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.providers.base import CloudNode, LaunchSpec, PriceSource, Provider
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.autoscaler.settle import Listing
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import AmbiguousOutcome, InvalidRequest, ProviderError, Transient
from tradewind.model import Offer
from tradewind.units import format_duration

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a launch call."""

    launch_id: str
    error: Exception | None = None  # None: accepted


@dataclass(frozen=True, slots=True)
class _Listed:
    """An answer to the question what is there. Of the regions `blind` it tells nothing."""

    nodes: Sequence[CloudNode]
    blind: frozenset[str] = frozenset()
    wrong: str = ""


@dataclass(slots=True)
class _Call(Generic[T]):
    lane: str
    future: Future[T]
    began_s: float
    until_steady_s: float


class _Calls:
    """Begins calls and tells which have an answer or are overdue."""

    def __init__(self, beside: Beside, clock: Clock) -> None:
        self.beside, self.clock = beside, clock

    def begin(self, lane: str, work: Callable[[], T], deadline_s: float) -> _Call[T]:
        began_s, until_s = self.clock.now_s(), self.clock.steady_s() + deadline_s
        return _Call(lane, self.beside.submit(lane, work), began_s, until_s)

    def is_overdue(self, call: _Call[Any]) -> bool:
        return not call.future.done() and self.clock.steady_s() > call.until_steady_s

    def give_up(self, call: _Call[Any]) -> bool:
        """Whether it had not begun, and so did nothing."""
        if call.future.cancel():
            return True
        self.beside.abandon(call.lane, call.future)
        return False


class _Watch(Generic[T]):
    """One question, asked again and again, one call at a time: the last answer, when it was asked for, and what is
    wrong (empty: nothing)."""

    def __init__(self, lane: str, ask: Callable[[], T], calls: _Calls, deadline_s: float) -> None:
        self._lane, self._ask, self._calls, self._deadline_s = lane, ask, calls, deadline_s
        self._call: _Call[T] | None = None
        self.answer: T | None = None
        self.began_s = 0.0
        self.wrong = "it has not answered yet"

    @property
    def under_way(self) -> list[Future[Any]]:
        return [self._call.future] if self._call is not None else []

    def ask(self) -> None:
        if self._call is None:
            self._call = self._calls.begin(self._lane, self._ask, self._deadline_s)

    def take(self) -> bool:
        """Whether there is a new answer."""
        call = self._call
        if call is None or not (call.future.done() or self._calls.is_overdue(call)):
            return False
        self._call = None
        if not call.future.done():
            self._calls.give_up(call)
            self.wrong = f"no answer within {format_duration(self._deadline_s)}"
            return False
        self.wrong = _trouble(call.future, self._lane)
        if not self.wrong:
            self.answer, self.began_s = call.future.result(), call.began_s
        return not self.wrong


def _trouble(done: Future[Any], what: str) -> str:
    error = None if done.cancelled() else done.exception()
    if isinstance(error, ProviderError):
        return str(error)
    if error is not None:  # a defect in one provider leaves the loop blind there, not dead
        logger.error("%s failed", what, exc_info=error)
        return f"{type(error).__name__}: {error}"
    return "the controller ends" if done.cancelled() else ""


def _merged(known: Mapping[str, CloudNode], listed: _Listed | None) -> dict[str, CloudNode]:
    """What was there before in the regions that did not answer, and all that was answered."""
    if listed is None:
        return dict(known)
    old = {name: node for name, node in known.items() if node.offer.market.region in listed.blind}
    return {**old, **{node.launch_id: node for node in listed.nodes}}


class Clouds:
    """One for a loop. `providers` are by cloud name; one may serve several."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        prices: PriceSource,
        clock: Clock,
        beside: Beside,
        settings: LoopSettings,
    ) -> None:
        self.providers, self._prices, self._clock, self._beside = providers, prices, clock, beside
        self._settings, self._calls = settings, _Calls(beside, clock)
        self._names: dict[int, str] = {}
        for cloud, provider in providers.items():
            self._names.setdefault(id(provider), cloud)
        self._lists = {
            name: _Watch(f"{name}-list", partial(self._list_at, name), self._calls, settings.look_deadline_s)
            for name in self._names.values()
        }
        self._offers = _Watch("prices", self._ask_prices, self._calls, settings.look_deadline_s)
        self._known: dict[str, dict[str, CloudNode]] = {name: {} for name in self._lists}
        self._launches: dict[str, _Call[CloudNode]] = {}
        self._ends: list[tuple[frozenset[str], _Call[None]]] = []

    @property
    def by_name(self) -> Mapping[str, Provider]:
        """Each provider once."""
        return {name: self.providers[name] for name in self._names.values()}

    # --- questions --------------------------------------------------------------------------------------------

    def look(self, wait_s: float) -> tuple[Listing, dict[str, str]]:
        """Ask what is not being asked, wait a moment for answers, and tell what is known: the listing, and by cloud
        what is wrong. Where only some regions answer, the others' nodes are as they were."""
        watches: list[_Watch[Any]] = [*self._lists.values(), self._offers]
        for watch in watches:
            watch.ask()
        while wait_s > 0 and (open_calls := [call for each in watches for call in each.under_way if not call.done()]):
            wait_s -= self._beside.wait(open_calls, wait_s)
        news = {name for name, watch in self._lists.items() if watch.take()}
        for name in news:
            self._known[name] = _merged(self._known[name], self._lists[name].answer)
        deaf = {cloud: watch.wrong for cloud, watch in self._by_cloud() if watch.wrong}
        partly = {cloud: listed for cloud, watch in self._by_cloud() if (listed := watch.answer) and listed.blind}
        blind = frozenset(deaf) | {f"{cloud}/{region}" for cloud, listed in partly.items() for region in listed.blind}
        nodes = {name: node for known in self._known.values() for name, node in known.items()}
        began_s = {cloud: watch.began_s for cloud, watch in self._by_cloud() if self._name(cloud) in news}
        wrong = {**{cloud: listed.wrong for cloud, listed in partly.items()}, **deaf}
        return Listing(nodes, blind, began_s), wrong

    def offers(self) -> tuple[Sequence[Offer], str]:
        """The last prices, and what is wrong with them."""
        self._offers.take()
        return self._offers.answer or (), self._offers.wrong

    def _list_at(self, name: str) -> _Listed:
        try:
            return _Listed(self.providers[name].list_nodes())
        except PartialListing as error:
            return _Listed(error.nodes, error.blind, str(error))

    def _ask_prices(self) -> Sequence[Offer]:
        return self._prices.offers(self._clock.now_s())

    def _by_cloud(self) -> Iterable[tuple[str, _Watch[_Listed]]]:
        return ((cloud, self._lists[self._name(cloud)]) for cloud in self.providers)

    def _name(self, cloud: str) -> str:
        return self._names[id(self.providers[cloud])]

    # --- launches ---------------------------------------------------------------------------------------------

    @property
    def launching(self) -> frozenset[str]:
        """Launch ids whose call is under way."""
        return frozenset(self._launches)

    def launch(self, spec: LaunchSpec) -> None:
        """Never two calls for one launch id at once."""
        if spec.launch_id not in self._launches:
            cloud = spec.offer.market.cloud
            lane = f"{self._name(cloud)}-launch" if cloud in self.providers else "nowhere"
            work = partial(self._launch_at, cloud, spec)
            self._launches[spec.launch_id] = self._calls.begin(lane, work, self._settings.launch_deadline_s)

    def _launch_at(self, cloud: str, spec: LaunchSpec) -> CloudNode:
        provider = self.providers.get(cloud)
        if provider is None:
            raise InvalidRequest(f"there is no provider for {cloud!r}", "add the cloud to the fleet file")
        return provider.launch(spec)

    def wait_for_launches(self, launch_ids: Collection[str], wait_s: float) -> float:
        """Until one of them has an answer; how long it took."""
        return self._beside.wait([self._launches[name].future for name in launch_ids if name in self._launches], wait_s)

    def outcomes(self) -> list[Outcome]:
        """Of launches that have an answer by now, or have had their time."""
        found = []
        for launch_id, call in list(self._launches.items()):
            if call.future.done() or self._calls.is_overdue(call):
                del self._launches[launch_id]
                found.append(Outcome(launch_id, self._error_of(call)))
        return found

    def _error_of(self, call: _Call[CloudNode]) -> Exception | None:
        waited = format_duration(self._settings.launch_deadline_s)
        if call.future.cancelled() or (not call.future.done() and self._calls.give_up(call)):
            return Transient(f"it could not be sent within {waited}")
        if not call.future.done():
            return AmbiguousOutcome(f"no answer within {waited}")
        error = call.future.exception()
        return error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))

    def cancel_launches(self) -> list[str]:
        """Those that have not begun never will: their launch ids."""
        found = [name for name, call in self._launches.items() if call.future.cancel()]
        for name in found:
            del self._launches[name]
        return found

    # --- ends -------------------------------------------------------------------------------------------------

    def end(self, by_cloud: Mapping[str, Iterable[str]]) -> None:
        """Ask the clouds to end these launch ids. Those that are being asked for already are left out."""
        self._note_ends()
        asked = frozenset(name for names, _ in self._ends for name in names)
        by_provider: dict[str, list[str]] = {}
        for cloud, names in by_cloud.items():
            if cloud in self.providers:
                by_provider.setdefault(self._name(cloud), []).extend(name for name in names if name not in asked)
        for name, launch_ids in by_provider.items():
            if launch_ids:
                work = partial(self.providers[name].terminate, launch_ids)
                call = self._calls.begin(f"{name}-end", work, self._settings.end_deadline_s)
                self._ends.append((frozenset(launch_ids), call))
        self._note_ends()

    def _note_ends(self) -> None:
        """What failed is asked again at the next listing that still has it."""
        under_way = []
        for names, call in self._ends:
            if self._calls.is_overdue(call):
                self._calls.give_up(call)
                logger.warning("no answer about the end of %s, asked again", ", ".join(sorted(names)))
            elif not call.future.done():
                under_way.append((names, call))
            elif wrong := _trouble(call.future, call.lane):
                logger.warning("%s were not ended, asked again: %s", ", ".join(sorted(names)), wrong)
        self._ends = under_way

    def close(self, timeout_s: float) -> None:
        self._beside.close(timeout_s)
