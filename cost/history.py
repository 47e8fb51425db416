"""What the log says of one node and of one market: the raw material that `settle.py` turns into money."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tradewind.events import EnergyMeasured
from tradewind.model import EndReason, Offer, Role

WHOLE_PPM = 1_000_000  # shares of a node are counted in millionths, so that they stay whole numbers
# A killed node's holdings may be seen to end before its loss is: a job that let go this shortly before lost it too.
LOSS_GRACE_MS = 60_000
# The least that is billed of a node, however shortly it lived. EC2 (Linux) and Compute Engine bill by the second, at
# least a minute; Azure has no minimum.
MINIMUM_BILLED_MS: Mapping[str, int] = {"aws": 60_000, "gcp": 60_000}


class Held(NamedTuple):
    """What a job holds of a node, in millionths. The share decides what it pays."""

    share_ppm: int
    accelerator_ppm: int


class Tenure(NamedTuple):
    """A stretch of time in which the same jobs hold the same shares."""

    from_ms: int
    until_ms: int
    held: Mapping[str, Held]  # by job


NOTHING = Held(0, 0)
ALL = Held(WHOLE_PPM, WHOLE_PPM)


def held_of(offer: Offer, resources: Mapping[str, float]) -> Held | None:
    """The share that these resources are of the offer; None: nothing is held.

    Accelerators decide where some are held, else CPUs, else memory: what is scarcest on such a machine.
    """
    if not any(amount > 0 for amount in resources.values()):
        return None
    accelerators = _ppm(resources.get("GPU", 0.0) + resources.get("TPU", 0.0), offer.accelerator_count * offer.hosts)
    cpus = _ppm(resources.get("CPU", 0.0), offer.vcpus * offer.hosts)
    memory = _ppm(resources.get("memory", 0.0), offer.memory_gib * offer.hosts * 2**30)
    return Held(accelerators or cpus or memory, accelerators)


def _ppm(held: float, whole: float) -> int:
    return min(round(held / whole * WHOLE_PPM), WHOLE_PPM) if whole > 0 else 0


@dataclass(slots=True)
class NodeHistory:
    launch_id: str
    offer: Offer
    requested_ms: int
    minimum_ms: int = 0  # the least that is billed
    launched_ms: int | None = None
    joined_ms: int | None = None
    notice_ms: int | None = None
    ended_ms: int | None = None
    end: EndReason | None = None
    instance_id: str = ""
    role: Role = Role.WORKER
    bought_for: tuple[str, ...] = ()  # jobs
    refused: bool = False  # by its cloud: it will never be there
    changes: list[tuple[int, str, Held | None]] = field(default_factory=list)  # (at, job, holds from then on)
    energy: dict[str, EnergyMeasured] | None = None  # the longest reading of each host that has a meter

    def hold(self, at_ms: int, job_id: str, resources: Mapping[str, float]) -> None:
        change = (at_ms, job_id, held_of(self.offer, resources))
        if self.changes and at_ms < self.changes[-1][0]:
            self.changes.insert(bisect_right(self.changes, at_ms, key=lambda known: known[0]), change)
        else:
            self.changes.append(change)

    def measure(self, reading: EnergyMeasured) -> None:
        known = self.energy = {} if self.energy is None else self.energy
        if reading.host not in known or reading.seconds >= known[reading.host].seconds:
            known[reading.host] = reading

    @property
    def first_held_ms(self) -> int | None:
        return next((at for at, _, held in self.changes if held), None)

    @property
    def in_ray_from_ms(self) -> int | None:
        """When it joined; a node on which a job holds something has joined, whatever else was heard."""
        known = [at for at in (self.joined_ms, self.first_held_ms) if at is not None]
        return min(known, default=None)

    @property
    def billed_until_ms(self) -> int | None:
        """None: until now. A node that ended early is billed for the minimum."""
        if self.ended_ms is None or self.launched_ms is None:
            return None
        return max(self.ended_ms, self.launched_ms + self.minimum_ms)

    def is_alive(self, now_ms: int) -> bool:
        """It is billed, or may be soon."""
        return not self.refused and (self.ended_ms is None or self.ended_ms > now_ms)

    def tenures(self, from_ms: int, until_ms: int) -> Iterator[Tenure]:
        """[from, until) cut where holdings change."""
        held: dict[str, Held] = {}
        cursor_ms = from_ms
        for at_ms, job_id, now_held in self.changes:
            if at_ms >= until_ms:
                break
            if at_ms > cursor_ms:
                yield Tenure(cursor_ms, at_ms, dict(held))
                cursor_ms = at_ms
            held.pop(job_id, None)
            if now_held:
                held[job_id] = now_held
        if until_ms > cursor_ms:
            yield Tenure(cursor_ms, until_ms, held)

    def was_held(self, job_id: str, from_ms: int, until_ms: int) -> bool:
        """At any moment of [from, until], ends included."""
        return any(job_id in tenure.held for tenure in self.tenures(from_ms, until_ms + 1))

    def noticed(self, job_id: str, now_ms: int) -> bool:
        """Its end was announced while the job was on it."""
        at_ms = self.notice_ms
        return at_ms is not None and at_ms <= now_ms and self.was_held(job_id, at_ms, at_ms)

    def lost_by(self, job_id: str, now_ms: int) -> bool:
        """It was taken from the job: it ended unasked, or we ended it after the cloud had announced that it would."""
        if self.ended_ms is None or self.ended_ms > now_ms:
            return False
        unasked = self.end is not EndReason.TERMINATED
        return self.noticed(job_id, now_ms) or (
            unasked and self.was_held(job_id, self.ended_ms - LOSS_GRACE_MS, self.ended_ms)
        )


@dataclass(slots=True)
class PriceHistory:
    """The prices of one market, as they changed."""

    times_ms: list[int] = field(default_factory=list)
    prices_uusd_per_h: list[int] = field(default_factory=list)

    def add(self, at_ms: int, price_uusd_per_h: int) -> None:
        i = bisect_right(self.times_ms, at_ms)
        self.times_ms.insert(i, at_ms)
        self.prices_uusd_per_h.insert(i, price_uusd_per_h)

    def moved_ms(self, node: NodeHistory) -> int | None:
        """When the market's price first changed after the node was asked for. Until then the offer's price holds."""
        i = bisect_right(self.times_ms, node.requested_ms)
        return self.times_ms[i] if i < len(self.times_ms) else None

    def at(self, node: NodeHistory, at_ms: int) -> int | None:
        """The offer's price, until the market's price changes after the node was asked for."""
        i = bisect_right(self.times_ms, at_ms) - 1
        moved = i >= 0 and self.times_ms[i] > node.requested_ms
        return self.prices_uusd_per_h[i] if moved else node.offer.price_uusd_per_h

    def pieces(self, node: NodeHistory, from_ms: int, until_ms: int) -> Iterator[tuple[int, int, int | None]]:
        """[from, until) cut where the price changes: (from, until, price)."""
        price, cursor_ms = self.at(node, from_ms), from_ms
        for i in range(bisect_right(self.times_ms, from_ms), len(self.times_ms)):
            at_ms = self.times_ms[i]
            if at_ms >= until_ms:
                break
            after = self.prices_uusd_per_h[i]
            if after != price and at_ms > node.requested_ms:
                yield cursor_ms, at_ms, price
                price, cursor_ms = after, at_ms
        if until_ms > cursor_ms:
            yield cursor_ms, until_ms, price
