"""Price lists as files: what is written is what is read, and a file is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.cost import price_list
from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice, Source

NAMES = st.text("abcdefgh-._+0123456789", min_size=1, max_size=12)
AMOUNTS = st.none() | st.integers(1, 10**12)
SIZES = st.integers(0, 4096).map(lambda number: number / 8)


@st.composite
def lists(draw: st.DrawFn) -> PriceList:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    types = [
        InstanceType(
            name,
            draw(st.sampled_from(["", "A100", "TPU-V4"])),
            draw(SIZES),
            draw(st.integers(1, 64)),
            draw(SIZES),
            draw(SIZES),
            draw(st.none() | SIZES),
            draw(st.none() | SIZES),
        )
        for name in names
    ]
    zones = st.dictionaries(NAMES, AMOUNTS, min_size=1, max_size=3)
    prices = [RegionPrice(draw(NAMES), draw(st.sampled_from(names)), draw(AMOUNTS), draw(zones)) for _ in range(4)]
    return PriceList.of("aws", Source("some list", "2026-01-02"), types, prices)


@given(lists())
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, made: PriceList) -> None:
    path = tmp_path_factory.mktemp("list") / "aws.csv"
    made.write(path, ["a comment"])
    assert price_list.read(path) == made
    assert list(price_list.read(path).prices()) == list(made.prices())
    assert [each.name for each in path.parent.iterdir()] == ["aws.csv"]


@pytest.mark.parametrize("price", [0, -5])
def test_a_price_of_nothing_cannot_be_written(price: int) -> None:
    with pytest.raises(ValueError, match="is no price"):
        PriceList.of("aws", Source("s", "2026"), [InstanceType("t")], [RegionPrice("r", "t", price, {"z": None})])


def test_a_write_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError("disk full")

    old = PriceList.of("aws", Source("old", "2025"), [InstanceType("t")], [RegionPrice("r", "t", 5, {"z": None})])
    old.write(tmp_path / "aws.csv")
    monkeypatch.setattr("os.fsync", failing)
    with pytest.raises(OSError, match="disk full"):
        PriceList.of("aws", Source("new", "2026"), [], []).write(tmp_path / "aws.csv")
    assert price_list.read(tmp_path / "aws.csv") == old
    assert [each.name for each in tmp_path.iterdir()] == ["aws.csv"]
