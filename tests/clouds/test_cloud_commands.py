"""`up`, `down`, `reap` and `doctor` for fleets in clouds, against the AWS emulator, with a fake controller."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fleet_files import text_of

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.cli import cli
from tradewind.cli_base import Options
from tradewind.clouds import CellCloud, cells_of, open_cells
from tradewind.clouds.price_table import per_accelerator_uusd, price_table
from tradewind.clouds.secret_stores import store_in
from tradewind.config import load_fleet
from tradewind.config_models import FleetConfig
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.emulators.aws_books import Part
from tradewind.home import FleetHome
from tradewind.model import LABEL_LAUNCH_ID
from tradewind.render_clouds import price_text
from tradewind.testing import served

pytestmark = pytest.mark.slow  # real processes and emulators of all clouds

FAKE = (sys.executable, "-m", "tradewind.testing")
MORE = "offers: [{accelerator: A10G}]\nlimits: {max_nodes: 4, max_usd_per_hour: 12.50}\n"
Run = Callable[..., Result]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsEmulator]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    with AwsEmulator(regions=("us-east-1", "us-west-2", "eu-central-1")) as emulator:
        emulator.shop.profiles.add("tradewind-head")
        yield emulator


@pytest.fixture
def file(aws: AwsEmulator, tmp_path: Path) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(text_of("aws", more=MORE, aws=aws.url))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*args: str, given: str | None = None) -> Result:
        return CliRunner().invoke(
            cli,
            ["--home", str(tmp_path / "home"), "--fleet", "research", *args],
            obj=Options(command=FAKE),
            input=given,
        )

    return invoke


def launch(cell: CellCloud, launch_id: str, group: str = "") -> None:
    offer = cell.plan.offers[0]
    labels = {**offer.labels, LABEL_LAUNCH_ID: launch_id}
    spec = LaunchSpec(launch_id, "research", cell.plan.name, offer, "", labels)
    cell.provider.launch(replace(spec, placement_group=group))


def cells(config: FleetConfig) -> dict[str, CellCloud]:
    return dict(open_cells(config, lambda spec: spec.launch_id))


# --- up ----------------------------------------------------------------------------------------------------------


def test_up_shows_what_it_costs_and_only_that(run: Run, file: Path, aws: AwsEmulator) -> None:
    done = run("up", str(file), "--dry-run")
    assert done.exit_code == 0, done.output
    for word in ("aws-us-east-1", "aws-us-west-2", "head", "1 x A10G", "m7i.large", "$12.50", "max_usd_per_hour"):
        assert word in done.stdout
    assert aws.machines() == []
    found = json.loads(run("up", str(file), "--dry-run", "--json").stdout)
    assert found["most_uusd_per_h"] == 12_500_000
    assert [cell["cell"] for cell in found["cells"]] == ["aws-us-east-1", "aws-us-west-2"]


def test_up_asks_before_it_spends(run: Run, file: Path, tmp_path: Path) -> None:
    """Nobody is there to be asked: it does not start by itself."""
    done = run("up", str(file))
    assert done.exit_code == 1
    assert "Hint: add --yes" in done.stderr
    assert not (tmp_path / "home/research/controller.json").exists()


def test_up_with_yes_starts(run: Run, file: Path) -> None:
    try:
        done = run("up", str(file), "--yes")
        assert done.exit_code == 0, done.output
        assert "Started fleet research" in done.stdout
        again = run("up", str(file))  # it runs: no money is spent, nobody is asked
        assert again.exit_code == 0, again.output
        assert "is running already" in again.stdout
    finally:
        assert run("down", "--yes").exit_code == 0


def test_up_refuses_what_cannot_come_up(run: Run, file: Path, aws: AwsEmulator) -> None:
    aws.faults.denied.add("RunInstances")
    done = run("up", str(file), "--yes")
    assert done.exit_code == 1
    assert "FAIL  aws us-east-1 permission to launch" in done.stderr
    assert "cannot come up" in done.stderr
    assert "ok  " not in done.stderr


def test_a_quota_that_is_missing_is_told_and_stops_nothing(run: Run, file: Path, aws: AwsEmulator) -> None:
    """Other offers may serve; the loop goes round what is refused."""
    for region in aws.books.regions.values():
        region.quotas.update(dict.fromkeys(region.quotas, 0.0))
        region.quotas["L-3819A6DF"] = 0.0
    done = run("up", str(file), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "FAIL  aws us-east-1 quota L-3819A6DF" in done.stderr
    assert "request-service-quota-increase" in done.stderr
    assert "1 x A10G" in done.stdout


# --- doctor ------------------------------------------------------------------------------------------------------


def test_doctor_looks_at_the_clouds_of_a_file(run: Run, file: Path, aws: AwsEmulator) -> None:
    done = run("doctor", str(file), "--cloud", "aws")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert all(line.startswith("ok    aws ") for line in lines)
    assert sum("credentials" in line for line in lines) == 1  # one account, told once
    for what in (
        "us-east-1 image",
        "us-west-2 subnets",
        "us-east-1 permission to launch",
        "quota",
        "us-west-2 secrets",
    ):
        assert any(what in line for line in lines), what
    aws.books.regions["us-west-2"].quotas.clear()
    aws.faults.expired = True
    found = json.loads(run("doctor", str(file), "--cloud", "aws", "--json").stdout)
    assert [check["ok"] for check in found] == [False]
    assert "aws configure" in found[0]["fix"]


def test_doctor_without_a_file_or_with_another_cloud(run: Run, file: Path) -> None:
    done = run("doctor", "--cloud", "gcp")
    assert "was never started from a file" in done.stderr
    done = run("doctor", str(file), "--cloud", "gcp")
    assert "gcp is not among them: aws" in done.stderr


# --- down and reap -----------------------------------------------------------------------------------------------


@pytest.fixture
def litter(file: Path, aws: AwsEmulator) -> FleetConfig:
    """Two nodes, a disk in a region that the file does not name, a secret; and somebody else's things."""
    config = load_fleet(file)
    found = cells(config)
    launch(found["aws-us-east-1"], "tw-1")
    launch(found["aws-us-west-2"], "tw-2")
    tags = {"tradewind:fleet": "research", "tradewind:launch-id": "tw-old"}
    aws.books.regions["eu-central-1"].volumes["vol-00000001"] = Part("vol-00000001", "eu-central-1a", tags)
    aws.books.regions["us-east-1"].volumes["vol-00000002"] = Part("vol-00000002", "us-east-1a", {"Name": "mine"})
    store_in(config, cells_of(config)[0]).put("tradewind/research/aws-us-east-1/node", "x")
    return config


