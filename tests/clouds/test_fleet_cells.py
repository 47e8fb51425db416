"""From a fleet file to cells, their settings and what they may buy: pure, no cloud is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleet_files import fleet_of, text_of

from tradewind.autoscaler.providers.aws_settings import AwsSettings
from tradewind.autoscaler.providers.azure_settings import DEFAULT_IMAGE, AzureSettings
from tradewind.autoscaler.providers.base import Check
from tradewind.autoscaler.providers.gcp_settings import GcpSettings
from tradewind.clouds import cells_of, preflight, providers_of
from tradewind.clouds.cells import is_emulated
from tradewind.config_models import FleetConfig
from tradewind.config_yaml import parse
from tradewind.errors import ConfigError
from tradewind.model import Capacity, Role

L4 = "offers: [{accelerator: L4}]\n"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        cells_of(parse(text, "fleet.yaml", FleetConfig))
    return [str(problem) for problem in caught.value.problems]


def test_every_region_of_every_cloud_is_a_cell() -> None:
    cells = cells_of(fleet_of("aws", "gcp", "azure"))
    names = ["aws-us-east-1", "aws-us-west-2", "gcp-us-central1", "gcp-europe-west4", "azure-eastus", "azure-westus2"]
    assert [cell.name for cell in cells] == names
    assert all(cell.name == f"{cell.cloud}-{cell.region}" for cell in cells)


def test_a_fleet_on_this_machine_has_no_cells_in_clouds() -> None:
    assert cells_of(FleetConfig(name="x")) == ()


def test_each_cell_has_the_settings_of_its_own_region() -> None:
    aws, west, gcp, europe, azure, _ = (cell.settings for cell in cells_of(fleet_of("aws", "gcp", "azure")))
    assert isinstance(aws, AwsSettings)
    assert isinstance(west, AwsSettings)
    assert [region.name for region in aws.regions] == ["us-east-1"]
    assert list(west.regions[0].subnets) == ["us-west-2a"]
    assert (aws.profile(Role.WORKER), aws.profile(Role.HEAD)) == ("tradewind-node", "tradewind-head")
    assert isinstance(gcp, GcpSettings)
    assert isinstance(europe, GcpSettings)
    assert (gcp.regions, gcp.subnetwork, europe.regions, europe.subnetwork) == (
        ("us-central1",),
        "default",
        ("europe-west4",),
        "inner",
    )
    assert gcp.account(Role.HEAD) == gcp.account(Role.WORKER) != ""
    assert isinstance(azure, AzureSettings)
    assert (azure.regions[0].name, azure.image, azure.fleet) == ("eastus", DEFAULT_IMAGE, "research")


def test_offers_are_of_the_cell_cheapest_first_and_with_a_price() -> None:
    for cell in cells_of(
        fleet_of("aws", "gcp", "azure", more="offers: [{accelerator: T4}, {cloud: aws, accelerator: L4}]")
    ):
        assert cell.offers
        assert {(offer.market.cloud, offer.market.region) for offer in cell.offers} == {(cell.cloud, cell.region)}
        prices = [offer.price_uusd_per_h for offer in cell.offers]
        assert None not in prices
        assert prices == sorted(price or 0 for price in prices)
        assert {offer.accelerator for offer in cell.offers} == ({"T4", "L4"} if cell.cloud == "aws" else {"T4"})


def test_aws_offers_are_in_the_zones_of_the_file_at_the_middle_price_of_the_region() -> None:
    from tradewind.cost import catalog

    cell = cells_of(fleet_of("aws", more=L4))[0]
    assert {offer.market.zone for offer in cell.offers} == {"us-east-1a", "us-east-1b"}
    listed = catalog.load().find(cloud="aws", region="us-east-1", instance_type="g6.xlarge", capacity=Capacity.SPOT)
    prices = sorted(offer.price_uusd_per_h or 0 for offer in listed)
    assert len(prices) > 2
    ours = [offer for offer in cell.offers if offer.market.instance_type == "g6.xlarge"]
    spot = {offer.price_uusd_per_h for offer in ours if offer.market.capacity is Capacity.SPOT}
    assert spot == {prices[len(prices) // 2]}


def test_a_selector_with_a_zone_of_the_file() -> None:
    cell = cells_of(fleet_of("aws", more="offers: [{zone: us-east-1b, accelerator: L4}, {region: us-west-2}]"))[0]
    assert {offer.market.zone for offer in cell.offers} == {"us-east-1b"}


def test_the_head_is_the_cheapest_plain_machine_that_is_enough() -> None:
    for cell in cells_of(
        fleet_of("aws", "gcp", "azure", more="head: {vcpus: 4, memory_gib: 16}\n" + "offers: [{accelerator: T4}]")
    ):
        first = cell.heads[0]
        assert (first.accelerator, first.market.capacity) == ("", Capacity.ON_DEMAND)
        assert first.vcpus >= 4
        assert first.memory_gib >= 16
        assert first.price_uusd_per_h == min(offer.price_uusd_per_h or 0 for offer in cell.heads)
        assert set(cell.heads) <= set(cell.known)
        assert len({offer.market.instance_type for offer in cell.heads}) <= 3


@pytest.mark.parametrize("head", ["m7i.xlarge", "{aws: m7i.xlarge, gcp: e2-standard-8}"])
def test_a_head_of_a_given_type(head: str) -> None:
    cell = cells_of(fleet_of("aws", more=f"head: {{instance_type: {head}}}\n{L4}"))[0]
    assert {offer.market.instance_type for offer in cell.heads} == {"m7i.xlarge"}
    assert len(cell.heads) == 2  # one for each zone, should one be sold out


def test_amounts_are_a_pretence_only_where_every_cloud_is_emulated_here() -> None:
    real = fleet_of("aws", "gcp", more=L4)
    assert not is_emulated(real)
    assert real.aws is not None
    assert real.gcp is not None
    here = real.aws.model_copy(update={"endpoint_url": "http://127.0.0.1:4566"})
    half = real.model_copy(update={"aws": here})
    assert not is_emulated(half)
    all_here = real.gcp.model_copy(update={"endpoint_url": "http://localhost:1"})
    assert is_emulated(half.model_copy(update={"gcp": all_here}))
    private = here.model_copy(update={"endpoint_url": "https://ec2.example.internal"})
    assert not is_emulated(half.model_copy(update={"aws": private, "gcp": all_here}))


# --- mistakes --------------------------------------------------------------------------------------------------


def test_what_fits_nothing_is_told_by_its_line() -> None:
    assert problems(text_of("aws", more="offers: [{accelerator: L4}, {cloud: gcp}, {accelerator: TPU-V4}]")) == [
        "fleet file: offers[1]: there is nothing like this with a known price in aws-us-east-1, aws-us-west-2",
        "fleet file: offers[2]: there is nothing like this with a known price in aws-us-east-1, aws-us-west-2",
    ]
    assert problems(text_of("aws", more="offers: [{accelerator: H1000}]")) == [
        "fleet file: offers[0]: accelerator: there is no 'H1000'; the nearest is H100"
    ]


def test_a_cell_with_nothing_to_buy_is_a_mistake() -> None:
    assert problems(text_of("aws", "gcp", more="offers: [{cloud: gcp, accelerator: L4}]")) == [
        "fleet file: offers: nothing can be bought in aws-us-east-1, aws-us-west-2"
    ]


def test_a_head_that_does_not_exist() -> None:
    assert problems(text_of("gcp", more=f"head: {{instance_type: m7i.large}}\n{L4}")) == [
        "fleet file: head: the price list has no m7i.large in gcp's us-central1"
    ]
    assert problems(text_of("gcp", more=f"head: {{vcpus: 4096}}\n{L4}")) == [
        "fleet file: head: the price list has no machine with 4096 CPUs and 8 GiB in gcp's us-central1"
    ]


BAD = """\
name: x
cloud: aws
storage: ftp://there
controller: {listen: "8440", url: http://here}
boot: {dead_man: 1s, setup: apt install x}
aws:
  disk_gib: 0
  capacity_reservation: maybe
  regions:
    - name: us-east-1
      image: ubuntu
      subnets: {us-east-1a: sub}
      security_group: sg-1
    - {name: useast, image: ami-0, subnets: {}}
gcp:
  project: X
  regions: [us-central1, {name: us-central1-a}]
azure:
  resource_group: "?"
  regions: [{name: eastus, subnet: default}]
"""


def test_every_mistake_in_a_file_is_told_with_its_line_and_path() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(BAD, "x.yaml", FleetConfig)
    found = [(problem.where, problem.field) for problem in caught.value.problems]
    assert found == [
        ("x.yaml:3", "storage"),
        ("x.yaml:4", "controller.listen"),
        ("x.yaml:4", "controller.url"),
        ("x.yaml:5", "boot.setup"),
        ("x.yaml:5", "boot.dead_man"),
        ("x.yaml:7", "aws.disk_gib"),
        ("x.yaml:8", "aws.capacity_reservation"),
        ("x.yaml:11", "aws.regions[0].image"),
        ("x.yaml:12", "aws.regions[0].subnets.us-east-1a"),
        ("x.yaml:13", "aws.regions[0].security_group"),
        ("x.yaml:14", "aws.regions[1].name"),
        ("x.yaml:16", "gcp.project"),
        ("x.yaml:17", "gcp.regions[1].name"),
        ("x.yaml:18", "azure.subscription"),
        ("x.yaml:18", "azure.key_vault"),
        ("x.yaml:19", "azure.resource_group"),
        ("x.yaml:20", "azure.regions[0].subnet"),
    ]
    assert "did you mean 'security_groups'?" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("cloud: aws", "aws is among its clouds, and a section `aws:` is missing"),
        ("gcp: {project: my-project, regions: [us-central1]}", "there is a section `gcp:`, but gcp is not among"),
        ("cloud: local\nclouds: [aws]", "has both `cloud` and `clouds`; keep one"),
        ("clouds: [aws, aws]", "`clouds` names one twice"),
        ("clouds: [aws, local]", "allowed: aws, gcp, azure"),
        ("cloud: gcp\ngcp: {project: my-project, regions: []}", "at least one region"),
        ("cloud: gcp\ngcp: {project: my-project, regions: [us-east1, us-east1]}", "none twice"),
    ],
)
def test_clouds_and_their_sections_belong_together(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"name: x\n{text}\n", "x.yaml", FleetConfig)
    assert wrong in str(caught.value)


def test_zones_of_another_region() -> None:
    text = text_of("aws").replace("us-east-1b:", "eu-west-1b:")
    with pytest.raises(ConfigError, match=r"eu-west-1b is no zone of us-east-1"):
        parse(text, "x.yaml", FleetConfig)


def test_providers_are_made_without_a_call_and_by_cell() -> None:
    found = providers_of(
        fleet_of("aws", "gcp", "azure"), lambda spec: spec.launch_id, {"gcp": object(), "azure": object()}
    )
    assert {name: provider.name for name, provider in found.items()} == {
        "aws-us-east-1": "aws",
        "aws-us-west-2": "aws",
        "gcp-us-central1": "gcp",
        "gcp-europe-west4": "gcp",
        "azure-eastus": "azure",
        "azure-westus2": "azure",
    }


def test_what_fails_alike_is_told_once() -> None:
    login = ("no access token", "gcloud auth application-default login")
    quota = Check("gcp us-central1 quota", False, *login)
    project, image = Check("gcp project", False, *login), Check("gcp image", False, *login)
    subnet = Check("gcp subnetwork", False, "there is none", "make one")
    assert preflight._once([quota, project, image, subnet]) == [quota, project, subnet]
    assert preflight._once([replace(project, ok=True), image, quota]) == [replace(project, ok=True), image]
