"""The event log under `kill -9` and torn files: what was acknowledged is there, and transactions are whole."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tradewind.events import PriceChanged
from tradewind.store import EventLog


def price(number: int) -> PriceChanged:
    return PriceChanged(at_s=float(number), market="aws/z/t/spot", price_uusd_per_h=number)


def numbers(path: Path) -> list[int]:
    """The numbers of the price events in a log; the sequences are checked on the way."""
    with EventLog.read_only(path) as log:
        found = list(log.read())
    assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
    return [event.price_uusd_per_h for _, event in found if isinstance(event, PriceChanged)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet" / "events.db"


_APPEND_FOREVER = """
import sys
from pathlib import Path
from tradewind.events import PriceChanged
from tradewind.store import EventLog
log = EventLog.open(Path(sys.argv[1]))
number = log.last_sequence
while True:
    batch = 1 + number % 7
    events = [
        PriceChanged(at_s=1.0, market="m" * (number % 900), price_uusd_per_h=number + i) for i in range(1, batch + 1)
    ]
    number = log.append(*events)
    print(number, flush=True)
"""


def _kill_in_the_middle(path: Path, acknowledgements: int, delay_s: float) -> int:
    """Start a writer, kill it after so many acknowledgements and a moment; the last sequence it told of."""
    writer = subprocess.Popen([sys.executable, "-c", _APPEND_FOREVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [writer.stdout.readline() for _ in range(acknowledgements)]
    time.sleep(delay_s)
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    lines = [line for line in [*told, *rest.splitlines(keepends=True)] if line.endswith("\n")]
    return int(lines[-1])


def test_kill_9_in_the_middle_of_appends_loses_nothing_acknowledged(path: Path) -> None:
    dice = random.Random(20)
    for _ in range(8):
        acknowledged = _kill_in_the_middle(path, dice.randint(1, 120), dice.random() * 0.01)
        found = numbers(path)
        assert len(found) >= acknowledged
        assert found == list(range(1, len(found) + 1))


def test_a_wal_cut_at_any_byte_leaves_whole_transactions(tmp_path: Path) -> None:
    source, copy = tmp_path / "source" / "events.db", tmp_path / "copy" / "events.db"
    with EventLog.open(source) as log:
        ends = [0] + [log.append(*map(price, range(i * 10, i * 10 + 3))) for i in range(12)]
        whole = source.with_name("events.db-wal").read_bytes()
        main = source.read_bytes()
    dice = random.Random(7)
    lengths = sorted({0, 1, 32, len(whole), *(dice.randrange(len(whole)) for _ in range(60))})
    found = []
    for length in lengths:
        shutil.rmtree(copy.parent, ignore_errors=True)
        copy.parent.mkdir()
        copy.write_bytes(main)
        copy.with_name("events.db-wal").write_bytes(whole[:length])
        with EventLog.open(copy) as cut:
            found.append(cut.last_sequence)
            assert cut.append(price(1)) == found[-1] + 1
            assert len(list(cut.read())) == found[-1] + 1
    assert found == sorted(found)
    assert set(found) <= set(ends)
    assert (found[0], found[-1]) == (0, 36)
