"""Money is exact, durations read as people write them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.units import (
    cost_uusd,
    format_duration,
    format_usd,
    parse_duration_s,
    parse_usd,
    split_uusd,
    to_ms,
    usd_to_uusd,
    uusd_to_usd,
)

weights = st.lists(st.integers(0, 10**9), min_size=1, max_size=12).filter(lambda found: sum(found) > 0)


@settings(deadline=None)
@given(st.integers(-(10**15), 10**15), weights)
def test_shares_add_up_to_the_amount(total: int, by: list[int]) -> None:
    shares = split_uusd(total, by)
    assert sum(shares) == total
    assert all(abs(share * sum(by) - total * weight) < sum(by) for share, weight in zip(shares, by, strict=True))
    assert all(share == 0 for share, weight in zip(shares, by, strict=True) if weight == 0)


@pytest.mark.parametrize("by", [[], [0, 0], [2, -1], [-1]])
def test_weights_that_share_nothing(by: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        split_uusd(10, by)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**8), min_size=1))
def test_however_time_is_cut_the_cost_is_the_same(price: int, cuts: list[int]) -> None:
    ends = sorted(cuts)
    parts = [cost_uusd(price, end) - cost_uusd(price, begin) for begin, end in zip([0, *ends], ends, strict=False)]
    assert sum(parts) == cost_uusd(price, ends[-1])
    assert all(part >= 0 for part in parts)


def test_cost_by_hand() -> None:
    assert cost_uusd(3_600_000, 1) == 1
    assert cost_uusd(1_000_000, 90 * 60 * 1000) == 1_500_000
    assert cost_uusd(999, 1) == 0
    with pytest.raises(ValueError, match="negative"):
        cost_uusd(1, -1)


@settings(deadline=None)
@given(st.integers(-(10**15), 10**15))
def test_dollars_and_back(amount: int) -> None:
    assert usd_to_uusd(uusd_to_usd(amount)) == amount
    assert usd_to_uusd(str(uusd_to_usd(amount))) == amount


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$12.50", 12_500_000),
        (" 12.5 ", 12_500_000),
        ("1,250.00", 1_250_000_000),
        (0.1, 100_000),
        (3, 3_000_000),
        ("0.0000005", 0),
        ("0.0000015", 2),
        ("-2", -2_000_000),
    ],
)
def test_amounts(text: str | float, expected: int) -> None:
    assert parse_usd(text) == expected


@pytest.mark.parametrize("text", ["", "$", "ten", "12,50", "1,2500", "nan", "inf", "1 2", True])
def test_no_amounts(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        parse_usd(text)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, "$0.00"),
        (12_500_000, "$12.50"),
        (-12_500_000, "-$12.50"),
        (1_234_567_890, "$1,234.57"),
        (100_000, "$0.10"),
        (12_300, "$0.0123"),
        (7, "$0.000007"),
    ],
)
def test_printed_amounts(amount: int, expected: str) -> None:
    assert format_usd(amount) == expected


@settings(deadline=None)
@given(st.integers(1, 10**15))
def test_more_than_nothing_never_prints_as_nothing(amount: int) -> None:
    assert Decimal(format_usd(amount).strip("$").replace(",", "")) > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90), (90, 90), (1.5, 1.5), ("90s", 90), ("250ms", 0.25), ("5m", 300), ("5min", 300), ("6h", 21600),
        ("2d", 172800), ("1w", 604800), ("1h30m", 5400), ("1h 30m 5s", 5405), (" 2 H ", 7200), ("0.5h", 1800), ("0", 0),
    ],
)  # fmt: skip
def test_durations(text: str | float, expected: float) -> None:
    assert parse_duration_s(text) == expected


@pytest.mark.parametrize("text", ["", "h", "5 parsecs", "1h30", "-5s", "5m!", "1:30", "five minutes"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("duration_s", "expected"),
    [(0, "0.0s"), (0.44, "0.4s"), (12.4, "12s"), (59.7, "1m00s"), (200, "3m20s"), (3599.6, "1h00m"), (21900, "6h05m"),
     (187200, "2d04h")],
)  # fmt: skip
def test_printed_durations(duration_s: float, expected: str) -> None:
    assert format_duration(duration_s) == expected


@settings(deadline=None)
@given(st.floats(10, 10**7))
def test_a_printed_duration_reads_back_to_about_the_same(duration_s: float) -> None:
    unit_s = 1 if duration_s < 3599 else 60 if duration_s < 86399 else 3600
    assert abs(parse_duration_s(format_duration(duration_s)) - duration_s) <= unit_s


@settings(deadline=None)
@given(st.floats(0, 4e9))
def test_milliseconds_are_the_nearest(at_s: float) -> None:
    assert abs(to_ms(at_s) - at_s * 1000) <= 0.5
