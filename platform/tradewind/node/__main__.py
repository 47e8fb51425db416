"""`python -m tradewind.node boot --plan FILE`: what user-data runs. Parses, sets up the log, and calls boot.py."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from tradewind.errors import TradewindError
from tradewind.node.boot import Boot
from tradewind.node.boot_plan import FAILED, TOLD, BootPlan
from tradewind.node.machine import Machine

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tradewind.node", description=__doc__)
    parser.add_argument("what", choices=["boot"], help="bring this machine up as the plan says, and watch over it")
    parser.add_argument("--plan", type=Path, required=True, help="a boot plan, as JSON")
    given = parser.parse_args(argv)
    machine = Machine.here()
    _log_to(machine.folder / "boot.log")
    try:
        plan = BootPlan.from_json(given.plan.read_text())
    except (OSError, TradewindError) as error:
        logging.getLogger(__name__).error("%s: %s", FAILED, error)
        machine.shut_down()
        return TOLD
    boot = Boot(plan, machine)
    signal.signal(signal.SIGTERM, lambda *_: boot.stop.set())
    signal.signal(signal.SIGINT, lambda *_: boot.stop.set())
    return boot.run()


def _log_to(path: Path) -> None:
    """To the console, and to a file whose end is reported to the head."""
    path.unlink(missing_ok=True)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout), logging.FileHandler(path)]
    logging.basicConfig(level=logging.INFO, format=_FORMAT, handlers=handlers)
    for name in ("httpx", "httpcore", "botocore", "azure", "google", "uvicorn"):  # a line for each request
        logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
