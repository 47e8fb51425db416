"""What one job could be bought on: what the fleet sells, within its limits, were nobody else there; without a fleet,
what the catalogue has. Where the limits leave few of the cheapest, a dearer one may be the net that keeps a contract.
 Pure, but for reading the file. For `tradewind plan`, and for what is promised at `submit`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.contract.pricing import Priced, priced
from tradewind.autoscaler.contract.room import Room, rooms_of
from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.observe import copies_beside
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.config import FleetConfig, load_fleet
from tradewind.cost import catalog
from tradewind.errors import ConfigError, Problem
from tradewind.fleet_offers import all_offers, limits_of
from tradewind.home import FleetHome
from tradewind.model import LABEL_ACCELERATOR, JobSpec, Offer, Wish
from tradewind.past import LOG

_ANY = "the whole catalogue: there is no fleet here; with --fleet-file FILE, what that one may buy"
ALLOW = "raise it in `limits` of the fleet file, or ask for fewer"


@dataclass(frozen=True, slots=True)
class Shelf:
    """`on_demand` and `spot` hold its workers, the cheapest first; `most` workers are within the limits."""

    on_demand: Priced
    spot: tuple[Priced, ...]
    most: int
    less: str = ""  # the limit that allows no more, in words; empty: all that it may have are allowed


@dataclass(frozen=True, slots=True)
class Bare:
    """Nothing on demand is left, so nothing could be promised."""

    limit: str = ""  # that forbids it, in words; empty: nothing on demand holds a worker
    can_start: bool = True  # on spot, or on nodes that nobody bought


def shelves_of(spec: JobSpec, speeds: Sequence[float], views: Sequence[View]) -> tuple[Shelf, ...] | Bare:
    """By what the cells of a fleet see; `speeds` by the number of workers. The cheapest first: each further one is
    dearer on demand, and its limits leave more workers."""
    least, wanted = max(spec.min_workers, 1), max(spec.max_workers, 1)
    rows = sorted(_rows(spec, speeds, views), key=lambda row: (row.priced.work_uusd_per_h, row.priced.key))
    found: list[Shelf] = []
    for net in rows:
        most = min(wanted, net.workers)
        if net.priced.is_on_demand and most >= max(least, found[-1].most + 1 if found else 0):
            spot = tuple(row.priced for row in rows if not row.priced.is_on_demand and row.workers >= most)
            less = f"{net.limit.name} allows {most} of {wanted} workers" if net.limit and most < wanted else ""
            found.append(Shelf(net.priced, spot, most, less))
    return tuple(found) or _bare(spec, views, rows, least)


def _bare(spec: JobSpec, views: Sequence[View], rows: Sequence[Room], least: int) -> Bare:
    limit = next((row.limit for row in rows if row.priced.is_on_demand), None)
    if limit is None:
        return Bare()
    shape = Shape.of(spec.worker_resources, spec.worker_labels)
    beside = max(copies_beside(view, shape) for view in views)
    can_start = any(row.workers + beside >= least for row in rows)
    return Bare(f"{limit.name} allows fewer than the {least} it needs on demand", can_start)


def _rows(spec: JobSpec, speeds: Sequence[float], views: Iterable[View]) -> Iterator[Room]:
    """Before it runs, a worker is taken for a replica."""
    wish = Wish("", spec.min_workers, spec.max_workers, spec.worker_resources, spec.worker_labels)
    for view in views:
        yield from rooms_of(priced(wish, speeds, view), view.settings.limits, spec.tenant)


# --- before anything is there ---------------------------------------------------------------------------------------


def fleet_of(place: FleetHome) -> FleetConfig | None:
    """The file of a fleet that runs or ran; of one that was started without, the defaults. None: there is no fleet."""
    kept = place.folder / "fleet.yaml"
    if kept.exists():
        return load_fleet(kept)
    is_known = place.announced() is not None or (place.folder / LOG).exists()
    return FleetConfig(name=place.fleet) if is_known else None


def shelves_for(
    spec: JobSpec, speeds: Sequence[float], fleet: FleetConfig | None, cloud: str | None, now_s: float
) -> tuple[Shelf, ...]:
    """Raises ConfigError where nothing on demand is left."""
    limits = Limits() if fleet is None else limits_of(fleet)
    sold = tuple(_sold(fleet, _accelerator(spec), cloud))
    view = View(now_s, LoopSettings(fleet.name if fleet else "", limits=limits), offers=sold)
    found = shelves_of(spec, speeds, [view])
    if isinstance(found, Bare):
        raise _limits_forbid(found.limit) if found.limit else _nothing_fits(fleet)
    return found


def _sold(fleet: FleetConfig | None, accelerator: str, cloud: str | None) -> Iterator[Offer]:
    """Raises ConfigError for names that the catalogue does not have."""
    known = catalog.load()
    clouds = catalog.names_like("cloud", cloud, known.clouds) if cloud else known.clouds
    kinds = catalog.names_like("accelerator", accelerator, known.accelerators) if accelerator else None
    for offer in known.find(accelerator or None) if fleet is None else all_offers(fleet):
        if offer.market.cloud in clouds and (kinds is None or offer.accelerator in kinds):
            yield offer


def _accelerator(spec: JobSpec) -> str:
    label = spec.worker_labels.get(LABEL_ACCELERATOR, "")
    if label and not label.startswith(("!", "in(")):
        return label
    named = [name.partition(":")[2] for name in spec.worker_resources if name.startswith("accelerator_type:")]
    return named[0] if named else ""


# --- in words -------------------------------------------------------------------------------------------------------


def basis_of(fleet: FleetConfig | None, shelf: Shelf) -> str:
    if fleet is None:
        return _ANY
    return f"what fleet {fleet.name} may buy" + (f"; {shelf.less}" if shelf.less else "")


def _nothing_fits(fleet: FleetConfig | None) -> ConfigError:
    if fleet is None:
        problem = Problem("plan", "resources", "the catalogue has no machine that holds one worker, on demand")
        return ConfigError([problem], "ask for less per worker, or for another accelerator, cloud or label")
    told = f"fleet {fleet.name} may buy no machine that holds one worker, on demand"
    hint = "`offers` in its file say what it may buy; or ask for less per worker, another accelerator, cloud or label"
    return ConfigError([Problem("plan", "resources", told)], hint)


def _limits_forbid(limit: str) -> ConfigError:
    return ConfigError([Problem("plan", "workers", limit)], ALLOW)