def volumes(aws: AwsEmulator) -> set[str]:
    regions = aws.books.regions.values()
    return {part.id for region in regions for part in region.volumes.values() if not part.machine_id}


def test_reap_shows_asks_and_removes_in_all_regions(
    run: Run, file: Path, aws: AwsEmulator, litter: FleetConfig
) -> None:
    done = run("reap", str(file))
    assert done.exit_code == 1
    for word in ("node tw-1", "node tw-2", "vol-00000001", "secret tradewind/research/aws-us-east-1/node", "Add --yes"):
        assert word in done.stdout
    assert len(aws.machines()) == 2
    done = run("reap", str(file), "--yes", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (len(found["found"]), found["left"], found["blind"], found["failed"]) == (4, [], [], [])
    assert volumes(aws) == {"vol-00000002"}
    assert store_in(litter, cells_of(litter)[0]).list("tradewind/") == []
    done = run("reap", str(file))
    assert (done.exit_code, done.stdout) == (0, "Nothing is left of fleet research.\n")


def test_reap_leaves_what_a_living_controller_knows(
    run: Run, file: Path, aws: AwsEmulator, litter: FleetConfig, tmp_path: Path
) -> None:
    with served(FleetHome(tmp_path / "home", "research")) as controller:
        controller.add_node("tw-1")
        done = run("reap", str(file), "--yes")
    assert done.exit_code == 0, done.output
    assert "node tw-1" not in done.stdout
    assert "secret" not in done.stdout
    assert "Removed 2 of 2." in done.stdout
    assert {m.tags["tradewind:launch-id"] for m in aws.machines() if m.state != "shutting-down"} == {"tw-1"}


def test_a_region_that_does_not_answer_proves_nothing(run: Run, file: Path, aws: AwsEmulator) -> None:
    aws.faults.dead_regions.add("us-west-2")
    done = run("reap", str(file))
    assert done.exit_code == 1
    assert "aws-us-west-2: nodes could not be listed" in done.stdout
    assert "Nothing is left" not in done.stdout


def test_down_proves_that_nothing_is_left(
    run: Run, file: Path, aws: AwsEmulator, litter: FleetConfig, tmp_path: Path
) -> None:
    place = FleetHome(tmp_path / "home", "research")
    with served(place):
        (place.folder / "fleet.yaml").write_text(file.read_text())  # as the controller keeps it
        done = run("down", "--yes")
    assert done.exit_code == 0, done.output
    assert "Nothing is left." in done.stdout
    assert volumes(aws) == {"vol-00000002"}


def test_down_tells_what_is_still_there(run: Run, file: Path, aws: AwsEmulator, tmp_path: Path) -> None:
    place = FleetHome(tmp_path / "home", "research")
    with served(place):
        (place.folder / "fleet.yaml").write_text(file.read_text())
        aws.faults.dead_regions.add("us-west-2")
        done = run("down", "--yes")
    assert done.exit_code == 1
    assert "STILL THERE:\n  aws-us-west-2: nodes could not be listed" in done.stdout


GANG = "tw-research-0123456789ab"


def test_down_and_reap_remove_groups_that_their_nodes_leave_empty(
    run: Run, file: Path, aws: AwsEmulator, tmp_path: Path
) -> None:
    aws.books.ends_in_s = 1.0
    east, west = cells(load_fleet(file)).values()
    launch(east, "tw-1", GANG)
    launch(west, "tw-2", GANG.replace("0", "f"))
    done = run("reap", str(file), "--yes", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["left"], found["blind"], found["failed"]) == ([], [], [])
    assert [region.placement_groups for region in aws.books.regions.values()] == [{}, {}, {}]
    launch(cells(load_fleet(file))["aws-us-east-1"], "tw-3", GANG)
    place = FleetHome(tmp_path / "home", "research")
    with served(place):
        (place.folder / "fleet.yaml").write_text(file.read_text())
        done = run("down", "--yes")
    assert done.exit_code == 0, done.output
    assert "Nothing is left." in done.stdout
    assert aws.books.regions["us-east-1"].placement_groups == {}


def test_a_missing_right_to_make_groups_is_told_and_stops_nothing(run: Run, file: Path, aws: AwsEmulator) -> None:
    assert "ok    aws us-east-1 placement groups" in run("doctor", str(file), "--cloud", "aws").stdout
    aws.faults.denied.add("CreatePlacementGroup")
    done = run("up", str(file), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "FAIL  aws us-east-1 placement groups" in done.stderr
    assert "ec2:CreatePlacementGroup" in done.stderr
    file.write_text(f"{file.read_text()}placement: {{groups: off}}\n")
    assert "placement groups" not in run("doctor", str(file), "--cloud", "aws").stdout


# --- the table ---------------------------------------------------------------------------------------------------


def test_the_table_is_cheapest_first_and_adds_up(file: Path) -> None:
    config = load_fleet(file)
    plans = cells_of(config)
    table = price_table(config, {plan.name: plan.offers for plan in plans}, plans)
    assert table.head_uusd_per_h == sum(plan.heads[0].price_uusd_per_h or 0 for plan in plans)
    for cell in table.cells:
        assert [per_accelerator_uusd(offer) for offer in cell.offers] == sorted(map(per_accelerator_uusd, cell.offers))
    text = price_text(table, 100)
    assert "Simulated: these clouds are emulated" in text
    assert max(len(line) for line in text.splitlines()) <= 110


def test_without_a_money_limit_the_most_is_by_the_number_of_nodes(file: Path) -> None:
    config = load_fleet(file)
    free = config.model_copy(update={"limits": config.limits.model_copy(update={"max_uusd_per_h": None})})
    plans = cells_of(free)
    table = price_table(free, {plan.name: plan.offers for plan in plans}, plans)
    dearest = max(offer.price_uusd_per_h or 0 for plan in plans for offer in plan.offers)
    assert table.most_uusd_per_h == table.head_uusd_per_h + 4 * dearest
