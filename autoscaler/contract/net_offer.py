"""Which on-demand offer is the safety net of a job with a contract. Pure.

Stands under live.py. Packing buys the cheapest within the limits, so mostly nothing need be said. But a limit on nodes
leaves few workers on small machines: where so few would be too late, a dearer machine that holds more is asked for by
its name. `tradewind plan` and `submit` look for the same (platform/tradewind/plan_offers.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from tradewind.autoscaler.contract.progress import boot_s, start_s, work_of
from tradewind.autoscaler.contract.room import Room, least
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.pace import Pace
from tradewind.autoscaler.packing_stock import why_closed
from tradewind.autoscaler.view import View
from tradewind.model import Wish


def net_of(
    job: JobRecord, pace: Pace | None, wish: Wish, rooms: Sequence[Room], keys: Collection[str], view: View
) -> tuple[Room | None, bool]:
    """`keys`: where the job is. The offer that it is on, else the cheapest that the limits leave room on. Packing would
    take the same; where so few of the cheapest would be too late, the next dearer of which enough are in time must be
    named (True), or the one that is the least late."""
    dear = [each for each in rooms if each.priced.is_on_demand]
    allowed = [each for each in dear if each.replicas(wish) >= least(wish)] or dear
    usual = next((each for each in allowed if each.priced.key in keys), allowed[0] if allowed else None)
    if usual is None or job.spec.contract.deadline_at_s is None:
        return usual, False
    left_s = job.spec.contract.deadline_at_s - view.now_s
    if _needs_s(allowed[0], job, pace, wish, keys, view) <= left_s:
        return usual, False
    roomier = [usual, *_roomier(allowed, wish)]
    open_ = [each for each in roomier if each.priced.key in keys or not why_closed(each.priced.offer, view)]
    needed_s = {each.priced.key: _needs_s(each, job, pace, wish, keys, view) for each in open_}
    found = min(open_, key=lambda each: max(needed_s[each.priced.key] - left_s, 0.0), default=usual)
    return found, found is not allowed[0]


def _roomier(allowed: Iterable[Room], wish: Wish) -> Iterable[Room]:
    """Each leaves room for more than all before it."""
    most = 0
    for each in allowed:
        if (room := min(each.replicas(wish), wish.max_replicas)) > most:
            most = room
            yield each


def _needs_s(room: Room, job: JobRecord, pace: Pace | None, wish: Wish, keys: Collection[str], view: View) -> float:
    """To the end, on as many as there is room for."""
    work = work_of(job, pace, wish, min(wish.max_replicas, room.replicas(wish)))
    if work is None:
        return 0.0
    begin_s = boot_s(view.knowledge, room.priced.offer.market, view.settings.usual_boot_s) + start_s(pace)
    return work.left_s / max(work.speeds) + (0.0 if room.priced.key in keys else begin_s)
