"""A fleet on each emulated cloud from its file to nothing left: `tradewind up`, real Ray nodes that boot by their
user-data, a job that trains, the cloud's notice, the job goes on in another market, `tradewind down`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cloud_sites import Site, on_aws, on_azure, on_gcp, on_tpu, site_on

from tradewind.client import Fleet, Job
from tradewind.model import Capacity, Role
from tradewind.states import JobState, NodeState

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

log = logging.getLogger(__name__)

CLOUDS = {"aws": on_aws, "gcp": on_gcp, "azure": on_azure, "tpu": on_tpu}
NOTICE_S = 90.0


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with CLOUDS[request.param]() as cloud, site_on(cloud, tmp_path, monkeypatch) as found:
        yield found


def node_of(fleet: Fleet, job_id: str, but: str = "") -> Any:
    """Where the job is, other than on this one."""
    ready = [node for node in fleet.nodes() if node.state is NodeState.READY and node.launch_id != but]
    return next((node for node in ready if job_id in node.jobs), None)


def state_of(fleet: Fleet, launch_id: str) -> NodeState:
    return next(node.state for node in fleet.nodes() if node.launch_id == launch_id)


def start_job(site: Site, fleet: Fleet) -> Job:
    """Elastic PyTorch on GPUs; JaxTrainer, which asks Ray for its slice itself, on TPUs."""
    if site.cloud.hosts == 1:
        command = "python train.py --steps 100000 --step-s 0.1 --checkpoint-every 5"
        more: dict[str, Any] = {"workers": 1, "resources": {"CPU": 1, "GPU": 1}, "working_dir": site.folder / "work"}
        return fleet.submit(command, name="train", **more)
    slice_of = "--topology 2x2x2 --accelerator TPU-V5P"
    command = f"python -m tradewind.jobs.examples.jax_slice --platform cpu {slice_of} --steps 100000 --step-s 0.2"
    return fleet.submit(command, name="train")


def step_of(site: Site, job: Job) -> int:
    """Of a job that Ray Train runs by itself, what it prints tells."""
    if site.cloud.hosts == 1:
        return job.status().step
    lines = [line for line in job.logs().splitlines() if '{"step"' in line]
    return max((json.JSONDecoder().raw_decode(line, line.index('{"step"'))[0]["step"] for line in lines), default=0)


def resumed_at(job: Job) -> int:
    lines = [line for line in job.logs().splitlines() if '"resumed_at"' in line]
    return max(int(json.JSONDecoder().raw_decode(line, line.index('{"step"'))[0]["resumed_at"]) for line in lines)


@pytest.mark.parametrize("site", CLOUDS, indirect=True)
def test_from_a_fleet_file_to_nothing_left(site: Site, record_property: Any) -> None:
    times, began_s = {}, time.monotonic()

    def lap(what: str) -> None:
        times[what] = round(time.monotonic() - began_s, 1)
        record_property(what, times[what])

    fleet = site.up()
    lap("up")
    site.until(lambda: fleet.status().cells[0].head == "ready", "the head's agent calls")
    lap("head ready")
    [head] = [node for node in fleet.nodes() if node.role is Role.HEAD]
    assert (head.cell, head.capacity) == (site.cloud.cell, Capacity.ON_DEMAND)

    job = start_job(site, fleet)
    first = site.until(lambda: node_of(fleet, job.job_id), "it begins")
    assert (first.instance_type, first.hosts) == (site.cloud.instance_type, site.cloud.hosts)
    assert first.capacity is Capacity.SPOT
    lap("node of the job ready")
    site.until(lambda: step_of(site, job) >= 20, "it trains")
    lap("trains")
    assert_no_secrets(site, fleet)

    site.cloud.take(first.launch_id, NOTICE_S)
    lap("notice")
    site.until(lambda: state_of(fleet, first.launch_id) is not NodeState.READY, "it drains")
    lap("drains")
    second = site.until(lambda: node_of(fleet, job.job_id, first.launch_id), "it goes on elsewhere")
    assert (second.zone, second.capacity) != (first.zone, first.capacity)
    lap("another market ready")
    moved = step_of(site, job)
    site.until(lambda: step_of(site, job) > moved + 10, "it trains there")
    lap("trains there")
    if site.cloud.hosts > 1:
        assert resumed_at(job) > 0, "it did not begin anew"
    assert "notice" in str(fleet.why("node", first.launch_id))

    job.stop()
    site.until(lambda: job.status().state is JobState.STOPPED, "it stops")
    assert fleet.bill_json()["labels_uusd"]["platform"] > 0
    assert_no_secrets(site, fleet)
    assert "Nothing is left." in site.tradewind("down", "--yes")
    assert site.cloud.left() == []
    assert site.cloud.machines.wait_ended(site.cloud.machines.names(), 60.0) == []
    lap("down")
    log.info("seconds from the first command, %s on %s: %s", site.cloud.cell, site.cloud.instance_type, times)


def assert_no_secrets(site: Site, fleet: Fleet) -> None:
    """Neither the cloud's nor ours: in user-data, command lines, machines' environments, consoles, logs, events, or
    what the commands print."""
    cloud, machines = site.cloud, site.cloud.machines
    keys = json.loads((site.place.folder / "keys" / f"{cloud.cell}.json").read_text())
    ours = (keys["ray_token"], keys["agent_token"], keys["ca_key_pem"].splitlines()[1])
    pids = [each.pid for name in machines.names() for each in machines.processes(name)]
    assert pids, "there are no machines to look at"
    places = {
        "user-data": "\n".join(cloud.texts()),
        "command lines": read_all(Path("/proc").glob("[0-9]*/cmdline")),
        "environments of machines": read_all(Path(f"/proc/{pid}/environ") for pid in pids),
        "consoles": site.consoles(),
        "printed": "\n".join(site.told),
        "controller's log": site.place.log_tail(100_000),
        "events": "\n".join(str(line) for line in fleet.events(limit=10_000)),
    }
    assert all(places.values()), "a place that is empty proves nothing"
    for name, text in places.items():
        assert [secret[:6] for secret in (*ours, *cloud.secrets()) if secret in text] == [], name


def read_all(paths: Iterable[Path]) -> str:
    """Processes come and go."""
    texts = []
    for path in paths:
        with suppress(OSError):
            texts.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(texts)
