"""Where a job goes and when it leaves: the pure router."""

from __future__ import annotations

from dataclasses import replace

from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.testing import make_offer
from tradewind.cells.route import CellOption, Router, place, why_dry, workers_missing
from tradewind.events import JobPlaced, MoveRequested
from tradewind.model import JobSpec
from tradewind.states import JobState

GPU = {"CPU": 1, "GPU": 1}
SPEC = JobSpec(name="j", entrypoint="x", min_workers=2, max_workers=4, worker_resources=GPU)
JOB = JobRecord("j", SPEC, JobState.QUEUED, 0.0)
CHEAP = make_offer("aws/us-east-1a/g6", usd_per_h=0.30, gpus=1)
LARGE = make_offer("gcp/us-central1-a/a2", usd_per_h=1.00, gpus=4, cpus=16)
AWS = CellOption("aws", (CHEAP,))
GCP = CellOption("gcp", (LARGE,))


def closed(cell: CellOption, why: str = "Stockout, tried again in 5m") -> CellOption:
    return replace(cell, closed={offer.market.key: why for offer in cell.offers})


def test_the_least_cost_of_a_worker_decides_not_that_of_a_node() -> None:
    found = place(JOB, (AWS, GCP))
    assert found is not None
    assert found.cell == "gcp"  # $0.25 a worker
    assert "aws: $0.60/h for 2" in found.reason


def test_a_head_that_must_be_bought_counts() -> None:
    found = place(JOB, (AWS, replace(GCP, has_head=False, head_uusd_per_h=200_000)))
    assert found is not None
    assert found.cell == "aws"
    assert "$0.20/h for a head" in found.reason


def test_effective_prices_decide_where_they_are_known() -> None:
    dear = replace(GCP, price=lambda offer: 3.0 * (offer.price_uusd_per_h or 0))  # egress, preemptions
    assert (found := place(JOB, (AWS, dear))) is not None
    assert found.cell == "aws"


def test_what_cannot_be_bought_now_is_passed_over_and_told() -> None:
    found = place(JOB, (AWS, closed(GCP)))
    assert found is not None
    assert found.cell == "aws"
    assert "gcp: Stockout" in found.reason
    assert place(JOB, (closed(AWS), closed(GCP))) is None


def test_nothing_is_placed_before_all_prices_are_known() -> None:
    assert place(JOB, (AWS, replace(GCP, is_known=False))) is None
    assert place(JOB, ()) is None


def test_the_only_cell_takes_everything_at_once() -> None:
    assert (found := place(JOB, (CellOption("local", is_known=False),))) is not None
    assert found.cell == "local"


def test_label_selectors_are_held() -> None:
    tied = replace(JOB, spec=replace(SPEC, worker_labels={"tradewind.io/cloud": "aws"}))
    assert (found := place(tied, (AWS, GCP))) is not None
    assert found.cell == "aws"


def test_a_job_that_asks_ray_itself_goes_where_a_node_is_cheapest() -> None:
    free = replace(JOB, spec=JobSpec(name="j", entrypoint="x"))
    assert (found := place(free, (GCP, AWS))) is not None
    assert found.cell == "aws"
    assert workers_missing(free, AWS) == 0


def test_missing_workers_are_counted_on_nodes_that_stay() -> None:
    held = replace(JOB, holdings={"n1": GPU, "n2": GPU})
    assert workers_missing(held, AWS) == 0
    assert workers_missing(held, replace(AWS, leaving=frozenset({"n2"}))) == 1


def test_a_cell_is_dry_only_when_nothing_is_to_be_had_or_on_its_way() -> None:
    assert why_dry(JOB, AWS) == ""
    assert "has run dry" in why_dry(JOB, closed(AWS))
    assert why_dry(JOB, replace(closed(AWS), coming=frozenset({"n1"}))) == ""
    assert why_dry(JOB, replace(closed(AWS), is_known=False)) == ""
    assert "sells nothing that fits" in why_dry(JOB, CellOption("aws", (make_offer(),)))


def test_a_job_leaves_after_its_time_and_only_for_a_cell_that_can_serve_it() -> None:
    router, job = Router(60.0), replace(JOB, cell="aws", placements=1, state=JobState.RUNNING)
    dry, full = {"aws": closed(AWS), "gcp": closed(GCP)}, {"aws": closed(AWS), "gcp": GCP}
    assert router.step([job], full, 0.0) == []
    assert router.step([job], full, 59.0) == []
    assert router.step([job], dry, 61.0) == []
    [event] = router.step([job], full, 62.0)
    assert isinstance(event, MoveRequested)
    assert "2 of its 2 workers are missing for 1m02s; gcp can serve it" in event.reason


def test_a_job_that_gets_its_minimum_starts_to_count_anew() -> None:
    router, job = Router(60.0), replace(JOB, cell="aws", placements=1, state=JobState.RUNNING)
    cells = {"aws": closed(AWS), "gcp": GCP}
    assert router.step([job], cells, 0.0) == []
    assert router.step([replace(job, holdings={"n": {"CPU": 4, "GPU": 2}})], cells, 50.0) == []
    assert router.step([job], cells, 61.0) == []


def test_a_job_that_has_left_is_placed_with_the_reason_and_waits_where_nobody_can_serve_it() -> None:
    left = replace(JOB, cell="aws", placements=1, moving="aws has run dry")
    [event] = Router().step([left], {"aws": closed(AWS), "gcp": GCP}, 5.0)
    assert isinstance(event, JobPlaced)
    assert event.cell == "gcp"
    assert event.reason.startswith("aws has run dry; ")
    assert Router().step([left], {"aws": AWS, "gcp": closed(GCP)}, 5.0) == []
    assert Router().step([replace(left, state=JobState.RUNNING)], {"aws": AWS, "gcp": GCP}, 5.0) == []


def test_a_job_whose_head_is_lost_goes_elsewhere_if_it_ran_before() -> None:
    cells = {"aws": replace(AWS, has_head=False), "gcp": GCP}
    ran = replace(JOB, cell="aws", placements=1, started_at_s=1.0, reason="the head of cell aws was lost")
    [event] = Router().step([ran], cells, 5.0)
    assert isinstance(event, JobPlaced)
    assert "was lost" in event.reason
    assert Router().step([replace(ran, started_at_s=None)], cells, 5.0) == [], "its first head is on the way"


def test_a_cell_that_is_no_longer_in_the_fleet_keeps_no_job() -> None:
    [event] = Router().step([replace(JOB, cell="azure", placements=1)], {"aws": AWS, "gcp": GCP}, 5.0)
    assert isinstance(event, JobPlaced)


def test_foreign_jobs_and_those_that_stop_are_left_alone() -> None:
    others = [replace(JOB, foreign=True), replace(JOB, state=JobState.STOPPING)]
    assert Router().step(others, {"aws": AWS, "gcp": GCP}, 5.0) == []
