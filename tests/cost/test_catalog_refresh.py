"""Newer price lists from emulated clouds: pages, retries, traps, and a failed refresh that keeps the old list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tradewind.cli import cli
from tradewind.cli_base import Options
from tradewind.cost import catalog, price_list
from tradewind.cost.catalog_aws import AwsFeed
from tradewind.cost.catalog_azure import AzureFeed
from tradewind.cost.catalog_gcp import GcpFeed, part_of
from tradewind.cost.catalog_refresh import check_whole, refresh, without_leaps
from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice, Source
from tradewind.emulators.prices_aws import AwsPriceDesk
from tradewind.emulators.prices_azure import PATH, AzurePriceDesk
from tradewind.emulators.prices_gcp import TPU, GcpPriceDesk
from tradewind.errors import AuthError, ProviderError, Transient

NOW_S = 1_763_300_000.0  # 2025-11-16
TODAY = "2025-11-16"
OLD = Source("old", "2024")


def small(cloud: str) -> PriceList:
    """The built-in list, cut to a few types and regions."""
    listed = next(each for each in catalog.load().lists if each.cloud == cloud)
    names = {
        "aws": ("p4d.24xlarge", "p4de.24xlarge", "g5.xlarge", "m7i.large"),
        "azure": ("Standard_NC24ads_A100_v4", "Standard_ND96asr_v4", "Standard_D2s_v5"),
        "gcp": (
            *("a2-highgpu-1g", "a3-megagpu-8g", "a4-highgpu-8g", "n1-standard-8+t4x1", "e2-standard-2"),
            *("tpu-v2-8", "tpu-v3-32", "tpu-v4-32", "tpu-v5litepod-16"),
        ),
    }[cloud]
    wide = ("us-east-1", "us-west-2", "eu-west-1")
    prices = [each for each in listed.prices(names) if cloud != "aws" or each.region in wide]
    return PriceList.of(cloud, OLD, listed.types.values(), prices)


def dearer(listed: PriceList) -> PriceList:
    """Every price a tenth up: the clouds have moved on."""
    prices = [
        RegionPrice(
            each.region,
            each.instance_type,
            each.on_demand_uusd_per_h and each.on_demand_uusd_per_h * 11 // 10,
            {zone: price and price * 11 // 10 for zone, price in each.spot_uusd_per_h.items()},
        )
        for each in listed.prices()
    ]
    return PriceList.of(listed.cloud, listed.source, listed.types.values(), prices)


# --- AWS -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> Any:
    import boto3

    return boto3.Session("AKIAEMULATED00000000", "secret")


@pytest.fixture
def aws() -> Iterator[AwsPriceDesk]:
    with AwsPriceDesk(dearer(small("aws")), page_size=7) as desk:
        yield desk


def test_aws_answers_what_it_sells(aws: AwsPriceDesk, session: Any) -> None:
    new = AwsFeed(aws.url, session).fetch(small("aws"), NOW_S)
    assert list(new.prices()) == list(aws.sold.prices())
    assert new.types == aws.sold.types
    assert new.source.date == TODAY


def test_aws_describes_types_that_the_list_does_not_know(aws: AwsPriceDesk, session: Any) -> None:
    known = small("aws")
    without = PriceList.of("aws", OLD, known.types.values(), known.prices(["g5.xlarge", "m7i.large"]))
    new = AwsFeed(aws.url, session).fetch(without, NOW_S)
    assert new.types["p4de.24xlarge"] == known.types["p4de.24xlarge"]  # told from the A100 by its memory
    assert new.types["p4d.24xlarge"].accelerator == "A100"
    assert list(new.prices()) == list(aws.sold.prices())


def test_a_region_that_the_account_does_not_have_keeps_its_zones_without_spot_prices(session: Any) -> None:
    with AwsPriceDesk(small("aws"), regions=("us-east-1",)) as desk:
        new = AwsFeed(desk.url, session).fetch(small("aws"), NOW_S)
    elsewhere = [each for each in new.prices() if each.region != "us-east-1"]
    assert elsewhere
    assert all(each.on_demand_uusd_per_h for each in elsewhere)
    assert {price for each in elsewhere for price in each.spot_uusd_per_h.values()} == {None}


def test_aws_is_asked_again_after_a_bad_moment(aws: AwsPriceDesk, session: Any) -> None:
    aws.bad.after, aws.bad.throttled, aws.bad.cut = 3, 1, 1
    assert list(AwsFeed(aws.url, session).fetch(small("aws"), NOW_S).prices()) == list(aws.sold.prices())


def test_aws_without_the_right_is_told(aws: AwsPriceDesk, session: Any) -> None:
    aws.bad.denied = True
    with pytest.raises(AuthError, match="denied") as caught:
        AwsFeed(aws.url, session).fetch(small("aws"), NOW_S)
    assert "pricing:GetProducts" in caught.value.hint


# --- Azure -----------------------------------------------------------------------------------------------------


@pytest.fixture
def azure() -> Iterator[AzurePriceDesk]:
    with AzurePriceDesk(dearer(small("azure")), page_size=11) as desk:
        yield desk


def azure_feed(desk: AzurePriceDesk, waits: list[float] | None = None) -> AzureFeed:
    return AzureFeed(desk.url + PATH, ([] if waits is None else waits).append)


def test_azure_answers_what_it_sells(azure: AzurePriceDesk) -> None:
    new = azure_feed(azure).fetch(small("azure"), NOW_S)
    assert list(new.prices()) == list(dearer(small("azure")).prices())
    assert azure.calls > 5


def test_azure_unknown_prices_stay_unknown() -> None:
    known = small("azure")
    prices = [RegionPrice(each.region, each.instance_type, 5_000_000, {each.region: None}) for each in known.prices()]
    sold = PriceList.of("azure", OLD, known.types.values(), prices)
    with AzurePriceDesk(sold) as desk:
        new = azure_feed(desk).fetch(known, NOW_S)
    assert list(new.prices()) == list(sold.prices())


def test_azure_is_asked_again_with_growing_waits(azure: AzurePriceDesk) -> None:
    waits: list[float] = []
    azure.bad.after, azure.bad.throttled, azure.bad.failing, azure.bad.cut = 2, 1, 1, 1
    assert len(azure_feed(azure, waits).fetch(small("azure"), NOW_S)) == len(small("azure"))
    assert waits == [1.0, 2.0, 4.0]


def test_azure_gives_up_in_the_end(azure: AzurePriceDesk) -> None:
    azure.bad.after, azure.bad.failing = 3, 1000
    with pytest.raises(Transient, match="HTTP 503, 5 times"):
        azure_feed(azure).fetch(small("azure"), NOW_S)


# --- GCP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gcp() -> Iterator[GcpPriceDesk]:
    with GcpPriceDesk(page_size=5) as desk:
        here = "us-central1"
        for spot, factor in ((False, 10), (True, 4)):
            start = "Spot Preemptible " if spot else ""
            attached = " attached to Spot Preemptible VMs" if spot else ""

            def sell(text: str, group: str, tenth: str, spot: bool = spot, factor: int = factor, **more: Any) -> None:
                region = more.pop("region", here)
                desk.sell(text, group, {region: str(round(float(tenth) * factor, 9))}, spot=spot, **more)

            sell(f"{start}A2 Instance Core", "CPU", "0.003")
            sell(f"{start}A2 Instance Ram", "RAM", "0.0004")
            sell(f"Nvidia Tesla A100 GPU{attached}", "GPU", "0.3")
            sell(f"Nvidia Tesla A100 80GB GPU{attached}", "GPU", "9")
            sell(f"{start}A3Plus Instance Core", "CPU", "0.003")
            sell(f"{start}A3Plus Instance Ram", "RAM", "0.0003")
            sell(f"{start}A3 Instance Core", "CPU", "7")
            sell(f"Nvidia H100 80GB Plus GPU{attached}", "GPU", "1")
            sell(f"A4 Nvidia B200 (1 gpu slice){attached}", "GPU", "1.1")
            sell(f"{start}N1 Predefined Instance Core", "N1Standard", "0.003")
            sell(f"{start}N1 Predefined Instance Ram", "N1Standard", "0.0004")
            sell(f"Nvidia Tesla T4 GPU{attached}", "GPU", "0.035")
            sell(f"{start}E2 Instance Core", "CPU", "0.002")  # and no memory: the price is unknown
            sell(f"TPU-v2 Accelerator{attached}", "TPU", "0.45", service=TPU)
            sell(f"TPU-v3 Pod{attached}", "TPU", "0.1", service=TPU, region="us-east1")
            sell(f"TPU-v4 Pod{attached}", "TPU", "0.322", service=TPU, region="us-central2")
            sell(f"TPU v5e{attached}", "TPU", "0.12")
        yield desk


def gcp_feed(desk: GcpPriceDesk) -> GcpFeed:
    from google.auth.credentials import AnonymousCredentials

    return GcpFeed(desk.url, AnonymousCredentials())  # type: ignore[no-untyped-call]


def test_gcp_sums_machines_cards_and_chips(gcp: GcpPriceDesk) -> None:
    new = gcp_feed(gcp).fetch(small("gcp"), NOW_S)
    told = {
        each.instance_type: (each.on_demand_uusd_per_h, set(each.spot_uusd_per_h.values()))
        for each in new.prices()
        if each.region == {"tpu-v3-32": "us-east1", "tpu-v4-32": "us-central2"}.get(each.instance_type, "us-central1")
    }
    assert told["a2-highgpu-1g"] == (12 * 30_000 + 85 * 4_000 + 3_000_000, {1_480_000})
    assert told["a3-megagpu-8g"][0] == 208 * 30_000 + 1872 * 3_000 + 8 * 10_000_000
    assert told["a4-highgpu-8g"][0] == 8 * 11_000_000  # the machine is paid with its accelerators
    assert told["n1-standard-8+t4x1"][0] == 8 * 30_000 + 30 * 4_000 + 350_000
    assert told["e2-standard-2"] == (None, {None})
    assert told["tpu-v2-8"][0] == 4_500_000  # by the board
    assert told["tpu-v3-32"][0] == 32_000_000  # by the core
    assert told["tpu-v4-32"][0] == 16 * 3_220_000  # by the chip, like all that came later
    assert told["tpu-v5litepod-16"][0] == 16 * 1_200_000
    assert all(each.on_demand_uusd_per_h is None for each in new.prices() if each.region == "europe-west4")


def test_gcp_is_asked_again_and_refusals_are_told(gcp: GcpPriceDesk) -> None:
    gcp.bad.after, gcp.bad.failing, gcp.bad.cut = 2, 1, 1
    assert gcp_feed(gcp).fetch(small("gcp"), NOW_S).types
    gcp.bad.denied = True
    with pytest.raises(AuthError, match="denied"):
        gcp_feed(gcp).fetch(small("gcp"), NOW_S)


@pytest.mark.parametrize(
    ("group", "text", "part"),
    [
        ("GPU", "Nvidia L4 GPU running in Tokyo", ("card", "L4")),
        ("GPU", "Nvidia H100 80GB GPU running in Iowa", ("card", "H100")),
        ("GPU", "Nvidia Imaginary GPU running in Iowa", None),
        ("CPU", "Spot Preemptible G2 Instance Core running in Iowa", ("g2", "core")),
        ("CPU", "Network egress", None),
        ("TPU", "TPU v6e in Iowa", ("tpu", "v6e")),
    ],
)
def test_gcp_words_are_understood(group: str, text: str, part: tuple[str, str] | None) -> None:
    assert part_of(group, text) == part


# --- the swap --------------------------------------------------------------------------------------------------


def some(cloud: str = "aws", source: Source = OLD, on_demand: int | None = 1_000_000, num: int = 4) -> PriceList:
    prices = [RegionPrice(f"r{n}", "t", on_demand, {f"r{n}-a": 400_000}) for n in range(num)]
    return PriceList.of(cloud, source, [InstanceType("t", "A100", 1.0)], prices)


class Scripted:
    """A feed that answers what it is told to."""

    def __init__(self, answer: PriceList | Exception) -> None:
        self.answer, self.cloud = answer, "aws"

    def fetch(self, known: PriceList, now_s: float) -> PriceList:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_new_list_is_swapped_in(tmp_path: Path) -> None:
    new = some(source=Source("new", TODAY), on_demand=1_200_000)
    (told,) = refresh(tmp_path / "deep", catalog.Catalog((some(),)), [Scripted(new)], NOW_S)
    assert (told.error, told.changed, told.num_prices) == (None, 4, 8)
    assert price_list.read(tmp_path / "deep" / "aws.csv") == new
    assert catalog.load(tmp_path / "deep").find("A100", cloud="aws")[0].price_source == "new"


@pytest.mark.parametrize(
    "answer",
    [Transient("no answer", cloud="aws"), AuthError("who are you", cloud="aws"), some(num=1), some(num=0)],
    ids=["down", "denied", "cut short", "empty"],
)
def test_a_failed_refresh_keeps_the_old_and_says_so(tmp_path: Path, answer: PriceList | ProviderError) -> None:
    some(source=Source("mine", "2025-01-01")).write(tmp_path / "aws.csv")
    before = (tmp_path / "aws.csv").read_bytes()
    (told,) = refresh(tmp_path, catalog.Catalog((some(),)), [Scripted(answer)], NOW_S)
    assert told.error is not None
    assert "kept the list of 2024 (old)" in told.text
    assert (tmp_path / "aws.csv").read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["aws.csv"]


def test_one_cloud_that_fails_does_not_hold_the_others(tmp_path: Path) -> None:
    other = Scripted(replace(some("gcp", Source("new", TODAY)), cloud="gcp"))
    other.cloud = "gcp"
    old = catalog.Catalog((some(), some("gcp")))
    told = refresh(tmp_path, old, [Scripted(Transient("down", cloud="aws")), other], NOW_S)
    assert [each.error is None for each in told] == [False, True]
    assert [each.name for each in tmp_path.iterdir()] == ["gcp.csv"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "aws.csv").mkdir()
    (told,) = refresh(tmp_path, catalog.Catalog((some(),)), [Scripted(some())], NOW_S)
    assert told.error is not None
    assert "cannot write" in told.error.message


def test_a_price_that_leaps_is_unknown_rather_than_wrong() -> None:
    new, doubted = without_leaps(some(), some(on_demand=8_000_000))
    assert doubted == 4
    assert {each.on_demand_uusd_per_h for each in new.prices()} == {None}
    assert without_leaps(some(), some(on_demand=4_000_000)) == (some(on_demand=4_000_000), 0)
    check_whole(some(), new)  # half of the prices are left


def test_the_command_tells_a_wrong_cloud(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["--home", str(tmp_path), "catalog", "refresh", "--cloud", "asw"], obj=Options())
    assert found.exit_code == 2
    assert "known are aws, azure, gcp" in found.stderr
