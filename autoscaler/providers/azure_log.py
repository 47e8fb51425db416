"""Azure's activity log -> what has become of machines that are no longer there. Pure.

A machine that is deleted or evicted is no longer listed; the log keeps every operation for 90 days. It lags by some
minutes: until it tells, one that is missing is only missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.autoscaler.providers.azure_settings import CLOUD, Names
from tradewind.autoscaler.providers.azure_vm import seconds
from tradewind.autoscaler.providers.base import CloudNode, CloudState
from tradewind.model import Capacity, EndReason, Market, Offer

_VM = "microsoft.compute/virtualmachines/"
WRITE, DELETE, EVICT = "write", "delete", "evictspotvm/action"
SELECT = "eventTimestamp,operationName,status,resourceId"
_UNKNOWN = Offer(Market(CLOUD, "", "", "", Capacity.ON_DEMAND), vcpus=0, memory_gib=0)  # the log does not tell


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the log about a machine."""

    vm: str
    kind: str  # WRITE, DELETE or EVICT
    status: str  # "Started", "Accepted", "Succeeded" or "Failed"
    at_s: float


def happenings(events: Iterable[Mapping[str, Any]]) -> list[Happening]:
    """Oldest first; what is not about the making and ending of machines is left out."""
    found = (_happening(event) for event in events)
    return sorted((each for each in found if each is not None), key=lambda each: each.at_s)


def _happening(event: Mapping[str, Any]) -> Happening | None:
    operation = event.get("operationName", {}).get("value", "").lower()
    kind = operation.removeprefix(_VM)
    if not operation.startswith(_VM) or kind not in (WRITE, DELETE, EVICT):
        return None
    vm = event["resourceId"].rpartition("/")[2].lower()
    return Happening(vm, kind, event.get("status", {}).get("value", ""), seconds(event["eventTimestamp"]) or 0.0)


def ended_nodes(told: Sequence[Happening], names: Names, seen: Mapping[str, CloudNode]) -> list[CloudNode]:
    """Machines of ours that the log says have ended. `seen`: as they were listed before, by launch id."""
    by_vm: dict[str, list[Happening]] = {}
    for each in told:
        by_vm.setdefault(each.vm, []).append(each)
    found = []
    for vm, lines in by_vm.items():
        launch_id = names.launch_id(vm)
        node = _ended(launch_id, lines, seen.get(launch_id)) if launch_id else None
        found += [node] if node is not None else []
    return found


def _ended(launch_id: str, lines: Sequence[Happening], seen: CloudNode | None) -> CloudNode | None:
    evicted = _first(lines, EVICT)
    last = _first(lines, DELETE, "Succeeded") or evicted
    if last is None:
        return None
    made, ran = _first(lines, WRITE), _first(lines, WRITE, "Succeeded")
    created_at_s = seen.created_at_s if seen else (made or last).at_s
    billed_from_s = (seen.billed_from_s if seen else None) or (ran.at_s if ran else None)
    return CloudNode(
        launch_id=launch_id,
        instance_id=seen.instance_id if seen else lines[0].vm,
        offer=seen.offer if seen else _UNKNOWN,
        state=CloudState.GONE,
        created_at_s=created_at_s,
        billed_from_s=billed_from_s,
        billed_until_s=None if billed_from_s is None else max(last.at_s, billed_from_s),
        end=_reason(lines),
        detail="Azure evicted it" if evicted else "deleted",
    )


def _reason(lines: Sequence[Happening]) -> EndReason:
    if _first(lines, EVICT):
        return EndReason.PREEMPTED
    never_ran = _first(lines, WRITE, "Failed") and not _first(lines, WRITE, "Succeeded")
    return EndReason.CRASHED if never_ran else EndReason.TERMINATED


def _first(lines: Sequence[Happening], kind: str, status: str = "") -> Happening | None:
    return next((each for each in lines if each.kind == kind and (not status or each.status == status)), None)
