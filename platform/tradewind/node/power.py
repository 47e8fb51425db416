"""A node reads its own meters (cost/energy_meter.py) and tells the join desk, now and then. An edge.

A machine without counters has no thread; one whose desk does not answer tries again with its next reading: they are
sums from the beginning, so nothing is lost but time. It is never a reason to end a node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tradewind.cost.energy_meter import EnergyMeter, Reading, is_news
from tradewind.errors import TradewindError
from tradewind.node.join_desk import EnergyReport

log = logging.getLogger(__name__)

READ_EVERY_S = 60.0  # RAPL's registers run over within a quarter of an hour of full load


class PowerReporter:
    """`run` until `stop`; the last reading is told at the end."""

    def __init__(
        self,
        meter: EnergyMeter,
        tell: Callable[[EnergyReport], None],
        launch_id: str,
        host: str = "",
        every_s: float = READ_EVERY_S,
    ) -> None:
        self._meter, self._tell = meter, tell
        self._launch_id, self._host, self._every_s = launch_id, host, every_s
        self._told_s: float | None = None

    def run(self, stop: threading.Event) -> None:
        is_over = False
        while not is_over:
            is_over = stop.wait(self._every_s)
            try:
                reading = self._meter.read()
            except Exception as error:  # NVML raises its own kinds: a card that fell off the bus, a driver that is gone
                log.warning("the energy meter has stopped: %s", error)
                return
            if is_over or is_news(self._told_s, reading.seconds):
                self._report(reading)

    def _report(self, reading: Reading) -> None:
        try:
            self._tell(
                EnergyReport(
                    self._launch_id, self._host, reading.seconds, reading.card_joules, reading.processor_joules
                )
            )
            self._told_s = reading.seconds
        except TradewindError as error:
            log.info("what this node takes could not be told: %s", error)


def start(
    meter: EnergyMeter, tell: Callable[[EnergyReport], None], launch_id: str, host: str, stop: threading.Event
) -> None:
    """Nothing where there is nothing to read."""
    if not meter:
        log.info("no energy counters on this machine: its electricity is estimated")
        return
    reporter = PowerReporter(meter, tell, launch_id, host)
    threading.Thread(target=reporter.run, args=(stop,), name="power-meter", daemon=True).start()
