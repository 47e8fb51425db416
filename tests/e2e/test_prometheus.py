"""A real Prometheus beside a real fleet on this machine: what it scrapes is what the fleet's ledger says."""

from __future__ import annotations

import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_home import holder, home_of, until
from prometheus_server import Prometheus, needs_prometheus, scraping

from tradewind.client import connect
from tradewind.home import FleetHome

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600), needs_prometheus]

FLEET = """\
name: watched
offers:
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}
limits: {max_nodes: 1}
timing: {tick: 500ms, idle_timeout: 60s, boot_timeout: 3m, min_node_life: 1s}
local: {launch_delay: 100ms, cpus_per_node: 1}
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "holds.py").write_text(holder(gpus=1))
    with home_of(tmp_path, "watched") as where:
        yield where


def value(prometheus: Prometheus, expression: str) -> float:
    """The sum over what the expression finds; 0: nothing yet."""
    return sum(float(each["value"][1]) for each in prometheus.query(expression))


def test_prometheus_watches_a_real_fleet(place: FleetHome, tmp_path: Path) -> None:
    with connect(place.root, place.fleet, config=tmp_path / "fleet.yaml") as fleet:
        job = fleet.submit([sys.executable, "holds.py"], name="holder", working_dir=tmp_path / "job")
        token = place.read_token()
        announced = place.announced()
        assert announced is not None
        url = urllib.parse.urlparse(announced.url)
        (tmp_path / "prometheus").mkdir()
        with scraping(tmp_path / "prometheus", url.port or 0, token) as prometheus:
            prometheus.wait_up()
            held = f'tradewind_job_cost_dollars{{job_id="{job.job_id}"}}'
            until(lambda: value(prometheus, held) > 0, "the job pays for its node", place)
            assert value(prometheus, 'tradewind_nodes{state="ready"}') == 1
            assert value(prometheus, "tradewind_simulated") == 1
            cost_usd = value(prometheus, "tradewind_cost_dollars_total")
            assert 0 < cost_usd <= fleet.status().cost_uusd / 1e6  # the fleet has gone on since the scrape
            alerts = [rule for group in prometheus.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
            assert {rule["health"] for rule in alerts} <= {"ok", "unknown"}
        text = _metrics(announced.url, token)
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, b"")


def _metrics(url: str, token: str) -> bytes:
    request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        found: bytes = reply.read()
        return found
