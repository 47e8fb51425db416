"""Which of the readings that a cell's join desk has go on record: those that say something new. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tradewind.events import EnergyMeasured
from tradewind.node.join_desk import EnergyReport

ASK_EVERY_S = 60.0


@dataclass(slots=True)
class EnergyWatch:
    """What was recorded since this controller began. A new one records each host once more: readings are sums."""

    _recorded_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _asked_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Not at first: a node tells nothing in its first minute."""
        asked_s = now_s if self._asked_s is None else self._asked_s
        due = now_s - asked_s >= ASK_EVERY_S
        self._asked_s = now_s if due else asked_s
        return due

    def news(self, reports: Iterable[EnergyReport], now_s: float) -> list[EnergyMeasured]:
        """Those that the nodes found worth telling; their desk keeps the last of each."""
        listed = {(report.launch_id, report.host): report for report in reports}
        found = [report for key, report in listed.items() if report.seconds > self._recorded_s.get(key, 0.0)]
        self._recorded_s = {key: report.seconds for key, report in listed.items()}
        return [
            EnergyMeasured(
                at_s=now_s,
                launch_id=report.launch_id,
                host=report.host,
                seconds=report.seconds,
                card_joules=report.card_joules,
                processor_joules=report.processor_joules,
            )
            for report in found
        ]
