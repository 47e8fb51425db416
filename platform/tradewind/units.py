"""Money, time and their text forms. Imports nothing of ours; everything here is pure.

Money is exact: integer micro-dollars, in names that end in `_uusd`. A rate is micro-dollars per hour
(`_uusd_per_h`). Timestamps are seconds since the epoch (`_s`); bills count whole milliseconds (`_ms`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

UUSD_PER_USD = 1_000_000
MS_PER_H = 3_600_000

_DURATION_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])")


def usd_to_uusd(amount: str | int | float | Decimal) -> int:
    """Micro-dollars of an amount in dollars. A float is read as it prints: 0.1 is ten cents, not a little more."""
    try:
        exact = Decimal(str(amount))
        if exact.is_finite():
            return int((exact * UUSD_PER_USD).to_integral_value(rounding=ROUND_HALF_EVEN))
    except InvalidOperation:
        pass
    raise ValueError(f"{amount!r} is not an amount of dollars; write it like 12.50")


def uusd_to_usd(amount_uusd: int) -> Decimal:
    return Decimal(amount_uusd) / UUSD_PER_USD


def parse_usd(text: str | int | float) -> int:
    """`"$12.50"`, `"1,250.00"`, `12.5` -> micro-dollars. Commas only between thousands: "12,50" is not 1250."""
    if isinstance(text, str):
        plain = text.strip().removeprefix("$")
        return usd_to_uusd(plain.replace(",", "") if _THOUSANDS.fullmatch(plain) else plain)
    return usd_to_uusd(text)


def format_usd(amount_uusd: int) -> str:
    """Cents where they say something, otherwise as many digits as it takes to show more than zero."""
    sign, size = ("-" if amount_uusd < 0 else ""), abs(amount_uusd)
    if size == 0 or size >= 100_000:
        return f"{sign}${uusd_to_usd(size):,.2f}"
    digits = 4 if size >= 1_000 else 6
    return f"{sign}${uusd_to_usd(size):.{digits}f}"


def to_ms(at_s: float) -> int:
    return round(at_s * 1000)


def cost_uusd(price_uusd_per_h: int, duration_ms: int) -> int:
    """What a duration costs, rounded down.

    Bill a node as the difference of two such figures, both counted from the start of its bill: then the
    parts add up to the whole exactly, however finely the time is cut.
    """
    if duration_ms < 0:
        raise ValueError(f"a duration cannot be negative: {duration_ms} ms")
    return price_uusd_per_h * duration_ms // MS_PER_H


def split_uusd(total_uusd: int, weights: Sequence[int]) -> list[int]:
    """Share an amount by weight, to the micro-dollar: the shares add up to the amount (largest remainder first)."""
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError(f"weights must be positive in sum and never negative: {list(weights)}")
    shares = [total_uusd * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(total_uusd * weights[i] % whole), i))
    for i in by_remainder[: total_uusd - sum(shares)]:
        shares[i] += 1
    return shares


def parse_duration_s(text: str | int | float) -> float:
    """`"90"`, `"90s"`, `"5m"`, `"6h"`, `"2d"`, `"1h30m"` -> seconds. A bare number is seconds."""
    if isinstance(text, int | float):
        return float(text)
    compact = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return float(compact)
    parts = _DURATION_PART.findall(compact)
    if not parts or _DURATION_PART.sub("", compact).strip():
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 5m, 6h, 2d or 1h30m")
    return sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts)


def format_duration(duration_s: float) -> str:
    """Two units at the most: `0.4s`, `12s`, `3m20s`, `6h05m`, `2d04h`."""
    if duration_s < 10:
        return f"{duration_s:.1f}s"
    whole_s = round(duration_s)
    if whole_s < 60:
        return f"{whole_s}s"
    if whole_s < 3600:
        return f"{whole_s // 60}m{whole_s % 60:02d}s"
    if whole_s < 86400:
        return f"{whole_s // 3600}h{whole_s % 3600 // 60:02d}m"
    return f"{whole_s // 86400}d{whole_s % 86400 // 3600:02d}h"
