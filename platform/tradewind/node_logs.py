"""What a machine wrote while it booted: its console, and what it sent to its head. For `tradewind logs node`."""

from __future__ import annotations

from tradewind.autoscaler.fleet import NodeRecord
from tradewind.cells.cell import Cell
from tradewind.errors import ProviderError, RayError
from tradewind.model import EndReason
from tradewind.node.boot_plan import failure_in


def node_log(cell: Cell, node: NodeRecord) -> str:
    """What cannot be had is said in its place: of a machine that failed, one of the two is often missing."""
    parts = [f"--- console of {node.launch_id}, by {node.offer.market.cloud}\n{_console(cell, node)}"]
    if cell.line is not None:
        parts.append(f"--- its boot log, by the head of {cell.name}\n{_boot_log(cell, node.launch_id)}")
    if node.detail:
        parts.append(f"--- how it ended\n{node.detail}\n")
    if failed := failure_in("\n".join(parts)):  # last, since that is what a terminal shows
        parts.append(f"--- why it did not come up\n{failed}\n")
    return "\n".join(parts)


def boot_notes(node: NodeRecord) -> list[str]:
    """Of one that was paid for and never worked. One that the cloud took back meanwhile has nothing to tell."""
    failed = node.end in (EndReason.CRASHED, EndReason.TERMINATED) and node.launched_at_s and not node.joined_at_s
    return [f"It never joined Ray: `tradewind logs node {node.launch_id}` shows what it wrote."] if failed else []


def _console(cell: Cell, node: NodeRecord) -> str:
    provider = cell.providers.get(node.offer.market.cloud)
    if provider is None:
        return f"there is no provider for {node.offer.market.cloud}\n"
    try:
        return provider.console(node.launch_id) or "nothing yet\n"
    except ProviderError as error:
        return f"{error}\n"


def _boot_log(cell: Cell, launch_id: str) -> str:
    assert cell.line is not None
    try:
        return str(cell.line.call("node.log", launch_id)) or "it has sent none\n"
    except RayError as error:
        return f"{error}\n"
