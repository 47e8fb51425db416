"""`tradewind catalog`: cheapest per accelerator-hour first, and honest about what is not known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tradewind.cli import cli
from tradewind.cli_base import Options
from tradewind.cost import catalog, shop
from tradewind.errors import ConfigError
from tradewind.model import Capacity

LIST = """\
source,aws,my-list,2025-03-01
type,one,A100,1,1,12,85,40,24
type,eight,A100,8,1,96,680,40,
type,slice,TPU-V4,4,4,240,407,32,
type,plain,,0,1,8,32,,
price,r1,one,3000000,r1-a=1000000 r1-b=1000000 r1-c=3500000
price,r1,eight,20000000,r1-a=
price,r2,eight,16000000,r2-a=7000000
price,r1,slice,51520000,r1-a=16000000
price,r1,plain,300000,r1-a=100000
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text(LIST)
    return tmp_path / "mine.csv"


def run(*arguments: str, home: Path) -> Result:
    return CliRunner().invoke(cli, ["--home", str(home), "catalog", *arguments], obj=Options())


def test_cheapest_per_accelerator_first_and_equal_zones_together(path: Path) -> None:
    found = shop.deals(catalog.load(path), shop.Question("A100"))
    told = [(deal.instance_type, deal.per_accelerator_uusd_per_h, deal.zones) for deal in found]
    assert told == [
        ("eight", 875_000, ("r2-a",)),
        ("one", 1_000_000, ("r1-a", "r1-b")),
        ("eight", 2_000_000, ("r2-a",)),
        ("eight", 2_500_000, ("r1-a",)),
        ("one", 3_000_000, ("r1-a", "r1-b", "r1-c")),
        ("one", 3_500_000, ("r1-c",)),
        ("eight", None, ("r1-a",)),
    ]


def test_questions_narrow(path: Path) -> None:
    mine = catalog.load(path)
    assert {deal.instance_type for deal in shop.deals(mine, shop.Question("A100:8"))} == {"eight"}
    assert [deal.capacity for deal in shop.deals(mine, shop.Question("A100:8", Capacity.SPOT, region="r2"))] == ["spot"]
    assert {deal.instance_type for deal in shop.deals(mine, shop.Question("A100", min_vcpus=13))} == {"eight"}
    assert {deal.instance_type for deal in shop.deals(mine, shop.Question("plain"))} == {"plain"}
    assert shop.deals(mine, shop.Question("A100:3")) == []


@pytest.mark.parametrize("what", ["A100:", "A100:0", "A100:x", ":8", "A100:-1"])
def test_a_question_that_is_none_is_told(path: Path, what: str) -> None:
    with pytest.raises(ConfigError, match="is not a name and a number"):
        shop.deals(catalog.load(path), shop.Question(what))


def test_spot_above_on_demand_is_shown_as_a_negative_saving(path: Path) -> None:
    text = shop.deals_text(shop.deals(catalog.load(path), shop.Question("A100:1", Capacity.SPOT)), 10)
    assert "-17%" in text
    assert "spot costs more than on-demand" in text


def test_unknown_prices_are_counted_not_listed(path: Path) -> None:
    text = shop.deals_text(shop.deals(catalog.load(path), shop.Question("A100:8")), 10)
    assert "1 more have no known price" in text
    assert "$0.00" not in text


def test_a_slice_is_priced_per_chip(path: Path) -> None:
    deal = shop.deals(catalog.load(path), shop.Question("TPU-V4:16", Capacity.ON_DEMAND))[0]
    assert deal.per_accelerator_uusd_per_h == 3_220_000
    assert "$/TPU-h" in shop.deals_text([deal], 1)
    assert "16 x TPU-V4 32 GiB on 4 hosts" in shop.deals_text([deal], 1)


def test_the_command_answers(path: Path, tmp_path: Path) -> None:
    found = run("A100:8", "--spot", "--list", str(path), home=tmp_path)
    assert found.exit_code == 0, found.output
    assert "$0.88" in found.stdout
    assert "aws: my-list, 2025-03-01" in found.stdout
    assert "days old" in found.stderr
    everything = run("--list", str(path), home=tmp_path)
    assert "TPU-V4" in everything.stdout
    assert "$3.22" in everything.stdout


def test_the_command_speaks_json(path: Path, tmp_path: Path) -> None:
    found = json.loads(run("A100:8", "--spot", "--json", "--list", str(path), home=tmp_path).stdout)
    assert [(deal["instance_type"], deal["price_uusd_per_h"]) for deal in found] == [
        ("eight", 7_000_000),
        ("eight", None),
    ]


def test_lists_in_the_home_are_used(path: Path, tmp_path: Path) -> None:
    (tmp_path / catalog.FOLDER).mkdir()
    path.rename(tmp_path / catalog.FOLDER / "aws.csv")
    found = json.loads(run("A100", "--cloud", "aws", "--json", home=tmp_path).stdout)
    assert found[0]["price_uusd_per_h"] == 7_000_000


def test_an_age_limit_makes_it_warn(path: Path, tmp_path: Path) -> None:
    assert "Warning" not in run("A100", "--list", str(path), "--max-age", "9000d", home=tmp_path).stderr
    assert "refresh --cloud aws" in run("A100", "--list", str(path), "--max-age", "1d", home=tmp_path).stderr


def test_a_wrong_name_gets_a_hint(tmp_path: Path) -> None:
    found = run("A1000", home=tmp_path)
    assert found.exit_code == 1
    assert "the nearest is A100" in found.stderr
