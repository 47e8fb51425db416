"""The world of a simulation: markets that open and close, nodes that boot and are taken, jobs that wait, run and start
again. Discrete events on a virtual clock; no policy is in here, and nothing grows with the jobs that are done.

Jobs start in the order of their submission, where one that does not fit lets later ones pass. They take the oldest
nodes with room. A node that the cloud takes stops all jobs on it: with a notice they save first, without one they lose
what they did since their last checkpoint.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

from tradewind.autoscaler.knowledge import Experience
from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.physics import Kind as Kind  # found here, too
from tradewind.autoscaler.simulate.physics import Physics as Physics
from tradewind.autoscaler.simulate.place import Node, Place, Venue
from tradewind.autoscaler.simulate.run import ANYWHERE, Queue, Run
from tradewind.autoscaler.simulate.tally import Tally
from tradewind.errors import TradewindError


class World:
    """`on_submit` is asked where a new job may run; None: it waits until somebody sets that."""

    def __init__(
        self, venues: Sequence[Venue], jobs: Iterator[SimJob], physics: Physics, seed: int = 0, begin_s: float = 0.0
    ) -> None:
        self.physics, self.tally, self.experience = physics, Tally(), Experience()
        self.places = {place.key: place for place in map(Place.of, venues)}
        self.nodes: dict[int, Node] = {}  # by age
        self.idle: dict[int, Node] = {}  # since when, the longest first
        self.queue = Queue()
        self.open = 0  # jobs that are not done
        self.running = 0
        self.busy_gpus = 0
        self.wanted_gpus = 0  # of all open jobs
        self.free_gpus = 0
        self.most_gpus = math.inf  # a job of more can never run
        self.is_news = False  # something that policies could heed
        self.opened: list[str] = []  # markets that have something again, since somebody asked
        self.on_submit: Callable[[Run], bool] = lambda run: True  # noqa: ARG005
        self.on_stop: Callable[[Run, float], None] | None = None
        self.on_end: Callable[[Run], None] | None = None
        self.on_stock: Callable[[float], None] | None = None
        self.on_price: list[Callable[[Place, float], None]] = []
        self.movers: dict[int, Run] | None = None  # who runs and may move, where moves are simulated
        self.holdings: dict[tuple[str, str], dict[str, float]] = {}  # ... and what each job holds on which node
        self.moved_s = 0.0  # when a job last came, started, stopped or ended
        self._jobs, self._draw = jobs, random.Random(seed)
        self._next_job = next(jobs, None)
        self._numbers, self._order = itertools.count(), itertools.count()
        self._events: list[tuple[float, int, int, Node | Run | Place | None, int]] = []
        self._free: list[int] = []
        self._busy_since_s = 0.0
        self._stocks, self._prices = dict[str, Iterator[tuple[float, int]]](), dict[str, Iterator[tuple[float, int]]]()
        self._open_markets(begin_s)
        self.at(self.tally.boundary_s(0.0), Kind.WINDOW, None)

    @property
    def is_over(self) -> bool:
        return self._next_job is None and not self.open

    @property
    def next_s(self) -> float:
        """When something happens next."""
        event_s = self._events[0][0] if self._events else math.inf
        return min(event_s, self._next_job.submit_s) if self._next_job is not None else event_s

    def advance(self, until_s: float) -> None:
        """All that happens until then; nothing after the last job."""
        while self.open or self._next_job is not None:
            job, event_s = self._next_job, self._events[0][0] if self._events else math.inf
            if job is not None and job.submit_s <= event_s:
                if job.submit_s > until_s:
                    return
                self._submit(job)
            elif event_s <= until_s:
                at_s, kind, _, what, epoch = heapq.heappop(self._events)
                self._happen(at_s, kind, what, epoch)
            else:
                return
            self.tally.events += 1

    # --- what policies do -------------------------------------------------------------------------------------

    def launch(self, place: Place, now_s: float, replaces: tuple[Node, ...] = ()) -> bool:
        """Whether the market had one."""
        if not place.room:
            self.tally.refusals += 1
            return False
        place.count(now_s, self.tally)
        node = Node(next(self._numbers), place, place.offer, now_s, place.slots, replaces=replaces)
        for old in replaces:
            old.tried_s, old.seen = now_s, None
        place.nodes[node.number] = self.nodes[node.number] = node
        physics = self.physics
        boot_s = physics.boot_s * math.exp(self._draw.gauss(0.0, physics.boot_spread)) if physics.boot_s else 0.0
        self.at(now_s + boot_s, Kind.JOIN, node)
        self.experience.launched(place.offer.market, now_s, now_s)
        self.tally.launches += 1
        return True

    def end_node(self, node: Node, now_s: float, is_taken: bool = False) -> None:
        """Work on it stops."""
        if node.runs:
            saves = not is_taken or node.notice_s >= self.physics.save_s
            for run in list(node.runs.values()):
                self.stop(run, now_s, saves)
                self._wait(run, now_s)
        place = node.place
        place.count(now_s, self.tally)
        self.close(node)
        node.is_gone = True
        del place.nodes[node.number], self.nodes[node.number]
        self.idle.pop(node.number, None)
        self.experience.ended(place.offer.market, now_s)
        self.is_news = True
        if node.tried_s is not None:
            self._forget(node)

    def _forget(self, gone: Node) -> None:
        """Who was bought for its work has no more to wait for, and must not keep it in memory."""
        for node in self.nodes.values():
            if gone in node.replaces:
                node.replaces, node.seen = tuple([old for old in node.replaces if old is not gone]), None

    def stop(self, run: Run, now_s: float, saves: bool = True) -> None:
        """It gives up all that it holds, and stands outside of the queue."""
        useful, lost = run.keep(now_s, None if saves else self.physics.checkpoint_s)
        self._leave(run, now_s, useful, lost)

    def enqueue(self, run: Run, now_s: float) -> None:
        """It waits for room in the market that it names; it may have waited for another."""
        self.queue.drop(run)
        self.queue.add(run)
        self._start_waiting(now_s)
        self.is_news = self.is_news or not run.is_running

    def close(self, node: Node) -> None:
        """Its room counts no more. To be called before what closes it is set."""
        if node.joined_at_s is not None and node.is_open:
            node.place.free_gpus -= node.free
            self.free_gpus -= node.free

    def drain(self, node: Node) -> None:
        node.is_draining, node.seen = True, None

    def end_all(self, now_s: float) -> None:
        for node in list(self.nodes.values()):
            self.end_node(node, now_s)
        self._count_busy(now_s)
        self.tally.end_s = now_s

    # --- what happens -----------------------------------------------------------------------------------------

    def at(self, at_s: float, kind: Kind, what: Node | Run | Place | None, epoch: int = 0) -> None:
        heapq.heappush(self._events, (at_s, int(kind), next(self._order), what, epoch))

    def _happen(self, at_s: float, kind: int, what: Node | Run | Place | None, epoch: int) -> None:
        if isinstance(what, Run):
            if what.epoch == epoch:
                self._end(what, at_s)
        elif isinstance(what, Node):
            if not what.is_gone:
                self._join(what, at_s) if kind == Kind.JOIN else self.end_node(what, at_s)
        elif isinstance(what, Place):
            self._market(what, at_s, kind, epoch)
        else:
            self._turn_window(at_s)

    def _submit(self, job: SimJob) -> None:
        now_s = job.submit_s
        self._next_job = next(self._jobs, None)
        if self._next_job is not None and self._next_job.submit_s < now_s:
            raise TradewindError("the jobs are not in the order of their submission", "sort them by their submit time")
        if job.gpus > self.most_gpus:
            self.tally.never_fit += 1
            self.tally.largest_gpus = max(self.tally.largest_gpus, job.gpus)
            return
        run = Run(job, next(self._numbers), job.duration_s, job.gpus)
        self.open += 1
        self.moved_s = now_s
        self.wanted_gpus += job.gpus
        if self.on_submit(run):
            self.enqueue(run, now_s)

    def _end(self, run: Run, at_s: float) -> None:
        useful, lost = run.keep(at_s, None)
        self._leave(run, at_s, useful, lost)
        self.open -= 1
        self.wanted_gpus -= run.job.gpus
        started_s = at_s if run.started_s is None else run.started_s
        self.tally.finish(run.job, started_s - run.job.submit_s, at_s)
        if self.on_end is not None:
            self.on_end(run)
        self._start_waiting(at_s)

    def _join(self, node: Node, at_s: float) -> None:
        node.joined_at_s, node.free, node.seen = at_s, node.slots, None
        node.idle_since_s = at_s
        self.idle[node.number] = node
        self.experience.joined(node.offer.market, at_s, node.requested_at_s)
        if node.taken_at_s is None:
            node.place.free_gpus += node.slots
            self.free_gpus += node.slots
            self._offer_room(node)
            self._start_waiting(at_s)
        self.is_news = self.is_news or bool(node.replaces)

    def _turn_window(self, at_s: float) -> None:
        for place in self.places.values():
            place.count(at_s, self.tally)
        self._count_busy(at_s)
        self.tally.at(at_s)  # windows may become longer
        self.at(self.tally.boundary_s(at_s), Kind.WINDOW, None)

    # --- markets ----------------------------------------------------------------------------------------------

    def _open_markets(self, begin_s: float) -> None:
        for key, place in self.places.items():
            if place.venue.stock is not None:
                self._stocks[key] = place.venue.stock.changes(begin_s)
                _, place.stock = next(self._stocks[key])
                place.soon = place.stock
                self._foresee(place, 0.0)
            if place.venue.price is not None:
                self._prices[key] = place.venue.price.changes(begin_s)
                _, price = next(self._prices[key])
                place.set_price(price)
                self._next_price(place)

    def _foresee(self, place: Place, now_s: float) -> None:
        """The next change of its stock; less stock is told before, to those who are taken."""
        found = next(self._stocks[place.key], None)
        if found is None:
            return
        at_s, stock = found
        place.change_s = at_s
        if stock < place.stock and self.physics.notice_s:
            place.soon = place.stock
            self.at(max(now_s, at_s - self.physics.notice_s), Kind.NOTICE, place, stock)
        self.at(at_s, Kind.TAKE, place, stock)

    def _next_price(self, place: Place) -> None:
        found = next(self._prices[place.key], None)
        if found is not None:
            self.at(found[0], Kind.PRICE, place, found[1])

    def _market(self, place: Place, at_s: float, kind: int, value: int) -> None:
        if kind == Kind.PRICE:
            place.count(at_s, self.tally)
            place.set_price(value)
            for tell in self.on_price:
                tell(place, at_s)
            self._next_price(place)
            self.is_news = self.is_news or self.queue.runs > 0
        elif kind == Kind.NOTICE:
            place.soon = value
            for node in list(place.to_take(value)):
                self._give_notice(node, at_s, place.change_s)
        else:
            self._restock(place, at_s, value)

    def _give_notice(self, node: Node, now_s: float, taken_at_s: float) -> None:
        self.close(node)
        node.taken_at_s, node.notice_s, node.seen = taken_at_s, taken_at_s - now_s, None
        self.is_news = True

    def _restock(self, place: Place, at_s: float, stock: int) -> None:
        was_closed = not place.stock
        if place.nodes:
            self._take(place, at_s, stock)
        place.stock = place.soon = stock
        if was_closed and stock and self.on_stock is not None:
            self.opened.append(place.key)
        self._foresee(place, at_s)
        if self.on_stock is not None:
            self.on_stock(at_s)
        self._start_waiting(at_s)

    def _take(self, place: Place, at_s: float, stock: int) -> None:
        taken = [node for node in place.nodes.values() if node.taken_at_s is not None]
        for node in [*taken, *place.to_take(stock)][: max(len(place.nodes) - stock, 0)]:
            self.tally.preemptions += 1
            self.experience.taken(place.offer.market, at_s)
            self.end_node(node, at_s, is_taken=True)
        for node in taken:
            if not node.is_gone:  # others have left meanwhile: it may stay
                node.taken_at_s, node.notice_s, node.seen = None, 0.0, None
                node.is_draining = node.leaves_at_s is not None
                self._offer_again(node)

    def _offer_again(self, node: Node) -> None:
        if node.joined_at_s is not None and node.is_open:
            node.place.free_gpus += node.free
            self.free_gpus += node.free
            self._offer_room(node)

    # --- jobs -------------------------------------------------------------------------------------------------

    def _wait(self, run: Run, now_s: float) -> None:
        """It was stopped by a loss."""
        self.tally.restarts += 1
        if self.on_stop is not None:
            self.on_stop(run, now_s)
        else:
            self.queue.add(run)
            self.is_news = True

    def _start_waiting(self, now_s: float) -> None:
        if not (self.queue.runs and self.free_gpus):
            return
        for where in self.queue.places:
            while True:
                room = self.free_gpus if where == ANYWHERE else self.places[where].free_gpus
                run = self.queue.first(where, room) if room else None
                if run is None:
                    break
                self._start(run, now_s)

    def _start(self, run: Run, now_s: float) -> None:
        self.queue.drop(run)
        self.take_room(run, run.gpus, now_s)
        self._count_busy(now_s)
        self.busy_gpus += run.gpus
        self.running += 1
        run.started_s = now_s if run.started_s is None else run.started_s
        if self.movers is not None and run.where == ANYWHERE:
            self.movers[run.number] = run
        self.go_on(run, now_s, self.physics.restart_s if run.has_begun else 0.0)
        run.has_begun = True

    def take_room(self, run: Run, count: int, now_s: float) -> None:
        """On the oldest nodes that have some."""
        heap = self._free if run.where == ANYWHERE else self.places[run.where].free
        while count:
            node = self.oldest(heap, run.where == ANYWHERE)
            taken = min(node.free, count)
            self.hold(node, run, taken, now_s)
            count -= taken

    def go_on(self, run: Run, now_s: float, pause_s: float) -> None:
        """It has all that it asked for, and works after a pause."""
        run.at_s, run.begin_s = now_s, now_s + pause_s
        run.epoch, self.moved_s = run.epoch + 1, now_s
        self.at(run.begin_s + run.left_s / run.speed, Kind.END, run, run.epoch)

    def oldest(self, heap: list[int], is_all: bool) -> Node:
        while True:
            node = self.nodes.get(heap[0])
            if node is not None and node.has_room:
                return node
            heapq.heappop(heap)
            if node is not None:
                node.is_in_all, node.is_in_place = node.is_in_all and not is_all, node.is_in_place and is_all

    def hold(self, node: Node, run: Run, count: int, now_s: float) -> None:
        self.idle.pop(node.number, None)
        node.free, node.seen, node.held_s = node.free - count, None, now_s
        node.place.free_gpus -= count
        self.free_gpus -= count
        if run.number in node.runs:  # it has some there already
            count += next(number for where, number in run.held if where is node)
            run.held = [each for each in run.held if each[0] is not node]
        node.runs[run.number] = run
        run.held.append((node, count))
        if self.movers is not None:
            self.holdings[run.name, node.name] = {"GPU": float(count)}

    def _leave(self, run: Run, now_s: float, useful: float, lost: float) -> None:
        self._count_busy(now_s)
        self.count_work(now_s, useful, lost)
        self.busy_gpus -= run.gpus
        self.running -= 1
        self.moved_s = now_s
        run.epoch += 1
        for node, count in run.held:
            self.release(node, run, count, now_s)
        run.held = []
        if self.movers is not None:
            self.movers.pop(run.number, None)

    def count_work(self, now_s: float, useful: float, lost: float) -> None:
        window = self.tally.at(now_s)
        window.useful_gpu_s += useful
        window.lost_gpu_s += lost

    def release(self, node: Node, run: Run, count: int, now_s: float) -> None:
        del node.runs[run.number]
        if self.movers is not None:
            del self.holdings[run.name, node.name]
        node.free, node.seen, node.held_s = node.free + count, None, now_s
        if node.is_open:
            node.place.free_gpus += count
            self.free_gpus += count
            self._offer_room(node)
        if not node.runs:
            node.idle_since_s = now_s
            self.idle[node.number] = node

    def _offer_room(self, node: Node) -> None:
        if not node.is_in_all:
            heapq.heappush(self._free, node.number)
        if not node.is_in_place:
            heapq.heappush(node.place.free, node.number)
        node.is_in_all = node.is_in_place = True

    def _count_busy(self, now_s: float) -> None:
        if self.busy_gpus:
            self.tally.at(self._busy_since_s).busy_gpu_s += self.busy_gpus * (now_s - self._busy_since_s)
        self._busy_since_s = now_s
