"""The bill of one node, cut into entries by job and label. Pure; called by the ledger for each node.

A node's bill is the sum of price x time over its life, rounded down once. Every entry has an exact weight,
price x time x share, in whole numbers; the bill is shared out by these weights to the micro-dollar. So the entries
add up to the bill, each is less than a micro-dollar off its exact value, and it makes no difference how finely the
time was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.cost.history import NOTHING, WHOLE_PPM, Held, NodeHistory, PriceHistory, Tenure
from tradewind.cost.labels import JOB_LABELS, OVERHEAD, Label
from tradewind.cost.timeline import Timeline
from tradewind.model import Capacity, EndReason, Offer
from tradewind.units import MS_PER_H, split_uusd

FLEET = ""  # stands for a job id where no job pays
Key = tuple[str, int]  # job, and position in LABELS (a number, because hashing an enum a million times takes long)
Pieces = Sequence[tuple[int, int, int | None]]  # stretches of time without gaps: from, until, price
LABELS = JOB_LABELS + OVERHEAD
_BOOTING, _IDLE, _FAILED = (LABELS.index(label) for label in (Label.BOOTING, Label.IDLE, Label.FAILED))


@dataclass(frozen=True, slots=True)
class Entry:
    """What one label of one job cost on one node. `on_demand_uusd`: the same at the list price of on-demand."""

    launch_id: str
    job_id: str  # FLEET: nobody's
    label: Label
    cost_uusd: int
    on_demand_uusd: int
    duration_ms: int
    accelerator_ppm_ms: int  # time x millionths of the node's accelerators
    unpriced_ms: int  # of the duration: no price was known


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """One node's bill at a moment. `entries` add up to `cost_uusd`."""

    launch_id: str
    offer: Offer
    launched_ms: int
    joined_ms: int | None
    ended_ms: int | None  # None: still billed
    end: EndReason | None
    until_ms: int
    price_uusd_per_h: int | None  # the last one
    cost_uusd: int
    on_demand_uusd: int | None  # None: the on-demand price is unknown
    unpriced_ms: int
    entries: tuple[Entry, ...]

    @property
    def accelerators(self) -> float:
        return self.offer.accelerator_count * self.offer.hosts

    @property
    def duration_ms(self) -> int:
        return self.until_ms - self.launched_ms


@dataclass(slots=True)
class _Weights:
    paid: int = 0  # price x ms x ppm
    time_ppm_ms: int = 0
    duration_ms: int = 0
    accelerator_ppm_ms: int = 0
    unpriced_ms: int = 0


@dataclass(slots=True)
class _Tally:
    """Exact weights by job and label, as they are summed up over a node's life."""

    by_key: dict[Key, _Weights] = field(default_factory=dict)

    def add(self, key: Key, held: Held, paid: int, duration_ms: int, unpriced_ms: int) -> None:
        """`paid` is price x ms."""
        weights = self.by_key.setdefault(key, _Weights())
        weights.paid += paid * held.share_ppm
        weights.time_ppm_ms += duration_ms * held.share_ppm
        weights.duration_ms += duration_ms
        weights.accelerator_ppm_ms += duration_ms * held.accelerator_ppm
        weights.unpriced_ms += unpriced_ms

    def add_all(self, key: Key, held: Held, pieces: Pieces) -> None:
        """All of the time has one label."""
        paid = sum(price * (to_ms - from_ms) for from_ms, to_ms, price in pieces if price)
        unpriced_ms = sum(to_ms - from_ms for from_ms, to_ms, price in pieces if price is None)
        if pieces:
            self.add(key, held, paid, pieces[-1][1] - pieces[0][0], unpriced_ms)

    def add_job(self, job_id: str, held: Held, pieces: Pieces, timeline: Timeline) -> None:
        """The job's timeline gives the labels. Summed by label first: this is where a bill's time goes."""
        paid, duration_ms, unpriced_ms = ([0] * len(JOB_LABELS) for _ in range(3))
        for from_ms, to_ms, price in pieces:
            for label, spell_ms in timeline.between(from_ms, to_ms):
                duration_ms[label] += spell_ms
                if price is None:
                    unpriced_ms[label] += spell_ms
                else:
                    paid[label] += price * spell_ms
        for label, of_label_ms in enumerate(duration_ms):
            if of_label_ms:
                self.add((job_id, label), held, paid[label], of_label_ms, unpriced_ms[label])


