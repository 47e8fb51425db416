"""The built-in price list, and lists of people's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tradewind.cost import catalog
from tradewind.errors import ConfigError
from tradewind.model import Capacity


@pytest.fixture(scope="module")
def builtin() -> catalog.Catalog:
    return catalog.load()


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "list.csv"
    path.write_text("\n".join(["# mine", "source,aws,my-list,2025-03-01", *lines]) + "\n")
    return path


def test_builtin_has_three_clouds_gpus_tpus_and_plain_machines(builtin: catalog.Catalog) -> None:
    assert builtin.clouds == ("aws", "azure", "gcp")
    for cloud in builtin.clouds:
        assert builtin.find("A100", cloud=cloud)
        assert builtin.find("T4", cloud=cloud)
        assert builtin.find("", cloud=cloud)
    assert builtin.find("TPU-V4", cloud="gcp")
    assert sum(path.stat().st_size for path in catalog.BUILTIN.glob("*.csv")) < 250_000
    assert len(builtin.regions) > 60


def test_cheapest_first_and_unknown_prices_last(builtin: catalog.Catalog) -> None:
    prices = [offer.price_uusd_per_h for offer in builtin.find("H200")]
    known = [price for price in prices if price is not None]
    assert known == sorted(known)
    assert None in prices
    assert prices == known + [None] * (len(prices) - len(known))


def test_no_price_is_zero(builtin: catalog.Catalog) -> None:
    assert all(offer.price_uusd_per_h != 0 for offer in builtin.find())
    assert all(offer.on_demand_uusd_per_h != 0 for offer in builtin.find())


def test_spot_above_on_demand_is_told_as_it_is_and_loses_the_comparison(builtin: catalog.Catalog) -> None:
    odd = [
        offer
        for offer in builtin.find(capacity=Capacity.SPOT)
        if offer.price_uusd_per_h and offer.on_demand_uusd_per_h and offer.price_uusd_per_h > offer.on_demand_uusd_per_h
    ]
    assert odd
    market = odd[0].market
    best = builtin.find(cloud=market.cloud, zone=market.zone, instance_type=market.instance_type)[0]
    assert best.market.capacity is Capacity.ON_DEMAND


def test_gcp_machine_and_accelerator_are_summed(builtin: catalog.Catalog) -> None:
    # a2-highgpu-1g in us-central1: the accelerator alone costs 2.934 dollars
    offer = builtin.find(zone="us-central1-a", instance_type="a2-highgpu-1g", capacity=Capacity.ON_DEMAND)[0]
    assert offer.accelerator == "A100"
    assert offer.price_uusd_per_h is not None
    assert 3_500_000 < offer.price_uusd_per_h < 4_000_000
    g2 = builtin.find(zone="us-central1-a", instance_type="g2-standard-4")
    assert [each.price_uusd_per_h for each in g2] == [423_960, 706_830]  # 0.08806 + 0.3359, 0.14679 + 0.56004


def test_tpu_slice_is_one_offer_of_several_hosts(builtin: catalog.Catalog) -> None:
    offer = builtin.find(zone="us-central2-b", instance_type="tpu-v4-32", capacity=Capacity.ON_DEMAND)[0]
    assert (offer.hosts, offer.accelerator_count) == (4, 4.0)  # 32 cores are 16 chips
    assert offer.price_uusd_per_h == 51_520_000
    assert offer.resources["TPU"] == 4.0


def test_names_are_found_however_they_are_spelt(builtin: catalog.Catalog) -> None:
    assert builtin.find("a100_80gb") == builtin.find("A100-80GB")
    assert builtin.find(instance_type="standard_nc24ads_a100_v4")


def test_names_that_differ_by_a_dash_alone_are_told_apart(builtin: catalog.Catalog) -> None:
    assert {offer.market.cloud for offer in builtin.find(region="us-east-1")} == {"aws"}
    assert {offer.market.cloud for offer in builtin.find(region="us-east1")} == {"gcp"}


def test_every_question_narrows(builtin: catalog.Catalog) -> None:
    found = builtin.find("A10G", count=4, cloud="aws", region="us-east-1", zone="use1-az4", capacity=Capacity.SPOT)
    assert found
    for offer in found:
        assert offer.market.zone == "use1-az4"
        assert offer.accelerator_count == 4
        assert offer.market.capacity is Capacity.SPOT
        assert (offer.price_source, offer.price_date) == ("skypilot-catalog", "2026")
    assert builtin.find("A10G", cloud="gcp") == ()
    assert len(builtin.find("L4", limit=3)) == 3


@pytest.mark.parametrize(
    ("question", "value", "nearest"),
    [
        ("accelerator", "A1000", "A100"),
        ("instance_type", "g5.xlarg", "g5.xlarge"),
        ("cloud", "asw", "aws"),
        ("region", "us-east-11", "us-east-1"),
        ("zone", "use1-az44", "use1-az4"),
    ],
)
def test_unknown_name_tells_the_nearest(builtin: catalog.Catalog, question: str, value: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"the nearest is {nearest}"):
        builtin.find(**{question: value})


def test_own_list_is_read_with_its_source(tmp_path: Path) -> None:
    big, small = "type,big,A100,8,1,96,1152,40,400", "type,small,,0,1,2,8,,"
    path = write(tmp_path, big, small, "price,r,big,,z=16000000", "price,r,small,96000,z=")
    mine = catalog.load(path)
    spot, on_demand = mine.find("A100")
    assert (spot.price_uusd_per_h, spot.on_demand_uusd_per_h) == (16_000_000, None)
    assert on_demand.price_uusd_per_h is None
    assert (spot.price_source, spot.price_date) == ("my-list", "2025-03-01")
    assert mine.cheapest("") == mine.find("", capacity=Capacity.ON_DEMAND)[0]
    assert mine.cheapest("A100", capacity=Capacity.ON_DEMAND) is None
    facts = mine.type_of(spot.market)
    assert facts is not None
    assert (facts.accelerator_memory_gib, facts.network_gbps) == (40.0, 400.0)


def test_every_mistake_in_a_list_is_told_with_its_line(tmp_path: Path) -> None:
    wrong = ("type,t,A100,x,1,96,1152,,", "type,u,A100,8,0,96,1152,,", "price,r,v,0,z=", "price,r,w,5,", "what,is,this")
    path = write(tmp_path, "type,v,A100,8,1,96,1152,,", *wrong, "price,r,nowhere,5,z=5", "price,r,v,1.5,z=5")
    with pytest.raises(ConfigError) as caught:
        catalog.load(path)
    told = [(problem.where.rsplit(":")[-1], problem.field) for problem in caught.value.problems]
    kinds = [("4", "type"), ("5", "type"), ("6", "price"), ("7", "price"), ("8", ""), ("9", "price"), ("10", "price")]
    assert told == kinds


def test_missing_file_and_missing_source_are_told(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("type,t,,0,1,2,8,,\n")
    with pytest.raises(ConfigError, match="there must be one line source"):
        catalog.load(tmp_path / "other.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        catalog.load(tmp_path / "binary.csv")


def test_a_folder_of_newer_lists_comes_before_the_built_in_ones(tmp_path: Path, builtin: catalog.Catalog) -> None:
    assert catalog.load(tmp_path / "none") == builtin
    write(tmp_path, "type,p4d.24xlarge,A100,8,1,96,1152,40,400", "price,us-east-1,p4d.24xlarge,7000000,use1-az1=1")
    mixed = catalog.load(tmp_path)
    assert mixed.clouds == builtin.clouds
    assert [offer.price_uusd_per_h for offer in mixed.find("A100", cloud="aws")] == [1, 7_000_000]
    assert mixed.find("A100", cloud="gcp") == builtin.find("A100", cloud="gcp")


def test_zones_with_another_price_on_demand_stand_apart(tmp_path: Path) -> None:
    lines = ("type,t,,0,1,2,8,,", "price,r,t,100,r-a=50 r-b=60", "price,r,t,300,r-lax=")
    found = catalog.load(write(tmp_path, *lines)).find(capacity=Capacity.ON_DEMAND)
    assert [(offer.market.zone, offer.price_uusd_per_h) for offer in found] == [
        ("r-a", 100),
        ("r-b", 100),
        ("r-lax", 300),
    ]


def test_age_counts_from_the_day_or_from_the_years_first() -> None:
    now_s = 1_767_225_600.0 + 10 * 86400  # 2026-01-11
    assert catalog.age_s(catalog.Source("", "2026-01-01"), now_s) == 10 * 86400
    assert catalog.age_s(catalog.Source("", "2026"), now_s) == 10 * 86400
    assert catalog.age_s(catalog.Source("", "2026-02-01"), now_s) == 0.0  # a clock that is behind makes nothing young


def test_old_lists_are_told(builtin: catalog.Catalog) -> None:
    at_2026_s = 1_767_225_600.0
    assert set(builtin.stale(at_2026_s + 86400)) == {"azure"}
    assert set(builtin.stale(at_2026_s + 40 * 86400)) == {"aws", "azure", "gcp"}
    assert set(builtin.stale(at_2026_s + 40 * 86400, max_age_s=50 * 86400)) == {"azure"}


def test_a_program_chooses_its_lists_once(tmp_path: Path, builtin: catalog.Catalog) -> None:
    write(tmp_path, "type,t,A100,8,1,96,1152,40,", "price,r,t,7000000,z=1")
    try:
        chosen = catalog.use(tmp_path)
        assert catalog.load() is chosen
        assert [offer.price_uusd_per_h for offer in catalog.load().find("A100", cloud="aws")] == [1, 7_000_000]
    finally:
        assert catalog.use(None) == builtin
