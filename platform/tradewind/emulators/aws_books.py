"""What the emulated EC2 holds: machines with their disks and interfaces, in regions, on an injected clock."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48}
KEPT_S = 3600.0  # EC2 lists a terminated instance for about an hour

# vCPUs of the types that are sold here, and their quotas (on-demand, spot).
TYPES = {"g5.xlarge": 4, "g5.12xlarge": 48, "g4dn.xlarge": 4, "p4d.24xlarge": 96, "m5.large": 2, "m5.4xlarge": 16}
TYPES |= {"g6.xlarge": 4, "g6.2xlarge": 8, "m7i.large": 2, "m7i.xlarge": 4, "c7i.xlarge": 4}
_QUOTAS = {
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "m": ("L-1216C47A", "L-34B43A08"),
    "c": ("L-1216C47A", "L-34B43A08"),
}
QUOTA_NAMES = {
    "L-DB2E81BA": "Running On-Demand G and VT instances",
    "L-3819A6DF": "All G and VT Spot Instance Requests",
    "L-417A185B": "Running On-Demand P instances",
    "L-7212CCBC": "All P4, P3 and P2 Spot Instance Requests",
    "L-1216C47A": "Running On-Demand Standard instances",
    "L-34B43A08": "All Standard Spot Instance Requests",
}


def quota_code(instance_type: str, is_spot: bool) -> str:
    return _QUOTAS[instance_type[0]][is_spot]


@dataclass(frozen=True, slots=True)
class Image:
    root_device: str = "/dev/sda1"
    size_gib: int = 40


@dataclass
class Part:
    """A disk or a network interface."""

    id: str
    zone: str
    tags: dict[str, str]
    machine_id: str = ""  # "": free
    ends_with_machine: bool = True
    encrypted: bool = False
    size_gib: int = 0
    created_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    name: str
    tags: dict[str, str]


@dataclass
class Machine:
    id: str
    region: str
    zone: str
    type: str
    is_spot: bool
    image: str
    subnet: str
    tags: dict[str, str]
    token: str
    user_data: str
    launched_at_s: float
    runs_at_s: float
    state: str = "pending"
    gone_at_s: float | None = None  # when `shutting-down` becomes `terminated`
    ended_at_s: float | None = None
    reason: tuple[str, str] = ("", "")
    transition: str = ""
    spot_request: str = ""
    spot_status: tuple[str, str] = ("fulfilled", "Your spot request is fulfilled.")
    spot_status_at_s: float = 0.0
    taken_at_s: float | None = None  # a notice runs until then
    fails_to_boot: bool = False
    has_public_address: bool = False
    metadata_tokens: str = "optional"
    hop_limit: int = 2
    shutdown: str = "stop"
    profile: str = ""
    reservation: str = ""
    private_address: str = ""
    placement_group: str = ""
    volumes: list[Part] = field(default_factory=list)
    interfaces: list[Part] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.state != "terminated"


@dataclass
class Region:
    """One region's books. Images, subnets and groups are there from the start."""

    name: str
    images: dict[str, Image] = field(default_factory=dict)
    subnets: dict[str, str] = field(default_factory=dict)  # id -> zone
    groups: dict[str, str] = field(default_factory=dict)  # id -> name; their members may talk to each other
    open_groups: set[str] = field(default_factory=set)  # those that let everybody in
    closed_groups: set[str] = field(default_factory=set)  # those that let nobody in
    machines: dict[str, Machine] = field(default_factory=dict)
    volumes: dict[str, Part] = field(default_factory=dict)
    interfaces: dict[str, Part] = field(default_factory=dict)
    placement_groups: dict[str, PlacementGroup] = field(default_factory=dict)
    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)  # client token -> (fingerprint, machine)
    spot_prices: dict[tuple[str, str], float] = field(default_factory=dict)  # (zone, type) -> dollars an hour
    quotas: dict[str, float] = field(default_factory=dict)  # code -> vCPUs

    @classmethod
    def new(cls, name: str) -> Region:
        zones = [f"{name}{letter}" for letter in "abc"]
        return cls(
            name=name,
            images={"ami-0123456789abcdef0": Image()},
            subnets={f"subnet-{number:017x}": zone for number, zone in enumerate(zones, 1)},
            groups={"sg-0123456789abcdef0": "tradewind"},
            spot_prices={(zone, kind): 0.1 * vcpus for zone in zones for kind, vcpus in TYPES.items()},
            quotas=dict.fromkeys(QUOTA_NAMES, 100_000.0),
        )

    def subnet_of(self, zone: str) -> str:
        return next(subnet for subnet, place in self.subnets.items() if place == zone)

    def vcpus_in_use(self, code: str) -> int:
        alive = (machine for machine in self.machines.values() if machine.is_alive)
        return sum(TYPES[machine.type] for machine in alive if quota_code(machine.type, machine.is_spot) == code)


