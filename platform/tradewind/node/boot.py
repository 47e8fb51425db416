"""The boot of a node, as user-data starts it: identity, secret, then worker.py or head.py, then the guard. An edge.

However it ends, the machine ends with it, and says why: one line on the console, and where the join desk can be
reached, a report there.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tradewind.errors import ConfigError, Problem, ProviderError, TradewindError
from tradewind.node.boot_plan import FAILED, TOLD, BootPlan
from tradewind.node.desk_client import DeskClient
from tradewind.node.guard import Up, stand_guard
from tradewind.node.join_desk import BootReport
from tradewind.node.machine import Machine
from tradewind.node.patience import keep_trying

log = logging.getLogger(__name__)

ENDS = "TRADEWIND NODE ENDS"
# A machine's identity works some time after its start, not at once.
SECRET_PATIENCE_S = 180.0
LOG_LINES = 200


@dataclass(slots=True)
class Boot:
    plan: BootPlan
    machine: Machine
    stop: threading.Event = field(default_factory=threading.Event)
    desk: DeskClient | None = None

    def run(self) -> int:
        """Until the node ends. The exit status; the machine is shutting down then, unless it was told to stop."""
        try:
            up = self._bring_up()
            (self.machine.folder / "up").touch()  # the timer in the user-data looks for it
            log.info("%s is up", self.plan.launch_id)
            self._tell(BootReport(self.plan.launch_id, log=boot_log(self.machine.folder)))
            reason = stand_guard(up, self.stop)
        except Exception as error:  # whatever it is: a machine that is no node must end, and say why
            self._fail(error)
            return TOLD
        if not reason:
            return 0
        log.error("%s: %s", ENDS, reason)
        self._tell(BootReport(self.plan.launch_id, log=boot_log(self.machine.folder)))
        self.machine.shut_down()
        return TOLD

    def _bring_up(self) -> Up:
        plan = self.plan
        log.info("booting %s %s of %s/%s", plan.role, plan.launch_id, plan.fleet, plan.cell)
        address = keep_trying(lambda: self.machine.address(plan), "address", (ProviderError,), 60.0, self.stop)
        store = keep_trying(lambda: self.machine.secrets(plan), "secrets", (ProviderError,), 60.0, self.stop)
        text = keep_trying(lambda: store.get(plan.secret), "secret", (ProviderError,), SECRET_PATIENCE_S, self.stop)
        secret = read_secret(text, plan)
        if plan.role == "head":
            from tradewind.node.head import Head

            return Head(plan, self.machine, address, secret, self.stop).bring_up()
        from tradewind.node.worker import Worker

        worker = Worker(plan, self.machine, address, secret["ray_token"], self.stop)
        self.desk = worker.desk
        return worker.bring_up()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, TradewindError):
            log.error("a defect, or something that nobody thought of", exc_info=error)
        why = " ".join(str(error).split()) or type(error).__name__
        log.error("%s: %s", FAILED, why)
        self._tell(BootReport(self.plan.launch_id, why, boot_log(self.machine.folder)))
        self.machine.shut_down()

    def _tell(self, report: BootReport) -> None:
        if self.desk is None:
            return
        try:
            self.desk.report(report)
        except TradewindError as error:
            log.warning("the join desk could not be told: %s", error)  # the console has it


def read_secret(text: str, plan: BootPlan) -> dict[str, str]:
    """What the role needs. No error ever shows the text."""
    needed = ("ray_token", "agent_token", "ca_key_pem") if plan.role == "head" else ("ray_token",)
    try:
        found = {name: str(json.loads(text)[name]) for name in needed}
    except (ValueError, TypeError, KeyError):
        found = {}
    if not all(_is_sound(name, found.get(name, "")) for name in needed):
        problem = Problem(f"secret {plan.secret}", "", f"is not JSON with {', '.join(needed)}")
        raise ConfigError([problem], "the controller writes it at `tradewind up`") from None
    return found


def _is_sound(name: str, value: str) -> bool:
    """A token that no header can carry would be shown by the error about it."""
    return bool(value) if name.endswith("_pem") else re.fullmatch(r"[!-~]+", value) is not None


def boot_log(folder: Path) -> str:
    path = folder / "boot.log"
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:]) if path.exists() else ""
