"""What a job could get at all, were nobody else there: said when it is submitted, since it would wait for ever. Pure.

Nothing is refused for it: nodes may be added by hand, and the fleet's file may be changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tradewind.autoscaler.limits import Bound, bounds_of
from tradewind.autoscaler.observe import copies_beside
from tradewind.autoscaler.packing_holds import what_is_missing
from tradewind.autoscaler.packing_reasons import copies_on
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.model import JobSpec, Offer

_Fitting = Sequence[tuple[Offer, int]]  # with the workers that one of it holds


def doubt(spec: JobSpec, views: Sequence[View]) -> str:
    """Why its workers would never start on what the fleet may buy, by what its cells see. Empty: they may, or not
    enough is known (the program asks Ray itself, or no cell has looked yet)."""
    seen = [view for view in views if view.offers]
    if not spec.max_workers or not seen:
        return ""
    shape, least = Shape.of(spec.worker_resources, spec.worker_labels), max(spec.min_workers, 1)
    rows = [_most(shape, spec.tenant, view) for view in seen]  # a job runs in one cell
    most, limit = max(rows, key=lambda row: row[0])
    if most >= least:
        return ""
    if limit is None:
        return f"its workers can never start: {what_is_missing(shape, _together(seen))}"
    return f"its workers can never start: it needs {least} at once, and {limit.name} allows {math.floor(most)}"


def _together(views: Sequence[View]) -> View:
    return replace(views[0], offers=tuple(dict.fromkeys(offer for view in views for offer in view.offers)))


def _most(shape: Shape, tenant: str, view: View) -> tuple[float, Bound | None]:
    """No fewer workers than there could be, and the limit that allows no more; None where it is none."""
    beside = copies_beside(view, shape)
    fitting = [(offer, copies) for offer in view.offers if (copies := copies_on(offer, shape, view))]
    if not fitting:
        return beside, None
    most, limit = min(_rooms(fitting, tenant, view), key=lambda row: row[0], default=(math.inf, None))
    return beside + most, limit


def _rooms(fitting: _Fitting, tenant: str, view: View) -> Iterator[tuple[float, Bound]]:
    """By each limit that all of them count for. Those of single clouds or kinds leave others."""
    for bound in bounds_of(view.settings.limits, (tenant,)):
        if not bound.is_rate and all(bound.is_about(offer, (tenant,)) for offer, _ in fitting):
            yield math.floor(max(_copies(offer, copies, bound) for offer, copies in fitting) + 1e-9), bound


def _copies(offer: Offer, copies: int, bound: Bound) -> float:
    weight = bound.weigh(offer)
    return bound.most / weight * copies if weight else math.inf
