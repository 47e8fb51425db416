"""The control loop: observe, decide, act, record. Owns the clock and the effects; every decision is made elsewhere.

Calls to clouds are made beside it (clouds.py): a tick takes in what has arrived, and never waits for a slow cloud."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tradewind.autoscaler.actions import Hold, Plan
from tradewind.autoscaler.adopt import adoptions, holding_changes
from tradewind.autoscaler.allocate import Allocation, grant
from tradewind.autoscaler.beside import Beside, Inline
from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.clouds import Clouds
from tradewind.autoscaler.debris import DebrisWatch
from tradewind.autoscaler.dry_run import DryReconciler, would
from tradewind.autoscaler.expected import look_s_of, new_book
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.forecast import SeriesKey, spans_of_events
from tradewind.autoscaler.observe import Observation, build_view, learn_resources, look_again
from tradewind.autoscaler.pauses import with_pauses
from tradewind.autoscaler.pilot import WAITING, Pilot, steered
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.providers.base import PriceSource, Provider
from tradewind.autoscaler.quotes import Quotes, note_quotes
from tradewind.autoscaler.ray_snapshot import RayPort, RayReport, RaySnapshot, alive_by_launch_id
from tradewind.autoscaler.reconcile import Reconciler, Record, new_launch_id
from tradewind.autoscaler.settle import Listing, Question, overdue_ends, settle, slices_of
from tradewind.autoscaler.treasury import Treasury, Unlimited, without_closed
from tradewind.autoscaler.turn import Turn
from tradewind.autoscaler.unpaid import without_unpaid
from tradewind.autoscaler.view import LoopSettings, SeenResources, View
from tradewind.autoscaler.wanted import asked_of_ray, demand_change, wanted_of
from tradewind.errors import RayError
from tradewind.events import AnyEvent, ClockJumped, DecisionRecorded, NodeJoined, PriceChanged
from tradewind.model import Offer, Target, Wish
from tradewind.states import NodeState

logger = logging.getLogger(__name__)

CLOCK_TOLERANCE_S = 10.0  # clocks are corrected by less than this all the time; no time-out is so short


class Loop:
    """`tick()` is one round. `record(*events)` must append to the log and apply to `fleet` before it returns.
    `view` is what the last tick saw; `plan` what it decided."""

    def __init__(
        self,
        *,
        clock: Clock,
        record: Record,
        fleet: FleetState,
        ray: RayPort,
        providers: Mapping[str, Provider],  # by cloud name; one provider may serve several
        prices: PriceSource,
        settings: LoopSettings,
        wishes: Callable[[], Sequence[Wish]] = lambda: (),
        past: Iterable[AnyEvent] = (),  # the log until now, for the forecasts
        new_id: Callable[[], str] = new_launch_id,
        beside: Beside | None = None,  # where calls to clouds are made; None: on the spot
        turn: Turn | None = None,  # shared by the loops of one fleet
        head_silent_s: Callable[[], float | None] = lambda: None,  # of a head that the loop keeps: see View
    ) -> None:
        self.clock, self.record, self.fleet, self.ray = clock, record, fleet, ray
        self.settings, self.wishes = settings, wishes
        self.clouds = Clouds(providers, prices, clock, beside or Inline(), settings)
        reconciler = DryReconciler if settings.dry_run else Reconciler
        self.reconciler = reconciler(clock, record, fleet, ray, self.clouds, settings, new_id, turn or Turn())
        self.treasury: Treasury = Unlimited()
        self.resting: Callable[[], Mapping[str, str]] = dict  # jobs that wait for better hours, each with the reason
        self._head_silent_s = head_silent_s
        self._jobs_left_at_s: float | None = None  # steady
        self.book = new_book(settings)
        if settings.buy_ahead:
            self.book.load(spans_of_events(_of_cell(past, settings.cell, fleet), clock.now_s()), clock.now_s())
        self.debris = DebrisWatch(self.clouds.by_name, clock, beside or Inline())
        self.view: View | None = None
        self.plan: Plan | None = None
        self.targets: dict[str, Target] = {}
        self.granted = Allocation()
        self.pilot = Pilot()
        self._last_clock_s: tuple[float, float, float] | None = None  # calendar, steady, by how much others shifted it
        self._offers: tuple[Offer, ...] = ()
        self._missing_since_s: dict[str, float] = {}
        self._seen_resources: SeenResources = {}
        self._known_prices: dict[str, int] = {}
        self._quotes: Quotes = dict(fleet.prices)
        self._said: frozenset[tuple[str, str]] = frozenset()
        self._strangers: frozenset[str] = frozenset()

    def keep_within(self, treasury: Treasury) -> None:
        """From now on nothing is bought that the budgets do not pay for."""
        self.treasury = self.reconciler.treasury = treasury

    def run(self, stop: threading.Event, interval_s: float = 1.0) -> None:
        """Tick until told to stop. A defect in one tick is logged and the next one tries again."""
        while not stop.is_set():
            try:
                self.tick()
            except Exception:
                logger.exception("a tick failed; the next one starts from the log")
            stop.wait(interval_s)

    def tick(self) -> Plan:
        troubles: list[Hold] = []
        self._note_clock()
        self.reconciler.take_in()
        snapshot = self._ask_ray(troubles)  # before the listing: a node that the cloud took is then known as taken
        listing = self._ask_clouds(troubles)
        self._settle(snapshot, listing)
        if snapshot is not None:
            self._note_jobs(snapshot)
            self._seen_resources = learn_resources(self._seen_resources, snapshot.nodes, self.fleet.nodes)
        self._note_prices(troubles)
        troubles.extend(overdue_ends(self.fleet.alive_nodes, self.settings, self.clock.now_s()))
        before = self.targets
        self.view = self._look(snapshot, listing)
        self._note_grants(before)
        plan = make_plan(self.view, self.targets)
        plan = with_pauses(plan, self.view, self.fleet.open_jobs)
        plan = would(plan, self.targets) if self.settings.dry_run else plan
        self.plan = Plan(plan.at_s, (*troubles, *self.view.withheld, *plan.actions), plan.targets)
        self.reconciler.act(plan)
        self._note_holds(self.plan)
        self._clean_up()
        self._report(snapshot, self.plan)
        return self.plan

    def end_all(self, reason: str, timeout_s: float) -> list[str]:
        """The fleet is taken down: every node is ended, and this waits until the clouds list none of them any more.
        Returns the launch ids that are gone; what is left after the time is still alive by the log. In a dry run that
        is everything."""
        if self.settings.dry_run:
            return []
        before = {node.launch_id for node in self.fleet.alive_nodes}
        self._note_demand({})  # nobody can ask any more
        self.reconciler.end_all(reason)
        until_s = self.clock.steady_s() + timeout_s
        while self.fleet.alive_nodes and self.clock.steady_s() < until_s:
            self.reconciler.take_in()
            listing, _ = self.clouds.look(self.settings.answer_wait_s)
            answer = settle(self._question(None, listing))
            self.record(*answer.events)
            self._missing_since_s = dict(answer.missing)
            self.reconciler.give_up(answer.relaunch, reason)
            self.reconciler.end(answer.terminate)
            if self.fleet.alive_nodes:
                self.clock.sleep(0.2)
        return sorted(before - {node.launch_id for node in self.fleet.alive_nodes})

    def close(self, timeout_s: float = 5.0) -> None:
        """No more calls are begun. What still hangs in a cloud ends with the process."""
        self.clouds.close(timeout_s)

    def _note_clock(self) -> None:
        """A clock that was set ends no node and makes nobody wait: times on record are shifted with it. Before the
        first tick it may have been set, too; that is seen when the record lies in the future."""
        now_s, steady_s = self.clock.now_s(), self.clock.steady_s()
        shifted_s = self.fleet.whole.shifted_s
        if self._last_clock_s is None:
            jump_s = told_s = min(0.0, now_s - self.fleet.newest_s)
        else:
            jump_s = (now_s - self._last_clock_s[0]) - (steady_s - self._last_clock_s[1])
            told_s = jump_s - (shifted_s - self._last_clock_s[2])  # the loop of another cell may have told it
        if abs(told_s) > CLOCK_TOLERANCE_S:
            logger.warning("the clock was set by %.0f s: times on record are shifted by as much", told_s)
            self.record(ClockJumped(at_s=now_s, jump_s=told_s))
        if abs(jump_s) > CLOCK_TOLERANCE_S:
            self._missing_since_s = {name: since_s + jump_s for name, since_s in self._missing_since_s.items()}
            self._quotes = {key: tuple((at + jump_s, usd) for at, usd in seen) for key, seen in self._quotes.items()}
        self._last_clock_s = (now_s, steady_s, self.fleet.whole.shifted_s)

    # --- observe ----------------------------------------------------------------------------------------------

    def _ask_ray(self, troubles: list[Hold]) -> RaySnapshot | None:
        try:
            return self.ray.snapshot()
        except RayError as error:
            troubles.append(Hold("ray", error.message))  # recorded and logged when it is new
            return None

    def _ask_clouds(self, troubles: list[Hold]) -> Listing:
        listing, wrong = self.clouds.look(self.settings.answer_wait_s)
        for cloud, message in sorted(wrong.items()):
            troubles.append(Hold(f"cloud {cloud}", f"could not be listed: {message}"))
        return listing

    def _settle(self, snapshot: RaySnapshot | None, listing: Listing) -> None:
        answer = settle(self._question(snapshot, listing))
        self.record(*answer.events)
        self._missing_since_s = dict(answer.missing)
        self._note_strangers(answer.strangers)
        for launch_id in answer.relaunch:
            logger.warning("launch %s is on record without an outcome: its call is made under the same id", launch_id)
            self.reconciler.send(self.fleet.nodes[launch_id])
        self.reconciler.end(answer.terminate, {name: node.offer.market.cloud for name, node in listing.nodes.items()})

    def _question(self, snapshot: RaySnapshot | None, listing: Listing) -> Question:
        slices = slices_of(self.fleet.alive_nodes, listing)
        return Question(
            fleet=self.fleet,
            listing=listing,
            ray=alive_by_launch_id(snapshot.nodes, slices) if snapshot else {},
            sent=frozenset(self.reconciler.sent),
            launching=self.clouds.launching,
            missing_since_s=self._missing_since_s,
            settings=self.settings,
            now_s=self.clock.now_s(),
        )

    def _look(self, snapshot: RaySnapshot | None, listing: Listing) -> View:
        wishes = tuple(self.wishes())
        seen = Observation(
            now_s=self.clock.now_s(),
            snapshot=snapshot,
            listing=listing,
            offers=self._offers,
            wishes=wishes,
            targets=self.targets,
            seen_resources=self._seen_resources,
            quotes=self._quotes,
            head_silent_s=self._head_silent_s(),
            jobs_left_s=self._jobs_left_s(),
        )
        blank = build_view(self.fleet, seen, self.settings)
        self.granted = self._grant(wishes, blank)
        steers = self.pilot.look(blank, self.fleet, self.granted.targets, self.treasury.left_uusd())
        bound = steered(wishes, steers)
        if steers:
            self.granted = self._grant(bound, blank)
        self._note_courses()
        self.targets = self.granted.targets
        seen = self._look_ahead(replace(seen, targets=self.targets))  # by plain wishes: courses come and go
        seen = replace(seen, wishes=bound, steers=steers)
        kept = self.pilot.kept(self.settings.limits, seen.now_s)
        return self._within_budgets(replace(look_again(blank, self.fleet, seen), kept=kept))

    def _grant(self, wishes: Sequence[Wish], view: View) -> Allocation:
        return grant(
            wishes,
            self.settings.limits,
            self._offers,
            view.resources_of,
            self.targets,
            {job.job_id: job.spec.tenant for job in self.fleet.open_jobs},
            view.elsewhere.used,
        )

    def _at_rest(self, view: View) -> dict[str, str]:
        """Nobody rests whose contract has no time for it: clean hours are a wish, a deadline is a promise."""
        urgent = {job_id for job_id, steer in view.steers.items() if steer.is_urgent}
        return {job_id: why for job_id, why in self.resting().items() if job_id not in urgent}

    def _within_budgets(self, view: View) -> View:
        waiting = {job_id: WAITING for job_id, steer in view.steers.items() if steer.waits}
        resting = self._at_rest(view)
        closed = {**waiting, **resting, **self.treasury.closed()}
        if closed:
            demand, withheld = without_closed(view.demand, closed)
            view = replace(view, demand=demand, withheld=(*view.withheld, *withheld), resting=resting)
        return without_unpaid(view, self.treasury.refuses) if self.treasury.has_budgets() else view

    def _jobs_left_s(self) -> float | None:
        if self.fleet.open_jobs:
            self._jobs_left_at_s = None
            return None
        if self._jobs_left_at_s is None:
            self._jobs_left_at_s = self.clock.steady_s()
        return self.clock.steady_s() - self._jobs_left_at_s

    def meet_head(self, launch_id: str, address: str) -> None:
        """Its agent has spoken: it is ready, and workers join it there."""
        if address != self.settings.head_address:
            self.settings = self.reconciler.settings = replace(self.settings, head_address=address)
        node = self.fleet.nodes.get(launch_id)
        if node is not None and node.state is NodeState.BOOTING:
            self.record(NodeJoined(at_s=self.clock.now_s(), launch_id=launch_id, ray_node_id=""))

    def _look_ahead(self, seen: Observation) -> Observation:
        """What is wanted, and what will be. While the head does not answer, nothing is known and nothing is learnt."""
        if seen.snapshot is None:
            return seen
        asked = asked_of_ray(seen.snapshot, self.fleet, seen.wishes)
        self._note_demand(asked, look_s_of(self.settings))
        if not self.settings.buy_ahead:
            return seen
        wanted = wanted_of(self.fleet.open_jobs, asked)
        self.book.observe(seen.now_s, wanted)
        return replace(seen, wanted=wanted, forecasts=self.book.forecasts(seen.now_s))

    # --- record -----------------------------------------------------------------------------------------------

    def _note_jobs(self, snapshot: RaySnapshot) -> None:
        if self.settings.adopt_jobs:
            self.record(*adoptions(snapshot, self.fleet, self.clock.now_s(), self.settings.cell))
        self.record(*holding_changes(snapshot, self.fleet, self.clock.now_s()))

    def _note_demand(self, asked: Mapping[SeriesKey, float], quiet_s: float = 0.0) -> None:
        cell = self.settings.cell
        self.record(*demand_change(asked, self.fleet.asked.get(cell), cell, self.clock.now_s(), quiet_s))

    def _note_prices(self, troubles: list[Hold]) -> None:
        now_s = self.clock.now_s()
        offers, wrong = self.clouds.offers()
        if wrong:
            troubles.append(Hold("prices", wrong))
        known = {offer: offer for offer in self._offers}  # those that are as before stay the same objects
        self._offers = tuple(known.get(each, each) for each in offers if each.market.cloud in self.clouds.providers)
        self._quotes = note_quotes(self._quotes, self._offers, now_s, self.settings.market.exchange_hysteresis_s)
        seen = {offer.market.key: offer.price_uusd_per_h for offer in self._offers}
        told = self._told_prices()
        fresh = {key: price for key, price in seen.items() if price is not None and told.get(key) != price}
        self._known_prices.update({key: price for key, price in seen.items() if price is not None})
        self.record(*(PriceChanged(at_s=now_s, market=key, price_uusd_per_h=fresh[key]) for key in fresh))

    def _told_prices(self) -> dict[str, int]:
        """What need not be told again. Where we have nodes, the first price after a start is told in any case: it may
        have moved while nobody looked, and they are paid by it."""
        told = {key: quotes[-1][1] for key, quotes in list(self.fleet.prices.items())}  # other cells add to it
        for node in self.fleet.alive_nodes:
            told.pop(node.offer.market.key, None)
        return told | self._known_prices

    def _note_strangers(self, strangers: Sequence[tuple[str, str]]) -> None:
        for launch_id, reason in strangers:
            if launch_id not in self._strangers and not self.settings.dry_run:
                logger.error("node %s is ended: %s", launch_id, reason)
                at_s = self.clock.now_s()
                self.record(DecisionRecorded(at_s=at_s, action="terminate", subject=launch_id, reason=reason))
        self._strangers = frozenset(launch_id for launch_id, _ in strangers)

    def _note_courses(self) -> None:
        """A contract's choice is recorded when it is another one than before, also than before a new start."""
        for job_id, course in sorted(self.pilot.courses.items()):
            steer = course.steer
            if self.fleet.courses.get(job_id, "").split(": ")[0] != steer.what:
                logger.log(logging.WARNING if steer.warning else logging.INFO, "contract %s: %s", job_id, steer.reason)
                self.record(
                    DecisionRecorded(
                        at_s=self.clock.now_s(),
                        action="contract",
                        subject=job_id,
                        reason=steer.reason,
                        alternatives=steer.beaten,
                        jobs=(job_id,),
                    )
                )

    def _note_grants(self, before: Mapping[str, Target]) -> None:
        """Why a job may have so many workers and not more is recorded when the number changes."""
        for wish in self.granted.wishes:
            if before.get(wish.job_id) != self.targets[wish.job_id]:
                reason = self._why_granted(wish)
                logger.info("grant %s: %s", wish.job_id, reason)
                event = DecisionRecorded(
                    at_s=self.clock.now_s(), action="grant", subject=wish.job_id, reason=reason, jobs=(wish.job_id,)
                )
                self.record(event)

    def _why_granted(self, wish: Wish) -> str:
        granted, sharers = self.targets[wish.job_id].workers, len(self.granted.wishes)
        course, plural = self.pilot.courses.get(wish.job_id), "" if granted == 1 else "s"
        if granted >= wish.max_workers and course is not None and course.case.wish.max_workers > wish.max_workers:
            return f"{granted} worker{plural}, as its contract asks for"
        if granted >= wish.max_workers:
            return f"up to {granted} worker{plural}, all that it can use"
        guilty = self.granted.held_back_by(wish.job_id)
        limits = " and ".join(guilty) if guilty else "several limits at once"
        shared = f", which {sharers} jobs share" if sharers > 1 else ""
        more = "one more" if wish.replica_workers == 1 else f"one more replica of {wish.replica_workers}"
        return f"{granted} of {wish.min_workers}..{wish.max_workers} workers: {more} would pass {limits}{shared}"

    def _note_holds(self, plan: Plan) -> None:
        """A hold is recorded when it is new, not at every tick."""
        said = frozenset(hold.key for hold in plan.holds)
        fresh = [hold for hold in plan.holds if hold.key not in self._said]
        self._said = said
        for hold in fresh:
            logger.info("hold %s: %s", hold.subject, hold.reason)
            event = DecisionRecorded(
                at_s=plan.at_s,
                action="hold",
                subject=hold.subject,
                reason=hold.reason,
                alternatives=hold.alternatives,
                jobs=hold.jobs,
            )
            self.record(event)

    def _clean_up(self) -> None:
        for cloud, name in () if self.settings.dry_run else self.debris.tick():
            reason = f"left behind in {cloud} by a node that has ended, and used by nobody"
            logger.info("%s is removed: %s", name, reason)
            self.record(DecisionRecorded(at_s=self.clock.now_s(), action="clean", subject=name, reason=reason))

    def _report(self, snapshot: RaySnapshot | None, plan: Plan) -> None:
        """So that `ray status` tells the same story."""
        if snapshot is None or self.view is None:
            return
        coming = [node.requested for node in self.view.nodes if node.is_coming]
        failed = [r for r in self.fleet.refusals[-10:] if r.at_s > plan.at_s - 600]
        report = RayReport(
            pending=tuple((node.offer.market.instance_type, node.launch_id, str(node.state)) for node in coming),
            infeasible=tuple(hold.shape for hold in plan.holds if hold.shape is not None),
            failed=tuple((self.fleet.nodes[r.launch_id].offer.market.instance_type, r.message, r.at_s) for r in failed),
            version=snapshot.version,
        )
        try:
            self.ray.report(report)
        except RayError as error:
            logger.warning("ray status is behind: %s", error)


def _of_cell(past: Iterable[AnyEvent], cell: str, fleet: FleetState) -> Iterator[AnyEvent]:
    """What other cells were asked for says nothing of this one."""
    jobs = fleet.whole.jobs
    for event in past:
        job = jobs.get(getattr(event, "job_id", ""))
        if {getattr(event, "cell", ""), job.cell if job else ""} <= {"", cell}:
            yield event
