"""Runs every contract case on every world and prints the table: `python contract_table.py [WORLD ...]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from cloud_world import World, find_worlds
from contract import CASES, Case


def outcome(case: Case, open_world: Callable[[Path], World]) -> str:
    """ "ok", "n/a: why" or "FAILS: why"."""
    with tempfile.TemporaryDirectory(prefix="tw-contract-") as folder:
        world = open_world(Path(folder))
        try:
            if why := case.why_not(world):
                return f"n/a: {why}"
            case.run(world)
            return "ok"
        except Exception as error:  # the table shows it
            traceback.print_exc()
            return f"FAILS: {type(error).__name__}: {error}".splitlines()[0][:100]
        finally:
            world.close()


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*", help="names of worlds; all of them unless given")
    chosen = parser.parse_args(arguments).worlds
    worlds = {name: make for name, make in find_worlds().items() if not chosen or name in chosen}
    say("| case |", " | ".join(worlds), "|\n|---|" + "---|" * len(worlds))
    began_s, totals = time.monotonic(), dict.fromkeys(("ok", "n/a", "FAILS"), 0)
    notes: dict[str, int] = {}
    for each in CASES:
        row = [outcome(each, make) for make in worlds.values()]
        cells = []
        for told in row:
            kind, _, why = told.partition(": ")
            totals[kind] += 1
            cells.append(f"{kind} [{notes.setdefault(why, len(notes) + 1)}]" if why else kind)
        say(f"| {each.name.replace('_', ' ')} |", " | ".join(cells), "|")
    say("\n" + "\n".join(f"[{number}] {why}" for why, number in notes.items()))
    say(f"\n{len(CASES)} cases, {totals} in {time.monotonic() - began_s:.0f} s")
    return 1 if totals["FAILS"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
