"""What a fleet without a controller has done and cost: its event log, read only. Stands where `client.Fleet` stands for
`tradewind cost`, `jobs`, `nodes`, `forecast` and `why`; it starts nothing and writes nothing.

Carbon is by the regions' means here: the grid file of the fleet is its controller's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tradewind.api import (
    FORECAST_HOURS,
    FORECAST_SERIES,
    About,
    ForecastReport,
    JobInfo,
    NodeInfo,
    Story,
    job_not_found,
    pick,
)
from tradewind.cost.figures import By, Summary, summary
from tradewind.cost.focus import focus_csv
from tradewind.cost.receipt import Bill, Receipt, bill, receipt
from tradewind.errors import ControllerError
from tradewind.home import FleetHome, meant_fleet
from tradewind.journal import Journal
from tradewind.store import EventLog
from tradewind.units import parse_duration_s
from tradewind.views import Costs, job_info, node_infos, picked
from tradewind.why import Scene
from tradewind.why_told import story, told_of

if TYPE_CHECKING:
    from tradewind.cost.page import Report

LOG = "events.db"


def open_past(place: FleetHome) -> PastFleet | None:
    """None: it has none, a controller runs, or one has died, whose nodes may still run: what is past is not known."""
    path = place.folder / LOG
    if place.announced() is not None or not path.exists():
        return None
    with EventLog.read_only(path) as log:
        return PastFleet(place, Journal.load(log))


def past_fleets(root: Path) -> list[str]:
    """The fleets under a home that have a log."""
    return sorted(path.parent.name for path in root.glob(f"*/{LOG}"))


@dataclass(slots=True)
class PastFleet:
    place: FleetHome
    journal: Journal

    def __enter__(self) -> PastFleet:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open: the log was read whole."""

    def jobs(self) -> list[PastJob]:
        costs = Costs.at(self.journal.ledger, time.time()).by_job
        found = self.journal.fleet.jobs.values()
        return [PastJob(self, job_info(job, costs.get(job.job_id, 0))) for job in found]

    def job(self, job_id: str) -> PastJob:
        """By a beginning of its id. Raises JobNotFound."""
        name = pick(job_id, self.journal.fleet.jobs, job_not_found)
        return next(job for job in self.jobs() if job.info.job_id == name)

    def nodes(self) -> list[NodeInfo]:
        return node_infos(self.journal.fleet, Costs.at(self.journal.ledger, time.time()))

    def forecast(self, what: str = "", hours: float = FORECAST_HOURS, most: int = FORECAST_SERIES) -> ForecastReport:
        """As it would have been told when the log ended: since then nobody could ask for anything."""
        from tradewind.autoscaler.view import LoopSettings
        from tradewind.forecast_view import ForecastDesk, Question

        desk = ForecastDesk()
        with EventLog.read_only(self.place.folder / LOG) as log:
            desk.read(log.read())
            last = next(log.read(max(log.last_sequence - 1, 0)), None)
        now_s = time.time()
        ended_s = last[1].at_s if last else now_s
        settings, over_s = LoopSettings(self.place.fleet), max(0.0, now_s - ended_s)
        return desk.report(Question(ended_s, settings, what, hours, most, over_s=over_s))

    def why(self, about: About, subject: str = "", last: int | None = None) -> Story:
        """Of a node or a job; of `now` there is nothing to tell."""
        name = picked(self.journal.fleet, about, subject)
        with EventLog.read_only(self.place.folder / LOG) as log:
            events, is_cut = told_of(log, about, name)
        now_s = time.time()
        scene = Scene(self.journal.fleet, now_s, events, is_cut, Costs.at(self.journal.ledger, now_s))
        return story(scene, about, name, last)

    def bill(self) -> Bill:
        return bill(self.journal.ledger, time.time())

    def bill_json(self) -> Bill:
        return self.bill()

    def cost(self, by: By = "day", since: str | float | None = None) -> Summary:
        now_s = time.time()
        from_s = None if since is None else now_s - parse_duration_s(since)
        return summary(self.journal.ledger, by, now_s, from_s=from_s)

    def focus(self) -> str:
        return "".join(focus_csv(self.journal.ledger, self.place.fleet, time.time()))

    def cost_report(self, since: str | float | None = None) -> Report:
        from tradewind.cost.page import Report

        return Report(
            fleet=self.place.fleet,
            days=self.cost("day", since),
            tenants=self.cost("team", since),
            jobs=self.cost("job", since),
            markets=self.cost("market", since),
            rate_uusd_per_h=self.bill().rate_uusd_per_h,
        )


@dataclass(frozen=True, slots=True)
class PastJob:
    fleet: PastFleet
    info: JobInfo

    def receipt(self) -> Receipt:
        return receipt(self.fleet.journal.ledger, self.info.job_id, time.time())

    def receipt_json(self) -> Receipt:
        return self.receipt()


def no_past(place: FleetHome, error: ControllerError) -> ControllerError:
    """What to say where nobody runs and nothing is on record: perhaps another fleet was meant."""
    others = [name for name in past_fleets(place.root) if name != place.fleet]
    if not others or place.announced() is not None or meant_fleet(place):
        return error
    return ControllerError(error.message, f"`--fleet {others[0]}` reads the past of one of: {', '.join(others)}")