@dataclass
class Books:
    """All regions, the clock, and what time does to the machines in them. Not thread-safe: the server has the lock."""

    clock: Callable[[], float]
    region_names: tuple[str, ...]
    boots_in_s: float = 20.0
    ends_in_s: float = 30.0
    on_boot: Callable[[Machine], None] | None = None
    on_end: Callable[[Machine], None] | None = None
    console: Callable[[Machine], str] = lambda _: ""
    new_address: Callable[[], str] | None = None  # of a private interface; None: some of 10.0.0.0/16
    regions: dict[str, Region] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.regions = {name: Region.new(name) for name in self.region_names}

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{next(self._numbers):017x}"

    def address(self) -> str:
        number = next(self._numbers)
        return self.new_address() if self.new_address else f"10.0.{number // 250 % 250}.{number % 250 + 4}"

    @property
    def machines(self) -> list[Machine]:
        return [machine for region in self.regions.values() for machine in region.machines.values()]

    def step(self) -> None:
        """Whatever is due by now."""
        now_s = self.clock()
        for region in self.regions.values():
            for machine in list(region.machines.values()):
                self._step(region, machine, now_s)

    def _step(self, region: Region, machine: Machine, now_s: float) -> None:
        """Everything at its own time, also when nobody looked for a while."""
        if machine.state == "pending" and now_s >= machine.runs_at_s:
            if machine.fails_to_boot:
                reason = ("Server.InternalError", "Server.InternalError: Internal error on launch")
                self.end(machine, reason, machine.runs_at_s)
            else:
                machine.state = "running"
                _tell(self.on_boot, machine)
        if machine.taken_at_s is not None and now_s >= machine.taken_at_s and machine.state in ("pending", "running"):
            self._take(machine, machine.taken_at_s)
        if machine.gone_at_s is not None and now_s >= machine.gone_at_s and machine.is_alive:
            machine.state, machine.ended_at_s = "terminated", machine.gone_at_s
            self._drop_parts(region, machine)
        if machine.ended_at_s is not None and now_s >= machine.ended_at_s + KEPT_S:
            del region.machines[machine.id]

    def end(self, machine: Machine, reason: tuple[str, str], at_s: float) -> None:
        """Begin to shut down. Once more is no error."""
        if machine.state not in ("pending", "running"):
            return
        was_running = machine.state == "running"
        machine.state, machine.gone_at_s, machine.reason = "shutting-down", at_s + self.ends_in_s, reason
        if was_running:
            _tell(self.on_end, machine)

    def end_by_user(self, machine: Machine) -> None:
        if machine.state in ("pending", "running"):
            now_s = self.clock()
            machine.transition = f"User initiated ({_gmt(now_s)} GMT)"
            machine.spot_status = ("instance-terminated-by-user", "Spot Instance terminated by its user.")
            machine.spot_status_at_s = now_s
            code = "Client.UserInitiatedShutdown"
            self.end(machine, (code, f"{code}: User initiated shutdown"), now_s)

    def end_by_itself(self, machine: Machine) -> None:
        """`shutdown` inside of the machine. Shutdown behaviour `stop` is not emulated: all of ours terminate."""
        if machine.state == "running":
            machine.spot_status = ("instance-terminated-by-user", "Spot Instance terminated by its user.")
            machine.spot_status_at_s = self.clock()
            code = "Client.InstanceInitiatedShutdown"
            self.end(machine, (code, f"{code}: Instance initiated shutdown"), self.clock())

    def _take(self, machine: Machine, at_s: float) -> None:
        """A spot interruption."""
        machine.spot_status = ("instance-terminated-no-capacity", "Your Spot Instance was terminated: no capacity.")
        machine.spot_status_at_s = at_s
        code = "Server.SpotInstanceTermination"
        self.end(machine, (code, f"{code}: Spot instance termination"), at_s)

    def vanish(self, machine: Machine) -> None:
        """Gone without a trace, and everything that belonged to it."""
        region = self.regions[machine.region]
        self._drop_parts(region, machine, even_kept=True)
        del region.machines[machine.id]

    def _drop_parts(self, region: Region, machine: Machine, *, even_kept: bool = False) -> None:
        for part in (*machine.volumes, *machine.interfaces):
            if part.ends_with_machine or even_kept:
                region.volumes.pop(part.id, None)
                region.interfaces.pop(part.id, None)
            part.machine_id = ""
        machine.volumes, machine.interfaces = [], []


def _tell(hook: Callable[[Machine], None] | None, machine: Machine) -> None:
    if hook is not None:
        hook(machine)


def _gmt(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
