"""The emulated AWS runs dry in mid-training: the job goes on in the emulated Google Cloud's cell, from its checkpoint,
at its place in the data. One fleet, one controller, real Ray nodes in both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from cloud_sites import Cloud, Site, on_aws, on_gcp, site_on

from tradewind.emulators.fleet_file import OFFERS
from tradewind.jobs.sample_ledger import audit
from tradewind.states import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

# AWS is cheaper, as long as it has something to sell.
OFFERED = f"""\
{{cloud: aws, instance_type: {OFFERS["aws"]}, capacity: spot}},
  {{cloud: gcp, instance_type: {OFFERS["gcp"]}, capacity: on-demand}}"""


@pytest.fixture
def clouds() -> Iterator[tuple[Cloud, Cloud]]:
    with ExitStack() as stack:
        yield stack.enter_context(on_aws()), stack.enter_context(on_gcp())


@pytest.fixture
def site(clouds: tuple[Cloud, Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    aws, gcp = clouds
    both = replace(aws, sections=aws.sections | gcp.sections, environment=aws.environment | gcp.environment)
    with site_on(both, tmp_path, monkeypatch) as found:
        yield found


def test_a_job_goes_on_in_another_cloud_when_its_own_runs_dry(
    clouds: tuple[Cloud, Cloud], site: Site, tmp_path: Path
) -> None:
    aws, gcp = clouds
    fleet = site.up(OFFERED)
    site.until(lambda: all(cell.head == "ready" for cell in fleet.status().cells), "both heads call")
    options = f"--steps 100000 --step-s 0.1 --checkpoint-every 5 --ledger {tmp_path / 'ledger'}"
    resources = {"CPU": 1.0, "GPU": 1.0}
    job = fleet.submit(
        f"python train.py {options}", name="digits", workers=1, resources=resources, working_dir=tmp_path / "work"
    )
    site.until(lambda: job.status().step > 20, "it trains")
    assert job.status().cell == aws.cell
    [mine] = [node for node in fleet.nodes() if job.job_id in node.jobs]

    aws.take(mine.launch_id, 20.0)
    site.until(lambda: job.status().cell == gcp.cell, "it is placed in the other cloud")
    left_at = job.status().step
    site.until(lambda: job.status().step > left_at + 10, "it trains there")
    told = str(fleet.why("job", job.job_id))
    assert f"{aws.cell} has run dry" in told
    assert f"placed in {gcp.cell}" in told

    job.stop()
    site.until(lambda: job.status().state is JobState.STOPPED, "it stops")
    assert audit(tmp_path / "ledger").skipped == 0
    steps = [line.event for line in fleet.events(limit=10_000) if line.event["kind"] == "step_committed"]
    assert min(event["first_step"] for event in steps if event["attempt"] > 1) > 5, "it did not begin anew"
    assert "Nothing is left." in site.tradewind("down", "--yes")
    assert (aws.left(), gcp.left()) == ([], [])
