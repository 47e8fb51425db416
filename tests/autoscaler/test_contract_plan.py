"""Answers before money is spent, and the command that asks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tradewind.autoscaler.contract import ContractView, SpotMarket
from tradewind.autoscaler.contract.outlook import outlook
from tradewind.autoscaler.contract.plan import plan
from tradewind.planning import plan_text, speeds
from tradewind.submission import build_spec
from tradewind.units import format_duration, parse_duration_s

H = 3600.0
USD = 1_000_000
VIEW = ContractView(
    now_s=1000.0,
    work_left_s=48 * H,
    restart_s=360.0,
    tick_s=300.0,
    on_demand_key="on-demand",
    on_demand_uusd_per_h=3 * USD,
    spot=(SpotMarket("spot", 1 * USD, is_open=False),),
)


def asked(deadline_h: float | None = None, budget_usd: float | None = None) -> ContractView:
    deadline_s = None if deadline_h is None else VIEW.now_s + deadline_h * H
    budget = None if budget_usd is None else round(budget_usd * USD)
    return replace(VIEW, deadline_at_s=deadline_s, budget_left_uusd=budget)


def test_a_feasible_contract_has_figures_that_fit_together() -> None:
    found = plan(asked(70.0, 200.0), plays=100)
    assert found.is_feasible
    assert found.outlook is not None
    low, high = found.outlook.cost_range_uusd
    assert found.least_uusd == 48 * USD <= low <= found.outlook.cost_uusd <= high <= 150 * USD
    assert found.outlook.finish_range_s[1] <= 70 * H
    assert found.outlook.chance >= 0.97  # a stock-out of on-demand is counted in


def test_more_time_never_costs_more_and_the_cheapest_deadline_lies_on_the_curve() -> None:
    found = plan(asked(70.0), plays=20)
    costs = [point.cost_uusd for point in found.curve]
    assert costs == sorted(costs, reverse=True)
    assert found.cheapest_deadline_s in [point.deadline_s for point in found.curve]
    assert costs[0] <= 48.5 * 3 * USD  # on demand to the end, and what a stock-out may add
    assert found.asked_s in [point.deadline_s for point in found.curve]


def test_the_curve_and_the_answer_beside_it_agree() -> None:
    found = plan(asked(70.0), plays=200)
    assert found.outlook is not None
    costs = {point.deadline_s: point.cost_uusd for point in found.curve}
    assert costs[found.asked_s or 0.0] == found.outlook.cost_uusd


def test_a_budget_that_changes_nothing_leaves_curve_and_answer_in_agreement() -> None:
    found = plan(asked(70.0, 500.0), plays=60)
    assert found.outlook is not None
    assert {point.deadline_s: point.cost_uusd for point in found.curve}[70 * H] == found.outlook.cost_uusd
    costs = [point.cost_uusd for point in found.curve]
    assert costs == sorted(costs, reverse=True)
    assert "Expected cost by deadline:" in plan_text(found)


def test_where_the_budget_decides_the_curve_says_that_it_is_without_one() -> None:
    text = plan_text(plan(asked(52.0, 60.0), plays=60))
    assert "Expected cost by deadline, without a budget:" in text
    assert "sure      never more than $60.00" in text
    assert "spot      taken to be out of stock at first" in text


def test_only_what_is_nearly_sure_is_a_plain_yes() -> None:
    found = plan(replace(asked(70.0, 10.0), work_left_s=0.0), plays=20)
    assert found.outlook is not None
    for chance, word in ((1.0, "Yes"), (0.95, "Yes"), (0.62, "Likely"), (0.06, "Unlikely")):
        answer = replace(found, outlook=replace(found.outlook, chance=chance))
        assert plan_text(answer).startswith(f"{word}: "), chance


def test_a_budget_that_is_too_small_is_told_what_the_deadline_would_cost() -> None:
    found = plan(asked(70.0, 40.0), plays=20)
    assert "with a deadline of 2d22h, or of $" in found.remedies[0]


def test_where_both_are_unlikely_it_is_said_which_one_gives_way() -> None:
    found = plan(asked(52.0, 60.0), plays=60)
    assert "the budget comes first" in found.summary
    assert found.outlook is not None
    assert found.outlook.budget_chance > found.outlook.chance
    free = plan(asked(52.0), plays=60).outlook
    assert free is not None
    assert free.cost_range_uusd[1] > 60 * USD, "what is asked for is what it costs without a limit"


@pytest.mark.parametrize(
    ("deadline_h", "budget_usd", "what", "remedy"),
    [
        (24.0, None, "too short", "2.1 times the speed"),
        (-1.0, None, "in the past", "from now at least"),
        (70.0, 40.0, "below the least that it can cost, $48.00", "a budget of"),
    ],
)
def test_what_cannot_be_kept_says_what_would_help(
    deadline_h: float, budget_usd: float | None, what: str, remedy: str
) -> None:
    found = plan(asked(deadline_h, budget_usd))
    assert not found.is_feasible
    assert found.outlook is None
    assert what in found.summary
    assert remedy in found.remedies[0]


def test_a_deadline_that_is_missed_by_little_says_by_how_much_and_what_helps_is_enough() -> None:
    shortest_s = plan(asked(70.0), plays=20).shortest_s
    short = replace(asked(70.0), deadline_at_s=asked(70.0).now_s + shortest_s - 100.0)
    found = plan(short, plays=20)
    took = format_duration(shortest_s)
    assert found.summary.startswith(f"{took} are too short by 1m40s: the work takes {took} with ")
    [remedy] = found.remedies
    assert "times the speed" not in remedy
    enough = re.fullmatch(r"a deadline of (\S+) at least", remedy)
    assert enough, remedy
    followed = replace(short, deadline_at_s=short.now_s + parse_duration_s(enough[1]))
    assert plan(followed, plays=20).is_feasible


@pytest.mark.parametrize("left_h", [1.0, 8.0, 23.99, 24.0, 30.01, 47.99])
def test_who_follows_a_remedy_has_enough(left_h: float) -> None:
    short = replace(asked(left_h), work_left_s=(left_h + 0.07) * H)
    found = plan(short, plays=20)
    assert not found.is_feasible
    enough = re.search(r"a deadline of (\S+) at least", found.remedies[0])
    assert enough, found.remedies
    followed = replace(short, deadline_at_s=short.now_s + parse_duration_s(enough[1]))
    assert plan(followed, plays=20).is_feasible


def test_work_without_a_unit_is_said_to_be_seconds(tmp_path: Path) -> None:
    from tradewind.cli import cli

    (tmp_path / "job.yaml").write_text("entrypoint: python x.py\nworkers: 1\nresources: {gpu: 1}\n")
    for work, warned in (("48", True), ("48s", False)):
        found = CliRunner().invoke(cli, ["--home", str(tmp_path), "plan", str(tmp_path / "job.yaml"), "--work", work])
        assert ("--work 48 is taken as 48 seconds; did you mean 48h?" in found.stderr) is warned, found.stderr


def test_no_work_costs_nothing_and_says_so() -> None:
    found = plan(replace(asked(70.0, 10.0), work_left_s=0.0), plays=20)
    assert found.is_feasible
    assert "no work" in found.summary
    assert found.outlook is not None
    assert (found.outlook.cost_uusd, found.outlook.finish_s, found.outlook.chance) == (0, 0.0, 1.0)


def test_an_unlikely_contract_says_so() -> None:
    found = plan(asked(50.0, 60.0), plays=100)
    assert found.is_feasible
    assert "% only" in found.summary
    assert "nine of ten" in found.remedies[0]


def test_speeds_of_a_job() -> None:
    from tradewind.model import JobSpec

    job = JobSpec("job", "python train.py", min_workers=2, max_workers=4)
    found = speeds(job, 1.0)
    assert found[1:] == pytest.approx((2.0, 3.0, 4.0))
    assert found[0] < 1e-6  # fewer than the least is no size
    assert speeds(job, 0.9)[3] / speeds(job, 0.9)[1] == pytest.approx(1.8)


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nentrypoint: python train.py\nworkers: 1..4\nresources: {gpu: 1}\n")
    return str(path)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without any fleet: what may be bought does not depend on who runs the tests."""
    monkeypatch.setenv("TRADEWIND_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*words: str) -> tuple[int, str]:
    from tradewind.cli import cli

    found = CliRunner().invoke(cli, ["plan", *words])
    return found.exit_code, found.stdout or found.stderr  # warnings go to the latter, too


def test_the_command_answers(job_file: str) -> None:
    code, text = run(job_file, "--work", "48h", "--deadline", "60h", "--budget", "100")
    assert code == 0
    assert text.startswith("Yes: the contract can be kept")
    assert "Cheapest deadline" in text
    assert "<- asked for" in text
    assert "/on-demand $" in text, "what it was priced with"


def test_work_may_stand_in_the_file_and_is_asked_for_where_it_does_not(job_file: str) -> None:
    code, text = run(job_file, "--deadline", "60h")
    assert code == 1
    assert "--work 48h" in text
    Path(job_file).write_text(Path(job_file).read_text() + "work: 48h\n")
    code, text = run(job_file, "--deadline", "6h")
    assert code == 1, "a no is for scripts, too"
    assert text.startswith("No: ")
    assert "too short" in text


def test_the_command_answers_programs(job_file: str) -> None:
    code, text = run(job_file, "--work", "48h", "--deadline", "6h", "--json")
    assert code == 1
    found = json.loads(text)
    assert found["is_feasible"] is False
    assert "too short" in found["summary"]


def test_the_labels_of_the_job_say_where_it_is_priced(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: x\nentrypoint: python train.py\nworkers: 1\nresources: {cpu: 1, accelerator: L4}\n"
        "labels: {tradewind.io/cloud: aws}\n"
    )
    code, text = run(str(path), "--work", "1h", "--json")
    assert code == 0
    found = json.loads(text)
    assert all(each["key"].startswith("aws/") for each in (found["on_demand"], *found["spot"]))


def test_an_accelerator_is_found_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nentrypoint: python train.py\nworkers: 1\nresources: {accelerator: l4}\n")
    code, text = run(str(path), "--work", "1h")
    assert code == 0, text
    assert build_spec(path, now_s=0.0).worker_resources["accelerator_type:L4"] == 0.001, "as nodes have it"


def test_no_machine_for_it_is_an_error_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nentrypoint: python train.py\nworkers: 1\nresources: {gpu: 5000}\n")
    code, text = run(str(path), "--work", "1h")
    assert code == 1
    assert "no machine that holds one worker" in text
    assert "Hint" in text


# --- what the fleet may buy -----------------------------------------------------------------------------------------


def priced(*words: str) -> dict[str, Any]:
    code, text = run(*words, "--work", "4h", "--json")
    assert code == 0, text
    found: dict[str, Any] = json.loads(text)
    return found


def markets(found: dict[str, Any]) -> list[str]:
    return [each["key"] for each in (found["on_demand"], *found["spot"])]


@pytest.fixture
def fleet_file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text("name: lab\noffers: [{cloud: gcp, region: us-central1, accelerator: L4}]\n")
    return path


def test_only_what_the_fleet_may_buy_is_priced(job_file: str, fleet_file: Path) -> None:
    found = priced(job_file, "--fleet-file", str(fleet_file))
    assert all(key.startswith("gcp/us-central1") for key in markets(found))
    assert found["basis"] == "what fleet lab may buy"
    assert not all(key.startswith("gcp/us-central1") for key in markets(priced(job_file)))


def test_without_a_fleet_the_answer_says_that_it_is_the_catalogue(job_file: str) -> None:
    code, text = run(job_file, "--work", "4h")
    assert code == 0
    assert "  of        the whole catalogue: there is no fleet here" in text


def test_a_fleet_that_runs_or_ran_is_asked_by_itself(job_file: str, fleet_file: Path, home: Path) -> None:
    (home / "default").mkdir(parents=True)
    (home / "default" / "events.db").touch()
    assert priced(job_file)["basis"] == "what fleet default may buy"
    (home / "default" / "fleet.yaml").write_text(fleet_file.read_text())
    assert priced(job_file)["basis"] == "what fleet lab may buy"


def test_what_the_limits_forbid_is_not_priced(job_file: str, fleet_file: Path) -> None:
    fleet_file.write_text(
        "name: lab\noffers: [{accelerator: L4, region: us-central1}, {accelerator: L4, region: us-east-1}]\n"
        "limits: {max_nodes: 3, rules: [{cloud: gcp, max_nodes: 0}]}\n"
    )
    found = priced(job_file, "--fleet-file", str(fleet_file))
    assert all(key.startswith("aws/") for key in markets(found))
    assert found["basis"] == "what fleet lab may buy; the limit of 3 nodes allows 3 of 4 workers"
    assert max(point["replicas"] for point in found["curve"]) <= 3


def test_limits_on_other_tenants_say_nothing(job_file: str, fleet_file: Path) -> None:
    for tenant, code in (("other", 0), ("default", 1)):
        limits = f"limits: {{rules: [{{tenant: {tenant}, max_accelerators: 0}}]}}\n"
        fleet_file.write_text(f"name: lab\noffers: [{{accelerator: L4, cloud: gcp}}]\n{limits}")
        found, text = run(job_file, "--work", "4h", "--fleet-file", str(fleet_file))
        assert found == code
        assert code == 0 or "the limit of 0 accelerators of tenant default allows fewer than the 1 it needs" in text


def test_what_no_machine_of_the_fleet_holds_is_said_of_the_fleet(tmp_path: Path, fleet_file: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nentrypoint: python train.py\nworkers: 1\nresources: {accelerator: H100}\n")
    code, text = run(str(path), "--work", "1h", "--fleet-file", str(fleet_file))
    assert code == 1
    assert "fleet lab may buy no machine that holds one worker" in text
    assert "`offers` in its file" in text


# --- by whole machines ----------------------------------------------------------------------------------------------

EIGHT = "name: lab\noffers: [{cloud: aws, instance_type: p4d.24xlarge}]\n"  # A100 x 8, and nothing smaller


def job_of(tmp_path: Path, workers: str, resources: str = "{gpu: 1}") -> str:
    path = tmp_path / "job.yaml"
    path.write_text(f"name: x\nentrypoint: python train.py\nworkers: {workers}\nresources: {resources}\n")
    return str(path)


@pytest.mark.parametrize(("workers", "machines"), [(1, 1), (4, 1), (8, 1), (9, 2), (16, 2)])
def test_workers_share_machines_and_whole_machines_are_paid(
    tmp_path: Path, fleet_file: Path, workers: int, machines: int
) -> None:
    fleet_file.write_text(EIGHT)
    whole = priced(job_of(tmp_path, "1", "{gpu: 8}"), "--fleet-file", str(fleet_file))["on_demand"]["uusd_per_h"]
    found = priced(job_of(tmp_path, str(workers)), "--fleet-file", str(fleet_file))["on_demand"]["uusd_per_h"]
    assert found * workers == pytest.approx(machines * whole, abs=workers), "but for what rounding adds"


def test_what_is_expected_lies_within_its_range() -> None:
    """Nearly all plays cost the same, and a few more, so that the mean lies above nine of ten."""
    found = outlook(asked(48.15))
    assert found.cost_range_uusd[0] < found.cost_range_uusd[1] == found.cost_uusd
    assert found.finish_range_s[0] <= found.finish_s <= found.finish_range_s[1]
