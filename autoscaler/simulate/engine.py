"""A simulation: events until the next tick, a view of the moment, `make_plan`, its actions on the world.

The policies are those of the loop. Ticks lie on a grid; one before which nothing has happened that policies could heed
is left out, which changes nothing, since policies are functions of the view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Drain, Launch, Plan, Terminate
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.effective import Pricing
from tradewind.autoscaler.expected import spare_timeout_s
from tradewind.autoscaler.forecast import SeriesKey
from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.limits import NOBODY
from tradewind.autoscaler.market import Block, MarketMemory, renew, scope_key
from tradewind.autoscaler.packing_stock import EffectivePrice
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate.contestants import Contestant
from tradewind.autoscaler.simulate.contracts import PROMISED, Contracts, Growth, refused
from tradewind.autoscaler.simulate.foresight import Foresight, Learned, Nothing
from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.moving import Moves, leave
from tradewind.autoscaler.simulate.place import GPU, Node, Venue
from tradewind.autoscaler.simulate.remembered import Remembered, picture
from tradewind.autoscaler.simulate.run import ANYWHERE
from tradewind.autoscaler.simulate.tally import Tally
from tradewind.autoscaler.simulate.world import Physics, World
from tradewind.autoscaler.steer import Kept
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.errors import Stockout, TradewindError
from tradewind.events import LaunchRefused
from tradewind.model import LABEL_INSTANCE_TYPE, LABEL_MARKET_TYPE, LABEL_ZONE, Offer

_PATIENCE_S = 60 * 86400.0  # so long nothing starts, nothing ends, and something waits: it waits for ever
_WHO = (f"job {PROMISED}", "the trace")  # asks: those with a deadline, and the others
_KNOWN_S = 600.0  # how old the knowledge of markets may be


@dataclass(frozen=True, slots=True)
class Setting:
    """All that is the same for every policy."""

    venues: Sequence[Venue]
    loop: LoopSettings
    physics: Physics = field(default_factory=Physics)
    growth: Growth = field(default_factory=Growth)
    tick_s: float = 60.0


def simulate(
    setting: Setting, jobs: Iterable[SimJob], contestant: Contestant, seed: int = 0, begin_s: float = 0.0
) -> Tally:
    """Until the last job is done. `jobs` are streamed, in the order of their submission; the records of markets begin
    `begin_s` after their own begin."""
    return Simulation(setting, iter(jobs), contestant, seed, begin_s).run()


class Simulation:
    def __init__(
        self, setting: Setting, jobs: Iterator[SimJob], contestant: Contestant, seed: int = 0, begin_s: float = 0.0
    ) -> None:
        self.tick_s, self.policies, self.told_price = setting.tick_s, contestant.policies, contestant.effective_price
        self.settings = contestant.settings(setting.loop)
        venues = [venue for venue in contestant.venues(setting.venues) if _is_usable(venue.offer)]
        if not venues:
            raise TradewindError(
                f"policy {contestant.name} can buy nothing with a GPU in this fleet",
                "look at `offers` of the fleet file",
            )
        self.world = World(venues, jobs, setting.physics, seed, begin_s)
        self.world.most_gpus = _most_gpus(self.settings, venues)
        self.foresight: Foresight = Learned(self.settings) if contestant.buys_ahead else Nothing()
        self.contracts: Contracts | None = None
        if contestant.has_contracts:
            self.contracts = Contracts(self.world, setting.tick_s, setting.growth, self.settings.limits)
        market = self.settings.market
        self.moves = Moves(self.world, market, setting.tick_s) if market.exchange else None
        self.blocks: dict[str, Block] = {}
        self._planned_s = self._ticked_s = -setting.tick_s
        self._held_until_s = 0.0
        self._launched_s: list[float] = []
        self._knowledge: tuple[float, Knowledge] | None = None
        self._offers: tuple[tuple[int, ...], tuple[Offer, ...]] = ((), ())
        self._remembered = Remembered()
        self._shapes = {key: _shape(place.offer) for key, place in self.world.places.items()}

    def run(self) -> Tally:
        now_s = 0.0
        while not self.world.is_over:
            now_s = self._ticked_s = self._next_tick_s(now_s)
            if self.world.is_over:
                break
            self.world.advance(now_s)
            if self.contracts is not None:
                self.contracts.look(now_s)
            is_due = self.moves is not None and self.moves.is_due(self.blocks, now_s)
            if self.world.is_news or is_due or self._wake_s(self._planned_s) <= now_s:
                self.world.is_news = False
                plan, nodes = self._plan(now_s)
                self._act(plan, nodes, now_s)
                self.world.tally.plans += 1
                if self.moves is not None:
                    self.moves.looked(plan, now_s)
            self._check(now_s)
        self.world.end_all(self.world.moved_s)
        return self.world.tally

    # --- time -------------------------------------------------------------------------------------------------

    def _next_tick_s(self, now_s: float) -> float:
        """The first tick after something that policies could heed. Events that they could not are gone through."""
        world = self.world
        while True:
            if world.is_news or world.opened:
                return self._tick(now_s)
            wake_s = self._wake_s(self._planned_s)
            if self.contracts is not None and self.contracts.next_s < wake_s:
                wake_s = self.contracts.next_s
            if wake_s == math.inf:
                wake_s = self._give_up_s()
            if wake_s <= now_s:
                return self._tick(now_s)
            event_s = world.next_s
            if wake_s < event_s or event_s == math.inf or world.is_over:
                return self._tick(wake_s if wake_s < math.inf else now_s)
            world.advance(event_s)
            now_s = max(now_s, event_s)

    def _tick(self, at_s: float) -> float:
        return max(math.ceil(at_s / self.tick_s - 1e-9) * self.tick_s, self._ticked_s + self.tick_s)

    def _wake_s(self, planned_s: float) -> float:
        """When time alone changes what policies say: a node has been idle for long enough, a refusal is forgotten, the
        limit on launches gives way, there is a new forecast."""
        found = self._idle_s()
        if self.world.queue.runs:
            ends_s = [block.until_s for block in self.blocks.values()]
            found = min(found, *(at_s for at_s in (*ends_s, self._held_until_s, math.inf) if at_s > planned_s))
        if self.moves is not None and self.world.movers:
            found = min(found, self.moves.next_s)
        if self.foresight.step_s is not None:
            found = min(found, planned_s + self.settings.forecast_step_s)
        return found

    def _idle_s(self) -> float:
        """When the next idle node has waited for long enough, after the last plan."""
        if not self.world.idle:
            return math.inf
        settings = self.settings
        timeouts_s = {settings.idle_timeout_s, *([spare_timeout_s(settings)] if settings.buy_ahead else [])}
        found = math.inf
        for node in self.world.idle.values():
            for timeout_s in timeouts_s:
                at_s = max(node.idle_since_s + timeout_s, (node.joined_at_s or 0.0) + settings.min_node_life_s)
                if self._planned_s < at_s < found:
                    found = at_s
        return found

    def _plan(self, now_s: float) -> tuple[Plan, Mapping[str, Node]]:
        """And the nodes that it may speak of, by their names in it."""
        world = self.world
        self._planned_s = now_s
        self._launched_s = [at_s for at_s in self._launched_s if at_s > now_s - 60.0]
        heeded = (len(self._launched_s), self._kept)
        seen = picture(world, self.blocks, heeded, self.settings, self._price(now_s), now_s)
        known = None if seen is None else self._remembered.find(seen, world, self._present_offers())
        if known is not None:
            return known
        plan = make_plan(self.look(now_s), policies=self.policies)
        if seen is not None:
            self._remembered.keep(seen, plan, world)
        return plan, {node.name: node for node in _spoken_of(plan, world)}

    # --- observe ----------------------------------------------------------------------------------------------

    def look(self, now_s: float) -> View:
        world = self.world
        nodes = tuple(node.view(now_s) for node in world.nodes.values())
        wanted = {SeriesKey(NOBODY, GPU): float(world.wanted_gpus)}
        return View(
            now_s=now_s,
            settings=self.settings,
            nodes=nodes,
            snapshot=RaySnapshot(
                tuple([node.ray for node in nodes if node.ray is not None]),
                holdings=world.holdings,
            ),
            demand=self._demand(),
            offers=self._present_offers(),
            memory=MarketMemory(dict(self.blocks)),
            launched_last_minute=len(self._launched_s),
            wanted=wanted,
            forecasts=self.foresight.forecasts(now_s, wanted),
            knowledge=self._known(now_s),
            wishes=self.moves.wishes if self.moves is not None else (),
            quotes=self.moves.quotes if self.moves is not None else {},
            kept=self._kept,
        )

    def _demand(self) -> Demand:
        """What waits, and what runs on nodes that the cloud will take. Who may run in that market alone is not counted:
        it closes, and where the job goes from there is not decided yet."""
        gpus = dict(self.world.queue.gpus)
        for node in self._doomed():
            for run in node.runs.values():
                if run.where == ANYWHERE:
                    held = sum(count for where, count in run.held if where is node)
                    gpus[ANYWHERE] = gpus.get(ANYWHERE, 0) + held
        shapes = {ANYWHERE: GPU, **self._shapes}
        asked = sorted((where, count) for where, count in gpus.items() if count)
        return Demand(tuple([Need(shapes[where], count, _WHO[where == ANYWHERE]) for where, count in asked]))

    @property
    def _kept(self) -> Kept:
        is_limited = self.contracts is not None and self.settings.limits.max_uusd_per_h is not None
        return self.contracts.kept(self._ticked_s) if self.contracts is not None and is_limited else Kept()

    def _doomed(self) -> Iterator[Node]:
        for place in self.world.places.values():
            if place.soon < place.stock:
                yield from (node for node in place.nodes.values() if node.taken_at_s is not None)

    def _present_offers(self) -> tuple[Offer, ...]:
        """One object for as long as no price changes: much is remembered by it."""
        prices = tuple(place.offer.price_uusd_per_h or 0 for place in self.world.places.values())
        if prices != self._offers[0]:
            self._offers = (prices, tuple(place.offer for place in self.world.places.values()))
        return self._offers[1]

    def _known(self, now_s: float) -> Knowledge:
        if self._knowledge is None or now_s - self._knowledge[0] >= _KNOWN_S:
            market = self.settings.market
            known = Knowledge.of(self.world.experience, now_s, market.usual_hazard_per_h, self.settings.usual_boot_s)
            self._knowledge = (now_s, known)
        return self._knowledge[1]

    def _price(self, now_s: float) -> EffectivePrice:
        """By which offers are bought."""
        told = self.told_price
        return told if told is not None else Pricing(self._known(now_s), self.settings.market)

    # --- act --------------------------------------------------------------------------------------------------

    def _act(self, plan: Plan, nodes: Mapping[str, Node], now_s: float) -> None:
        in_vain: set[str] = set()
        for action in plan.actions:
            if isinstance(action, Launch):
                replaced = tuple([nodes[name] for name in action.replaces])
                self._launch(action, replaced, now_s, in_vain)
            elif isinstance(action, Drain):
                self._drain(nodes[action.launch_id], action, now_s)
            elif isinstance(action, Terminate):
                self.world.end_node(nodes[action.launch_id], now_s)
        if in_vain and self.contracts is not None:
            refused(self.contracts, sorted(in_vain), now_s + self.tick_s)
        self._held_until_s = now_s + self.tick_s if plan.holds and self._launched_s else 0.0

    def _launch(self, action: Launch, replaces: tuple[Node, ...], now_s: float, in_vain: set[str]) -> None:
        for offer in (action.offer, *action.fallbacks):
            key = scope_key(offer.market, Stockout.scope)
            block = self.blocks.get(key)
            if (block is not None and block.until_s > now_s) or not self._is_affordable(offer, action.jobs):
                continue
            place = self.world.places[offer.market.key]
            if self.world.launch(place, now_s, replaces):
                self.blocks.pop(key, None)
                self._launched_s.append(now_s)
                return
            self._refuse(key, now_s)
            in_vain.add(place.key)
        if not replaces:
            self.world.is_news = True  # nothing was to be had: it is asked again

    def _refuse(self, key: str, now_s: float) -> None:
        told = LaunchRefused(
            at_s=now_s, launch_id="", error="Stockout", message="", scope=Stockout.scope, block_s=Stockout.block_s
        )
        self.blocks[key] = renew(self.blocks.get(key), told)

    def _is_affordable(self, offer: Offer, jobs: Sequence[str]) -> bool:
        """A next best offer may be dearer than the one that the plan has reckoned with."""
        limit = self.settings.limits.max_uusd_per_h
        if limit is None:
            return True
        places = self.world.places.values()
        spent = sum(len(place.nodes) * (place.offer.price_uusd_per_h or 0) for place in places)
        kept = 0 if PROMISED in jobs else self._kept.uusd_per_h
        return spent + (offer.price_uusd_per_h or 0) + kept <= limit

    def _drain(self, node: Node, action: Drain, now_s: float) -> None:
        if node.is_idle:
            self.world.end_node(node, now_s)
            self.world.is_news = self.world.queue.runs > 0
        elif node.taken_at_s is not None:
            self.world.drain(node)
        elif action.deadline_s is not None:
            leave(self.world, node, now_s, action.deadline_s, self.settings.market.handover_s)

    def _give_up_s(self) -> float:
        """By then something must have started, or nothing ever will."""
        world = self.world
        return world.moved_s + _PATIENCE_S if world.open and not world.running else math.inf

    def _check(self, now_s: float) -> None:
        if now_s >= self._give_up_s():
            raise TradewindError(
                f"{self.world.open} jobs can never start: none has for {_PATIENCE_S / 86400:.0f} days, with nothing "
                f"running. {self._who_waits()}",
                "raise the limits, leave out small machines where nodes are limited, allow on-demand, or give records "
                "in which spot is there",
            )

    def _who_waits(self) -> str:
        asked, there = self.world.queue.largest_gpus, sum(node.slots for node in self.world.nodes.values())
        return f"The largest waits for {asked} GPUs; policies have bought {there} GPUs" if asked else ""


def _spoken_of(plan: Plan, world: World) -> Iterator[Node]:
    for action in plan.actions:
        if isinstance(action, Drain | Terminate):
            yield world.nodes[int(action.launch_id[1:])]
        elif isinstance(action, Launch):
            yield from (world.nodes[int(name[1:])] for name in action.replaces)


def _is_usable(offer: Offer) -> bool:
    return offer.hosts == 1 and offer.resources.get("GPU", 0.0) >= 1


def _most_gpus(settings: LoopSettings, venues: Sequence[Venue]) -> float:
    """What the limits leave room for, if all of it were of the largest kind."""
    limits = settings.limits
    largest = max(int(venue.offer.accelerator_count) for venue in venues)
    by_nodes = math.inf if limits.max_nodes is None else limits.max_nodes * largest
    if limits.max_uusd_per_h is None:
        return by_nodes
    cheapest = min(
        ((venue.offer.price_uusd_per_h or 0) / int(venue.offer.accelerator_count) for venue in venues), default=0.0
    )
    return min(by_nodes, limits.max_uusd_per_h / cheapest if cheapest else math.inf)


def _shape(offer: Offer) -> Shape:
    """A GPU of one market alone."""
    labels = offer.labels
    return Shape.of({"GPU": 1}, {key: labels[key] for key in (LABEL_ZONE, LABEL_INSTANCE_TYPE, LABEL_MARKET_TYPE)})
