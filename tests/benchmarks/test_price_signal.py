"""The benchmark of prices: on files of its own making, and with mistakes that people make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "price_signal.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)


def test_a_trace_is_set_beside_the_prices_of_each_zone_that_it_may_be(tmp_path: Path) -> None:
    is_up = [int(look // 50 % 2 == 0) for look in range(1000)]
    (tmp_path / "trace.json").write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": is_up}))
    rows = ["ts_utc,InstanceType,AvailabilityZone,SpotPrice"]
    for hour in range(0, 90, 3):
        rows += [f"{hour * 3600},g,az1,{1 + hour % 2}", f"{hour * 3600},g,az2,1", f"{hour * 3600 + 60},g,az2,GONE"]
    (tmp_path / "prices.csv").write_text("\n".join(rows))
    told = ["--prices", str(tmp_path / "prices.csv"), "--begin", "1970-01-01", "--type", "g", "--json"]
    done = run(*told, "--trace", f"az1,az2={tmp_path / 'trace.json'}")
    bars = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(bars) == 2, done.stderr
    assert all(set(bar["peers"]) == {"none", "believer"} for bar in bars)
    assert bars[1]["ours"] == 0.0, "a price that never moves tells nothing"
    assert done.returncode == (0 if all(bar["holds"] for bar in bars) else 1)
    missing = run(*told, "--trace", f"az9={tmp_path / 'trace.json'}")
    assert missing.returncode != 0
    assert "no prices of g in az9" in missing.stderr


def test_half_of_the_options_is_refused() -> None:
    done = run("--trace", "az1=trace.json")
    assert done.returncode == 2
    assert "--trace needs --prices, --type and --begin" in done.stderr
