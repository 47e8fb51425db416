"""The files under cluster-configs: each is taken by the launchers that it is written for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tradewind.clouds import cells_of
from tradewind.clouds.ray_file import MODULE
from tradewind.config import load_fleet
from tradewind.config_models import FleetConfig
from tradewind.config_ray import fleet_part
from tradewind.config_yaml import check, compose
from tradewind.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "cluster-configs"
BOTH = ("aws-gpu-spot", "gcp-gpu-spot", "gcp-tpu-slice", "azure-gpu-spot")
OURS = ("local", "three-clouds")


def test_every_file_is_known_to_these_tests() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*BOTH, *OURS}


@pytest.mark.parametrize("name", [*BOTH, "three-clouds"])
def test_tradewind_takes_it_and_finds_something_to_buy(name: str) -> None:
    config = load_fleet(FOLDER / f"{name}.yaml")
    cells = cells_of(config)
    assert len(cells) == (1 if name in BOTH else 4)
    for cell in cells:
        assert cell.offers
        assert cell.heads
    assert config.limits.max_uusd_per_h is not None
    assert config.storage


def test_the_tpu_file_buys_slices_of_several_hosts() -> None:
    (cell,) = cells_of(load_fleet(FOLDER / "gcp-tpu-slice.yaml"))
    assert {offer.accelerator for offer in cell.offers} == {"TPU-V5LITEPOD"}
    assert {offer.hosts for offer in cell.offers} == {1, 4}


@pytest.mark.parametrize("name", BOTH)
def test_ray_takes_it(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    cluster: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert cluster["provider"]["module"] == MODULE
    validate_config(prepare_config(cluster))


@pytest.mark.parametrize("name", BOTH)
def test_our_provider_takes_what_ray_made_of_it(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config

    from tradewind.clouds.ray_provider import TradewindNodeProvider

    cluster = prepare_config(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    found = TradewindNodeProvider.bootstrap_config(cluster)
    assert found["auth"] == {}
    for key, value in (("setup_commands", ["pip install x"]), ("file_mounts", {"/a": "/b"})):
        with pytest.raises(ConfigError, match=f"{key}: is carried out by SSH"):
            TradewindNodeProvider.bootstrap_config({**cluster, key: value})


def test_mistakes_in_the_fleet_of_a_ray_file_have_their_lines() -> None:
    text = """\
cluster_name: Ray_Cluster
provider:
  type: external
  tradewind:
    cloud: aws
    limit: {max_nodes: 2}
    aws:
      regions:
        - {name: us-east-1, image: ami-0, subnets: {us-east-1a: subnet-0}, groups: []}
"""
    with pytest.raises(ConfigError) as caught:
        check(fleet_part(compose(text, "c.yaml")), FleetConfig)
    assert [(problem.where, problem.field) for problem in caught.value.problems] == [
        ("c.yaml:1", "name"),
        ("c.yaml:6", "limit"),
        ("c.yaml:9", "aws.regions[0].groups"),
    ]


def test_a_cluster_file_of_ray_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"provider\.tradewind: is missing"):
        fleet_part(compose("cluster_name: x\nprovider: {type: aws, region: us-west-2}\n", "c.yaml"))


def test_several_cells_are_nothing_for_ray_up() -> None:
    from tradewind.clouds.ray_file import the_cell

    with pytest.raises(ConfigError, match="starts one cell, and this names aws-us-east-1, aws-us-west-2, gcp"):
        the_cell(load_fleet(FOLDER / "three-clouds.yaml"))
    with pytest.raises(ConfigError, match="none: its cloud is local"):
        the_cell(load_fleet(FOLDER / "local.yaml"))
