"""What Prometheus is told: by the text, by promtool, and by a Prometheus that scrapes a server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from prometheus_server import needs_prometheus, scraping

from tradewind.metrics import metrics_text
from tradewind.model import Contract, JobSpec
from tradewind.server import create_app, serve
from tradewind.states import JobState
from tradewind.testing import FakeController

TOKEN = "let-me-in"
RULES = Path(__file__).parents[2] / "cluster-configs" / "prometheus"


@pytest.fixture
def fleet() -> FakeController:
    """One job with a budget that trains on one node."""
    controller = FakeController()
    spec = JobSpec(name="train", entrypoint="x", min_workers=1, max_workers=1, contract=Contract(budget_uusd=5_000_000))
    controller.submit(spec)
    controller.add_node("n1", job_id="train-1")
    controller.run("train-1")
    controller.step("train-1", 5, total_steps=10, loss=0.25)
    return controller


def samples(text: str) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    return {
        f"{sample.name}{json.dumps(sample.labels, sort_keys=True) if sample.labels else ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_money_jobs_and_nodes_are_told(fleet: FakeController) -> None:
    found = samples(metrics_text(fleet).decode())
    assert found["tradewind_simulated"] == 1.0
    assert found['tradewind_job_budget_dollars{"job_id": "train-1", "tenant": "default"}'] == 5.0
    assert 'tradewind_job_cost_dollars{"job_id": "train-1", "tenant": "default"}' in found
    assert found['tradewind_jobs{"state": "running"}'] == 1.0
    assert found['tradewind_jobs{"state": "failed"}'] == 0.0
    by_label = sum(value for name, value in found.items() if name.startswith("tradewind_label_cost_dollars"))
    by_tenant = sum(value for name, value in found.items() if name.startswith("tradewind_tenant_cost_dollars"))
    assert by_label == pytest.approx(found["tradewind_cost_dollars_total"]) == pytest.approx(by_tenant)


def test_jobs_that_are_over_do_not_pile_up(fleet: FakeController) -> None:
    fleet.move("train-1", JobState.SUCCEEDED)
    found = samples(metrics_text(fleet).decode())
    assert not any(name.startswith("tradewind_job_cost_dollars") for name in found)
    assert found['tradewind_jobs{"state": "succeeded"}'] == 1.0


def test_an_empty_fleet_has_metrics_too() -> None:
    assert samples(metrics_text(FakeController()).decode())["tradewind_cost_dollars_total"] == 0.0


@needs_prometheus
def test_promtool_finds_nothing_wrong_with_names_and_rules(fleet: FakeController) -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics_text(fleet), capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, b"")
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=RULES, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_in_the_rules_is_one_that_we_tell(fleet: FakeController) -> None:
    import re

    told = metrics_text(fleet).decode()
    for name in set(re.findall(r"tradewind_[a-z_]+", (RULES / "alerts.yml").read_text())):
        assert f"# TYPE {name} " in told, name


@pytest.mark.slow
@needs_prometheus
def test_a_real_prometheus_takes_what_the_server_tells(fleet: FakeController, tmp_path: Path) -> None:
    with serve(create_app(fleet, TOKEN)) as server, scraping(tmp_path, server.port, TOKEN) as prometheus:
        prometheus.wait_up()
        budget = prometheus.query("tradewind_job_budget_dollars")
        rules = prometheus.ask("/api/v1/rules")["groups"]
    assert [(each["metric"]["job_id"], each["value"][1]) for each in budget] == [("train-1", "5")]
    assert sum(len(group["rules"]) for group in rules) == 7
