"""The seam to a cloud. The loop talks to this Protocol only; each cloud is one file beside this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tradewind.errors import ProviderError
from tradewind.model import EndReason, Offer, Role


class CloudState(StrEnum):
    """What the cloud says of an instance."""

    PENDING = "pending"  # accepted, not yet billed
    RUNNING = "running"  # billed
    STOPPING = "stopping"
    GONE = "gone"  # no longer billed; listed for a while, so that its end is learnt


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One launch. The launch id is on record before the call, and is the cloud's idempotency token and tag."""

    launch_id: str
    fleet: str
    cell: str
    offer: Offer
    head_address: str  # of the cell's Ray head, "127.0.0.2:20379"
    labels: Mapping[str, str] = field(default_factory=dict)  # Ray node labels, launch id included
    max_price_uusd_per_h: int | None = None
    role: Role = Role.WORKER
    placement_group: str = ""  # made with the first node that names it; debris when its last one is gone


@dataclass(frozen=True, slots=True)
class CloudNode:
    """One instance as the cloud lists it: the observed truth about a node."""

    launch_id: str
    instance_id: str
    offer: Offer
    state: CloudState
    created_at_s: float
    billed_from_s: float | None = None
    billed_until_s: float | None = None
    notice_deadline_s: float | None = None  # set once the cloud has announced that it will take it
    end: EndReason | None = None
    detail: str = ""  # why it ended, or failed to boot
    address: str = ""  # private; where the listing tells it
    placement_group: str = ""  # likewise
    # Accepted, and refused a moment later (no stock, no quota): it never came to be, and that speaks of its market.
    refusal: ProviderError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a preflight."""

    name: str
    ok: bool
    found: str
    fix: str = ""


class Provider(Protocol):
    """One cloud.

    `launch` returns as soon as the cloud has accepted or refused; booting is watched by `list_nodes`. It is
    idempotent: the same launch id again returns the same node and never makes a second one. A refusal raises a
    ProviderError; AmbiguousOutcome means: it may have happened, look at the next listing.
    `list_nodes` tells everything that carries the fleet's tag, in every configured region, ended nodes included for
    at least ten minutes. It may lag behind a launch (eventual consistency).
    `terminate` is idempotent; an unknown launch id counts as done.
    """

    name: str

    def preflight(self) -> Sequence[Check]: ...

    def launch(self, spec: LaunchSpec) -> CloudNode: ...

    def list_nodes(self) -> Sequence[CloudNode]: ...

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None: ...

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        """Launch ids that are still there when the time is over; empty means: all gone."""
        ...

    def list_debris(self) -> Sequence[str]:
        """What earlier nodes left behind: disks, addresses, folders, processes."""
        ...

    def delete_debris(self, names: Iterable[str]) -> None: ...

    def console(self, launch_id: str) -> str:
        """What the machine has written since its boot, as far as the cloud keeps it; for a while also after its end.
        "" where there is nothing (yet). NotFound where the cloud no longer knows the machine; Unsupported where it
        shows no console."""
        ...


class PriceSource(Protocol):
    """Offers at their present prices. Cheap to call at every tick."""

    def offers(self, now_s: float) -> Sequence[Offer]: ...
