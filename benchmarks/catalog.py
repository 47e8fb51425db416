"""What does the cheapest offer cost, and how long does it take to say so? Ours and SkyPilot's optimizer on equal data.

    python -m venv sky && sky/bin/pip install 'skypilot[aws,gcp,azure]'
    python benchmarks/catalog.py --lists FOLDER --sky sky/bin/python [--question H100:8] [--json]

FOLDER has aws.csv, gcp.csv and azure.csv in SkyPilot's layout; ours are made from the same files. Both are asked from
the command line, spot and on-demand: user and system time of the process are counted, after one run that warms the
caches, medians of --repeat. SkyPilot is spared its API server and its login check (pricing/skypilot_peer.py). Bars:
ours is never the dearer one; at least 20 times less CPU; under 300 ms. Without --sky only the last is measured, and
without --lists on the built-in lists.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bars import Bar, show
from pricing.lists import read_folder

CPU_GOAL, LIMIT_S = 20.0, 0.3
QUESTIONS = ("A100:8", "A100-80GB:8", "H100:8", "L4:1", "T4:4", "V100:4", "A10G:8")
CAPACITIES = ("spot", "on-demand")
PEER = Path(__file__).parent / "pricing" / "skypilot_peer.py"
_OURS = [sys.executable, "-c", "from tradewind.cli import main; main()", "catalog"]
_TIMEOUT_S = 600


class NoAnswer(Exception):
    """A program failed; the last line of what it said."""


def cpu_s(command: Sequence[str], env: Mapping[str, str]) -> tuple[float, str]:
    """User and system time of one run, and what it printed."""
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, env=dict(env), timeout=_TIMEOUT_S, check=False)
    after = os.times()
    if done.returncode:
        raise NoAnswer((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return after.children_user - before.children_user + after.children_system - before.children_system, done.stdout


def ours(question: str, capacity: str, lists: Path | None) -> tuple[float, float, str]:
    """CPU seconds, dollars an hour, and the choice."""
    more = ["--list", str(lists)] if lists else []
    took_s, printed = cpu_s([*_OURS, question, f"--{capacity}", "--limit", "1", "--json", *more], os.environ)
    best = json.loads(printed)[0]
    return took_s, best["price_uusd_per_h"] / 1e6, f"{best['cloud']} {best['zones'][0]} {best['instance_type']}"


def theirs(question: str, capacity: str, python: Path, home: Path) -> tuple[float, float, str]:
    env = {**os.environ, "HOME": str(home)}
    env.pop("PYTHONPATH", None)
    took_s, printed = cpu_s([str(python), str(PEER), question, capacity], env)
    best = json.loads(printed.strip().splitlines()[-1])
    return took_s, best["usd_per_h"], best["choice"]


def make_home(lists: Path, home: Path) -> None:
    """The price lists where SkyPilot looks for them, and the names of accelerators that it wants beside."""
    catalogs = home / ".sky" / "catalogs" / "v8"
    names: dict[str, set[str]] = {}
    for cloud in ("aws", "gcp", "azure"):
        (catalogs / cloud).mkdir(parents=True)
        shutil.copyfile(lists / f"{cloud}.csv", catalogs / cloud / "vms.csv")
        with open(lists / f"{cloud}.csv", newline="") as file:
            for row in csv.DictReader(file):
                names.setdefault(row["AcceleratorName"], set()).add(cloud.upper())
    (catalogs / "common").mkdir()
    with open(catalogs / "common" / "accelerators.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["AcceleratorName", "Clouds"])
        writer.writerows([name, str(sorted(clouds))] for name, clouds in names.items() if name)


def compare(given: argparse.Namespace, folder: Path) -> list[Bar]:
    """Medians of all questions, asked in turn so that a busy minute hits both."""
    lists = folder / "lists"
    if given.lists:
        lists.mkdir()
        for listed in read_folder(given.lists):
            listed.write(lists / f"{listed.cloud}.csv")
        make_home(given.lists, folder / "home")
    mine_s: list[float] = []
    peer_s: list[float] = []
    dearer, mine_usd, peer_usd = 0, 0.0, 0.0
    questions = [(question, capacity) for question in given.question or QUESTIONS for capacity in CAPACITIES]
    ours(*questions[0], lists if given.lists else None)
    if given.sky:
        theirs(*questions[0], given.sky, folder / "home")
    for question, capacity in questions:
        for _ in range(given.repeat):
            took_s, usd, choice = ours(question, capacity, lists if given.lists else None)
            mine_s.append(took_s)
        told = f"{question} {capacity}: ours ${usd:.4f}/h {choice} ({took_s * 1000:.0f} ms)"
        if given.sky:
            try:
                took_s, their_usd, their_choice = theirs(question, capacity, given.sky, folder / "home")
            except NoAnswer as failed:  # of the peer: counted on neither side
                told += f"; skypilot gives no answer: {failed}"
            else:
                peer_s.append(took_s)
                told += f"; skypilot ${their_usd:.4f}/h {their_choice} ({took_s * 1000:.0f} ms)"
                dearer += usd > their_usd + 1e-6
                mine_usd, peer_usd = mine_usd + usd, peer_usd + their_usd
        if not given.json:
            print(told, flush=True)
    return _bars(mine_s, peer_s, dearer, mine_usd, peer_usd)


def _bars(mine_s: list[float], peer_s: list[float], dearer: int, mine_usd: float, peer_usd: float) -> list[Bar]:
    mine = statistics.median(mine_s)
    name = "CPU seconds of `tradewind catalog`"
    bars = [Bar(f"{name}, at most", mine, {}, LIMIT_S, mine / LIMIT_S, "<= 1", mine <= LIMIT_S)]
    if peer_s:
        peer = statistics.median(peer_s)
        goal = f">= {CPU_GOAL:g}"
        bars += [
            Bar(name, mine, {"skypilot": peer}, peer / CPU_GOAL, peer / mine, goal, peer / mine >= CPU_GOAL),
            Bar("questions with a dearer answer", dearer, {}, 0, dearer, "0", dearer == 0),
            Bar(
                "sum of prices, $/h",
                mine_usd,
                {"skypilot": peer_usd},
                peer_usd,
                peer_usd / mine_usd,
                ">= 1",
                dearer == 0,
            ),
        ]
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=Path, help="folder with aws.csv, gcp.csv, azure.csv")
    parser.add_argument("--sky", type=Path, help="the Python of an environment with skypilot")
    parser.add_argument("--question", action="append", help="ACCELERATOR:COUNT; may be repeated")
    parser.add_argument("--repeat", type=int, default=3, help="of ours, for each question")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.sky and not given.lists:
        parser.error("--sky needs --lists: both must be asked on equal data")
    with tempfile.TemporaryDirectory() as folder:
        return show(compare(given, Path(folder)), given.json)


if __name__ == "__main__":
    sys.exit(main())
