"""Real price histories of other years and regions through the ledger, beside a plain sum; and rows as odd as they come.

The histories are looked for in `shared/data/compact` beside or above the project, or where TRADEWIND_PRICES says.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tradewind.cost.figures import BY, summary
from tradewind.cost.ledger import Ledger
from tradewind.events import AnyEvent, LaunchRequested, NodeGone, NodeJoined, NodeLaunched, PriceChanged
from tradewind.model import Capacity, EndReason, Market, Offer
from tradewind.units import MS_PER_H, usd_to_uusd

DAY_MS = 24 * MS_PER_H
FILES = ("aws_gpu_spot_events_2024", "aws_gpu_price_history_to_2024", "gcp_accel_price_history_to_2024")
ROOT = Path(__file__).parents[2]
EVERY = 9  # of the markets, one in so many: the files have hundreds of thousands of rows


class Move(NamedTuple):
    market: Market
    at_ms: int
    price_uusd_per_h: int
    on_demand_uusd_per_h: int | None


class Node(NamedTuple):
    offer: Offer
    from_ms: int
    until_ms: int


def replay(moves: Iterable[Move], nodes: Iterable[Node], chance: random.Random) -> tuple[Ledger, float]:
    """Prices come in any order, some twice; nodes come and go between them."""
    events: list[AnyEvent] = []
    for number, node in enumerate(nodes):
        name, at_s = f"n{number}", node.from_ms / 1000
        events.append(LaunchRequested(at_s=at_s, launch_id=name, offer=node.offer, reason="replay"))
        events.append(NodeLaunched(at_s=at_s, launch_id=name, instance_id=name))
        events.append(NodeJoined(at_s=at_s, launch_id=name, ray_node_id=name))
        events.append(NodeGone(at_s=node.until_ms / 1000, launch_id=name, end=EndReason.PREEMPTED))
    prices = [_event(move) for move in moves]
    for event in prices:
        events.insert(0, event) if chance.random() < 0.01 else events.append(event)
    now_s = max(event.at_s for event in events) + 1
    ledger = Ledger(minimum_ms={})
    for number, event in enumerate(events):
        ledger.apply(event)
        if number == len(events) // 2:
            summary(ledger, "day", now_s)  # asked in between: what is heard later opens settled days again
    return ledger, now_s


def _event(move: Move) -> PriceChanged:
    return PriceChanged(at_s=move.at_ms / 1000, market=move.market.key, price_uusd_per_h=move.price_uusd_per_h)


def plain_uusd(node: Node, moves: Iterable[Move]) -> int:
    """By hand: price x time, rounded down once a day. Of prices of one moment the one that was heard last holds."""
    later = sorted((each for each in moves if each.at_ms > node.from_ms), key=lambda each: each.at_ms)
    edges = [(node.from_ms, node.offer.price_uusd_per_h or 0)]
    edges += [(each.at_ms, each.price_uusd_per_h) for each in later if each.at_ms < node.until_ms]
    by_day: dict[int, int] = {}
    for i, (from_ms, price) in enumerate(edges):
        until_ms = edges[i + 1][0] if i + 1 < len(edges) else node.until_ms
        while from_ms < until_ms:
            cut_ms = min(until_ms, (from_ms // DAY_MS + 1) * DAY_MS)
            by_day[from_ms // DAY_MS] = by_day.get(from_ms // DAY_MS, 0) + price * (cut_ms - from_ms)
            from_ms = cut_ms
    return sum(paid // MS_PER_H for paid in by_day.values())


def nodes_for(moves: dict[Market, list[Move]], chance: random.Random) -> Iterator[Node]:
    """Two in each market, asked for at one of its prices, for up to three weeks."""
    for market, mine in moves.items():
        for _ in range(2):
            begin = chance.choice(mine)
            offer = Offer(market, 8.0, 32.0, "T4", 1.0, 1, begin.price_uusd_per_h, begin.on_demand_uusd_per_h)
            from_ms = begin.at_ms + chance.randrange(0, 7 * DAY_MS)
            yield Node(offer, from_ms, from_ms + chance.randrange(1, 21 * DAY_MS))


def check(moves: dict[Market, list[Move]], seed: int) -> None:
    chance = random.Random(seed)
    nodes = list(nodes_for(moves, chance))
    ledger, now_s = replay((move for mine in moves.values() for move in mine), nodes, chance)
    accounts = {account.launch_id: account for account in ledger.accounts(now_s)}
    for number, node in enumerate(nodes):
        account = accounts[f"n{number}"]
        assert account.cost_uusd == plain_uusd(node, moves[node.offer.market])
        assert account.cost_uusd == sum(entry.cost_uusd for entry in account.entries)
    total = sum(account.cost_uusd for account in accounts.values())
    for by in BY:
        found = summary(ledger, by, now_s)
        assert sum(line.cost_uusd for line in found.lines) == found.total.cost_uusd == total


def test_odd_rows_add_up_too() -> None:
    """Above on-demand, before the launch, twice in a second, out of order, the same price again, free, and in 1970."""
    market = Market("aws", "us-east-1", "use1-az1", "g5.xlarge", Capacity.SPOT)
    base_ms = 20_000 * DAY_MS
    rows = [
        (base_ms - 5, 1_000_000),
        (base_ms + 3 * DAY_MS, 3_500_000),
        (base_ms + DAY_MS // 3, 333_333),
        (base_ms + DAY_MS // 3, 777_777),
        (base_ms + DAY_MS // 3, 777_777),
        (base_ms + 2 * DAY_MS, 0),
        (0, 5),
        (base_ms + 2 * DAY_MS - 1, 10**12),
    ]
    for seed in range(20):
        check({market: [Move(market, at_ms, price, 1_006_000) for at_ms, price in rows]}, seed)


def _found(name: str) -> Path:
    told = os.environ.get("TRADEWIND_PRICES")
    folders = [Path(told)] if told else [parent / "shared" / "data" / "compact" for parent in ROOT.parents]
    for folder in folders:
        if (folder / f"{name}.csv.gz").exists():
            return folder / f"{name}.csv.gz"
    pytest.skip(f"{name}.csv.gz is not there: TRADEWIND_PRICES names the folder with price histories")


def _read(path: Path) -> dict[Market, list[Move]]:
    found: dict[Market, list[Move]] = {}
    wanted: dict[tuple[str, str], bool] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            zone = row.get("az") or row["AvailabilityZone"]
            kind = (
                row.get("instance_type")
                or row.get("InstanceType")
                or f"{row['AcceleratorName']}x{row['AcceleratorCount']}"
            )
            price = _price(row.get("spot_price_usd_h") or row.get("SpotPrice") or "")
            if price is not None and wanted.setdefault((zone, kind), len(wanted) % EVERY == 0):
                market = Market(path.name.partition("_")[0], row.get("Region") or zone, zone, kind, Capacity.SPOT)
                found.setdefault(market, []).append(Move(market, _at_ms(row), price, _price(row.get("Price") or "")))
    return found


def _price(text: str) -> int | None:
    """Empty, 0, or a word (an offer that is gone): unknown, and nothing changes."""
    try:
        return usd_to_uusd(text) or None
    except ValueError:
        return None


def _at_ms(row: dict[str, str]) -> int:
    at = row.get("timestamp_utc")
    return round(1000 * (datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() if at else float(row["ts_utc"])))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_real_histories_add_up(name: str) -> None:
    moves = _read(_found(name))
    assert len(moves) > 5
    check(moves, seed=1)
