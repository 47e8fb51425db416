"""The local cloud's own books: one folder per instance with an instance.json in it, written atomically.

They survive the controller, as a real cloud's would: `local.py` reads them again when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.local_market import Subject
from tradewind.autoscaler.providers.local_processes import write_atomically
from tradewind.errors import Conflict
from tradewind.model import LABEL_PLACEMENT_GROUP, EndReason, Offer

RECORD = "instance.json"
_FOLDER_GLOB = "n[0-9]*"


@dataclass(frozen=True, slots=True)
class Instance:
    """One pretend machine, or one slice of several."""

    number: int  # names its folder and its loopback address; a slice has the next numbers, too
    launch_id: str
    offer: Offer
    cell: str
    head_address: str
    labels: Mapping[str, str]
    state: CloudState
    created_at_s: float
    boots_at_s: float  # the launch delay is over
    billed_from_s: float | None = None
    billed_until_s: float | None = None
    noticed_at_s: float | None = None
    taken_at_s: float | None = None  # the cloud takes it then
    ended_at_s: float | None = None
    end: EndReason | None = None  # once it is stopping: why
    detail: str = ""

    @property
    def is_alive(self) -> bool:
        return self.state is not CloudState.GONE

    @property
    def is_up(self) -> bool:
        """Alive, and not yet told to stop."""
        return self.state in (CloudState.PENDING, CloudState.RUNNING)

    def address_ip(self, host: int = 0) -> str:
        """127.0.0.3 and up; 127.0.0.1 is rewritten by Ray, 127.0.0.2 is the head's."""
        number = self.number + host + 2
        return f"127.0.{number // 250}.{number % 250 or 250}"

    def checked_against(self, spec: LaunchSpec) -> Instance:
        """This instance, if the repeated launch asks for the same; Conflict otherwise."""
        if spec.offer.market != self.offer.market:
            message = f"launch id {spec.launch_id} was used for {self.offer.market}, now for {spec.offer.market}"
            raise Conflict(message, cloud=self.offer.market.cloud)
        return self

    def as_node(self) -> CloudNode:
        notice_deadline_s = self.taken_at_s if self.noticed_at_s != self.taken_at_s else None
        return CloudNode(
            launch_id=self.launch_id,
            instance_id=f"local-{self.number:04d}",
            offer=self.offer,
            state=self.state,
            created_at_s=self.created_at_s,
            billed_from_s=self.billed_from_s,
            billed_until_s=self.billed_until_s,
            notice_deadline_s=notice_deadline_s,
            end=self.end if self.state is CloudState.GONE else None,
            detail=self.detail,
            placement_group=self.labels.get(LABEL_PLACEMENT_GROUP, ""),
        )

    def as_subject(self) -> Subject:
        running_since_s = self.billed_from_s if self.state is CloudState.RUNNING else None
        return Subject(self.launch_id, self.offer.market, self.created_at_s, running_since_s, self.taken_at_s)


_ADAPTER: TypeAdapter[Instance] = TypeAdapter(Instance)


@dataclass(slots=True)
class InstanceBook:
    """All instances of one fleet, in memory and on disk. Ended ones stay: a launch id is never used twice."""

    root: Path
    by_launch_id: dict[str, Instance] = field(default_factory=dict)

    @classmethod
    def open(cls, root: Path) -> InstanceBook:
        found = [_ADAPTER.validate_json(path.read_bytes()) for path in root.glob(f"{_FOLDER_GLOB}/{RECORD}")]
        by_age = sorted(found, key=lambda instance: instance.number)
        return cls(root, {instance.launch_id: instance for instance in by_age})

    def folder(self, instance: Instance) -> Path:
        return self.root / f"n{instance.number}"

    def new(self, spec: LaunchSpec, offer: Offer, now_s: float, boots_at_s: float) -> Instance:
        number = max((each.number + each.offer.hosts for each in self.by_launch_id.values()), default=1)
        return Instance(
            number=number,
            launch_id=spec.launch_id,
            offer=offer,
            cell=spec.cell,
            head_address=spec.head_address,
            labels=dict(spec.labels),
            state=CloudState.PENDING,
            created_at_s=now_s,
            boots_at_s=boots_at_s,
        )

    def put(self, instance: Instance) -> Instance:
        """On disk first: what is told to anyone is on record."""
        folder = self.folder(instance)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / RECORD, _ADAPTER.dump_json(instance).decode())
        self.by_launch_id[instance.launch_id] = instance
        return instance

    def strays(self) -> list[Path]:
        """Folders that no instance on record accounts for."""
        known = {self.folder(instance) for instance in self.by_launch_id.values()}
        return sorted(path for path in self.root.glob(_FOLDER_GLOB) if path not in known)
