"""The bill of one node for one day, cut into rows by job and label. Pure; `books.py` calls it for each node and day.

A node's bill of a day (UTC) is the sum of price x time, rounded down once. Every row has an exact weight,
price x time x share, in whole numbers; the bill is shared out by these weights to the micro-dollar. So the rows add up
to the bill, each is less than a micro-dollar off its exact value, and it makes no difference how finely the time was
cut. Days are the grid, so that days, too, add up exactly, and a day that is over need not be settled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tradewind.cost.history import ALL, NOTHING, WHOLE_PPM, Held, NodeHistory, PriceHistory, Tenure
from tradewind.cost.labels import JOB_LABELS, OVERHEAD, Label
from tradewind.cost.timeline import Timeline
from tradewind.model import Capacity, Offer, Role
from tradewind.units import MS_PER_H, split_uusd

FLEET = ""  # stands for a job id where no job pays
DAY_MS = 24 * MS_PER_H
Key = tuple[str, int]  # job, and position in LABELS (a number, because hashing an enum a million times takes long)
Pieces = Sequence[tuple[int, int, int | None]]  # stretches of time without gaps: from, until, price
LABELS = JOB_LABELS + OVERHEAD
_BOOTING, _QUEUED, _IDLE, _FAILED, _PLATFORM = (
    LABELS.index(label) for label in (Label.BOOTING, Label.QUEUED, Label.IDLE, Label.FAILED, Label.PLATFORM)
)
_AS_IT_TELLS = -1  # in the place of a label: the job's timeline gives it


class Row(NamedTuple):
    """What one label of one job cost on one node on one day."""

    job_id: str  # FLEET: nobody's
    label: int  # in LABELS
    cost_uusd: int
    on_demand_uusd: int  # the same at the list price of on-demand
    duration_ms: int
    accelerator_ppm_ms: int  # time x millionths of the node's accelerators
    unpriced_ms: int  # of the duration: no price was known
    unlisted_ms: int  # of the duration: no on-demand price was known


Statement = tuple[Row, ...]


class Claim(NamedTuple):
    """Who pays for which share of a stretch, and under which label."""

    job_id: str
    label: int
    held: Held


Stretch = tuple[int, int, tuple[Claim, ...]]  # from, until, who pays


@dataclass(slots=True)
class _Weights:
    paid: int = 0  # price x ms x ppm
    time_ppm_ms: int = 0
    duration_ms: int = 0
    accelerator_ppm_ms: int = 0
    unpriced_ms: int = 0


@dataclass(slots=True)
class _Tally:
    """Exact weights by job and label, as they are summed up over a day."""

    by_key: dict[Key, _Weights] = field(default_factory=dict)

    def add(self, key: Key, held: Held, paid: int, duration_ms: int, unpriced_ms: int) -> None:
        """`paid` is price x ms."""
        weights = self.by_key.setdefault(key, _Weights())
        weights.paid += paid * held.share_ppm
        weights.time_ppm_ms += duration_ms * held.share_ppm
        weights.duration_ms += duration_ms
        weights.accelerator_ppm_ms += duration_ms * held.accelerator_ppm
        weights.unpriced_ms += unpriced_ms


# --- who pays when --------------------------------------------------------------------------------------------------


def stretches(node: NodeHistory, from_ms: int, now_ms: int, queued_until_ms: int) -> Iterator[Stretch]:
    """The billed time of a node that was launched, from `from_ms` to `now_ms` or its end, cut where the payers change.

    `queued_until_ms`: up to then, time that nobody holds waits for the jobs that it was bought for.
    """
    assert node.launched_ms is not None
    billed_until_ms, ended_ms = node.billed_until_ms, node.ended_ms
    over = ended_ms is not None and ended_ms <= now_ms
    until_ms = now_ms if billed_until_ms is None or not over else min(now_ms, billed_until_ms)
    lived_until_ms = min(until_ms, ended_ms) if over and ended_ms is not None else until_ms
    if node.role is Role.HEAD:
        if until_ms > from_ms:
            yield max(from_ms, node.launched_ms), until_ms, (Claim(FLEET, _PLATFORM, ALL),)
        return
    joined_ms = node.in_ray_from_ms
    never = joined_ms is None or joined_ms > lived_until_ms
    boots_until_ms = until_ms if never or joined_ms is None else max(joined_ms, node.launched_ms)
    boot_label = _FAILED if never and over else _BOOTING
    if boots_until_ms > from_ms:
        yield max(from_ms, node.launched_ms), boots_until_ms, (Claim(FLEET, boot_label, ALL),)
    for tenure in node.tenures(max(from_ms, boots_until_ms), lived_until_ms):
        yield from _of_tenure(tenure, queued_until_ms)
    beyond_ms = max(from_ms, boots_until_ms, lived_until_ms)
    if until_ms > beyond_ms:
        yield beyond_ms, until_ms, (Claim(FLEET, _IDLE, ALL),)


def _of_tenure(tenure: Tenure, queued_until_ms: int) -> Iterator[Stretch]:
    if tenure.held:
        yield tenure.from_ms, tenure.until_ms, _claims(tenure)
        return
    queued_until_ms = min(max(queued_until_ms, tenure.from_ms), tenure.until_ms)
    if queued_until_ms > tenure.from_ms:
        yield tenure.from_ms, queued_until_ms, (Claim(FLEET, _QUEUED, ALL),)
    if queued_until_ms < tenure.until_ms:
        yield queued_until_ms, tenure.until_ms, (Claim(FLEET, _IDLE, ALL),)


def _claims(tenure: Tenure) -> tuple[Claim, ...]:
    """Each job's share and, as FLEET's, what is left. Where more is held than there is, all shrink in proportion."""
    jobs = sorted(tenure.held)
    share_ppm = _fit([tenure.held[job].share_ppm for job in jobs])
    accelerator_ppm = _fit([tenure.held[job].accelerator_ppm for job in jobs])
    claims = [
        Claim(job, _AS_IT_TELLS, Held(*each)) for job, *each in zip(jobs, share_ppm, accelerator_ppm, strict=True)
    ]
    rest = Held(WHOLE_PPM - sum(share_ppm), WHOLE_PPM - sum(accelerator_ppm))
    return tuple(claims if rest == NOTHING else [*claims, Claim(FLEET, _IDLE, rest)])


def _fit(parts_ppm: list[int]) -> list[int]:
    return split_uusd(WHOLE_PPM, parts_ppm) if sum(parts_ppm) > WHOLE_PPM else parts_ppm


def by_day(found: Iterable[Stretch]) -> Iterator[tuple[int, tuple[Stretch, ...]]]:
    """(day, its stretches): cut at midnight, UTC."""
    day, mine = -1, list[Stretch]()
    for from_ms, until_ms, claims in found:
        while from_ms < until_ms:
            here = from_ms // DAY_MS
            if here != day and mine:
                yield day, tuple(mine)
                mine = []
            day, cut_ms = here, min(until_ms, (here + 1) * DAY_MS)
            mine.append((from_ms, cut_ms, claims))
            from_ms = cut_ms
    if mine:
        yield day, tuple(mine)


# --- what it costs --------------------------------------------------------------------------------------------------

Spent = tuple[tuple[int, int, int, int], ...]  # of a job in a stretch: label, price x ms, ms, ms without a price


@dataclass(slots=True)
class Memory:
    """What was worked out for one node, and holds for others that were held alike. Of one settling."""

    statements: dict[tuple[object, ...], Statement] = field(default_factory=dict)
    spent: dict[tuple[object, ...], Spent] = field(default_factory=dict)


def statement(
    node: NodeHistory,
    of_day: tuple[Stretch, ...],
    prices: PriceHistory,
    timelines: Mapping[str, Timeline],
    memory: Memory,
) -> Statement:
    """Nodes of one offer that were held alike all day have the same statement: `memory` works it out once."""
    moved_ms, from_ms = prices.moved_ms(node), of_day[0][0]
    offered_until_ms = None if moved_ms is None else max(moved_ms, from_ms)
    key = (id(node.offer), offered_until_ms, of_day)
    found = memory.statements.get(key)
    if found is not None:
        return found
    tally = _Tally()
    for from_ms, until_ms, claims in of_day:
        offered_ms = None if moved_ms is None else max(moved_ms, from_ms)
        for job_id, label, held in claims:
            where = (id(node.offer), offered_ms, job_id, label, from_ms, until_ms)
            spent = memory.spent.get(where)
            if spent is None:
                pieces = list(prices.pieces(node, from_ms, until_ms))
                spent = memory.spent[where] = (
                    _spent_by_job(pieces, timelines[job_id]) if label == _AS_IT_TELLS else _spent(pieces, label)
                )
            for of_label, paid, duration_ms, unpriced_ms in spent:
                tally.add((job_id, of_label), held, paid, duration_ms, unpriced_ms)
    found = memory.statements[key] = _rows(tally, node.offer)
    return found


def _spent(pieces: Pieces, label: int) -> Spent:
    """All of the time has one label."""
    paid = sum(price * (to_ms - from_ms) for from_ms, to_ms, price in pieces if price)
    unpriced_ms = sum(to_ms - from_ms for from_ms, to_ms, price in pieces if price is None)
    return ((label, paid, pieces[-1][1] - pieces[0][0], unpriced_ms),)


def _spent_by_job(pieces: Pieces, timeline: Timeline) -> Spent:
    """The job's timeline gives the labels. This is where a bill's time goes."""
    paid, duration_ms, unpriced_ms = ([0] * len(JOB_LABELS) for _ in range(3))
    for from_ms, to_ms, price in pieces:
        for label, spell_ms in timeline.between(from_ms, to_ms):
            duration_ms[label] += spell_ms
            if price is None:
                unpriced_ms[label] += spell_ms
            else:
                paid[label] += price * spell_ms
    return tuple(
        (label, paid[label], of_label_ms, unpriced_ms[label])
        for label, of_label_ms in enumerate(duration_ms)
        if of_label_ms
    )


def _rows(tally: _Tally, offer: Offer) -> Statement:
    keys = sorted(tally.by_key)
    weights = [tally.by_key[key] for key in keys]
    costs = _share([each.paid for each in weights])
    list_price = on_demand_price(offer)
    listed = _share([(list_price or 0) * each.time_ppm_ms for each in weights])
    return tuple(
        Row(
            job,
            label,
            cost,
            at_list_price,
            each.duration_ms,
            each.accelerator_ppm_ms,
            each.unpriced_ms,
            each.duration_ms if list_price is None else 0,
        )
        for (job, label), cost, at_list_price, each in zip(keys, costs, listed, weights, strict=True)
    )


def on_demand_price(offer: Offer) -> int | None:
    if offer.on_demand_uusd_per_h is None and offer.market.capacity is Capacity.ON_DEMAND:
        return offer.price_uusd_per_h
    return offer.on_demand_uusd_per_h


def _share(weights: list[int]) -> list[int]:
    """Each weight as micro-dollars, so rounded that they add up to the rounded-down whole: largest remainder first."""
    unit = MS_PER_H * WHOLE_PPM
    amounts = [weight // unit for weight in weights]
    left_uusd = sum(weights) // unit - sum(amounts)
    if left_uusd:
        by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] % unit), i))
        for i in by_remainder[:left_uusd]:
            amounts[i] += 1
    return amounts