def settle(
    node: NodeHistory, launched_ms: int, prices: PriceHistory, timelines: Mapping[str, Timeline], now_ms: int
) -> NodeAccount:
    """The account of a node that was launched, at `now_ms`."""
    over = node.ended_ms is not None and node.ended_ms <= now_ms
    until_ms = max(node.ended_ms if node.ended_ms is not None and over else now_ms, launched_ms)
    entries = _entries(node.launch_id, _tally(node, launched_ms, until_ms, over, prices, timelines), node.offer)
    return NodeAccount(
        launch_id=node.launch_id,
        offer=node.offer,
        launched_ms=launched_ms,
        joined_ms=_seen(node.in_ray_from_ms, until_ms),
        ended_ms=until_ms if over else None,
        end=node.end if over else None,
        until_ms=until_ms,
        price_uusd_per_h=prices.at(node, until_ms),
        cost_uusd=sum(entry.cost_uusd for entry in entries),
        on_demand_uusd=None if on_demand_price(node.offer) is None else sum(entry.on_demand_uusd for entry in entries),
        unpriced_ms=sum(to - at for at, to, price in prices.pieces(node, launched_ms, until_ms) if price is None),
        entries=entries,
    )


def on_demand_price(offer: Offer) -> int | None:
    if offer.on_demand_uusd_per_h is None and offer.market.capacity is Capacity.ON_DEMAND:
        return offer.price_uusd_per_h
    return offer.on_demand_uusd_per_h


def _entries(launch_id: str, tally: _Tally, offer: Offer) -> tuple[Entry, ...]:
    keys = sorted(tally.by_key)
    weights = [tally.by_key[key] for key in keys]
    costs = _share([each.paid for each in weights])
    list_price = on_demand_price(offer) or 0
    listed = _share([list_price * each.time_ppm_ms for each in weights])
    return tuple(
        Entry(
            launch_id,
            job,
            LABELS[label],
            cost,
            at_list_price,
            each.duration_ms,
            each.accelerator_ppm_ms,
            each.unpriced_ms,
        )
        for (job, label), cost, at_list_price, each in zip(keys, costs, listed, weights, strict=True)
    )


def _tally(
    node: NodeHistory,
    launched_ms: int,
    until_ms: int,
    over: bool,
    prices: PriceHistory,
    timelines: Mapping[str, Timeline],
) -> _Tally:
    tally = _Tally()
    joined_ms = node.in_ray_from_ms
    if joined_ms is None or joined_ms > until_ms:
        joined_ms, boot_label = until_ms, _FAILED if over else _BOOTING
    else:
        joined_ms, boot_label = max(joined_ms, launched_ms), _BOOTING
    booting = list(prices.pieces(node, launched_ms, joined_ms))
    tally.add_all((FLEET, boot_label), Held(WHOLE_PPM, WHOLE_PPM), booting)
    for tenure in node.tenures(joined_ms, until_ms):
        pieces = list(prices.pieces(node, tenure.from_ms, tenure.until_ms))
        for job_id, held in _shares(tenure).items():
            if job_id == FLEET:
                tally.add_all((FLEET, _IDLE), held, pieces)
            else:
                tally.add_job(job_id, held, pieces, timelines[job_id])
    return tally


def _shares(tenure: Tenure) -> dict[str, Held]:
    """Each job's share and, as FLEET's, what is left. Where more is held than there is, all shrink in proportion."""
    jobs = sorted(tenure.held)
    share_ppm = _fit([tenure.held[job].share_ppm for job in jobs])
    accelerator_ppm = _fit([tenure.held[job].accelerator_ppm for job in jobs])
    shares = {job: Held(*each) for job, *each in zip(jobs, share_ppm, accelerator_ppm, strict=True)}
    rest = Held(WHOLE_PPM - sum(share_ppm), WHOLE_PPM - sum(accelerator_ppm))
    return shares if rest == NOTHING else {**shares, FLEET: rest}


def _fit(parts_ppm: list[int]) -> list[int]:
    return split_uusd(WHOLE_PPM, parts_ppm) if sum(parts_ppm) > WHOLE_PPM else parts_ppm


def _share(weights: list[int]) -> list[int]:
    """Each weight as micro-dollars, so rounded that they add up to the rounded-down whole: largest remainder first."""
    unit = MS_PER_H * WHOLE_PPM
    amounts = [weight // unit for weight in weights]
    left_uusd = sum(weights) // unit - sum(amounts)
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] % unit), i))
    for i in by_remainder[:left_uusd]:
        amounts[i] += 1
    return amounts


def _seen(at_ms: int | None, now_ms: int) -> int | None:
    return at_ms if at_ms is not None and at_ms <= now_ms else None
