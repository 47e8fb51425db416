"""How much CPU does `tradewind --help` take, against `python -c "import click"`?

Both are run in turn, user and system time of the child are counted (not the clock: other programs run too), and the
medians compared.   python benchmarks/cli_start.py [--json] [--repeat N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

GOAL = 3.0
OURS = [sys.executable, "-c", "import sys; from tradewind.cli import main; sys.argv = ['tradewind', '--help']; main()"]
BASE = "python -c 'import click'"
PEERS = {
    BASE: [sys.executable, "-c", "import click"],
    "ray --help": [sys.executable, "-m", "ray.scripts.scripts", "--help"],
}


def cpu_s(command: list[str]) -> float:
    """User and system time of one run."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def measure(commands: dict[str, list[str]], repeat: int) -> dict[str, float]:
    """Medians, run in turn so that a busy minute hits all alike. The first round only warms the caches."""
    for command in commands.values():
        cpu_s(command)
    rounds = [{name: cpu_s(command) for name, command in commands.items()} for _ in range(repeat)]
    return {name: statistics.median(found[name] for found in rounds) for name in commands}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--repeat", type=int, default=15)
    given = parser.parse_args()
    found = {name: round(value, 4) for name, value in measure({"ours": OURS, **PEERS}, given.repeat).items()}
    ratio = round(found["ours"] / found[BASE], 2)
    line = {
        "bar": "CPU seconds of `tradewind --help`",
        "ours": found["ours"],
        "peers": {name: found[name] for name in PEERS},
        "limit": round(GOAL * found[BASE], 4),
        "ratio": ratio,
        "goal": f"<= {GOAL:g} x import click",
        "holds": ratio <= GOAL,
    }
    if given.json:
        print(json.dumps(line))
    else:
        for name, value in found.items():
            print(f"{name:28} {value * 1000:7.0f} ms CPU")
        print(f"{'ratio':28} {ratio:7.2f}   goal {line['goal']}: {'holds' if line['holds'] else 'DOES NOT HOLD'}")
    return 0 if line["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
