"""Who owns which local fleet on this machine, and the cleaning up after owners that died.

A fleet is a folder. Its owner is a process, on record in owner.json by pid and start time. A fleet marked ephemeral
is worth nothing without its owner: the next start ends its processes and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tradewind.autoscaler.providers.local_processes import boot_id, is_same_process, read_stat, write_atomically
from tradewind.autoscaler.providers.raylets import default_base, end_node
from tradewind.errors import Conflict

OWNER = "owner.json"
HEAD = "head"  # the folder of a fleet's Ray head, see raylets.LocalHead


@dataclass(frozen=True, slots=True)
class Owner:
    fleet: str
    ephemeral: bool
    pid: int
    start_ticks: int
    boot_id: str

    @property
    def alive(self) -> bool:
        return is_same_process(self.pid, self.start_ticks, self.boot_id)

    @property
    def is_me(self) -> bool:
        return self.pid == os.getpid() and self.alive


def claim(root: Path, fleet: str, *, ephemeral: bool) -> Owner:
    """Make this process the owner of the fleet in `root`. A living other owner is refused with Conflict."""
    with _claims():
        present = read_owner(root)
        if present is not None and present.alive and not present.is_me:
            hint = f"stop process {present.pid} first, or give another folder"
            raise Conflict(f"the local fleet in {root} belongs to process {present.pid}", hint, cloud="local")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        stat = read_stat(os.getpid())
        assert stat is not None
        owner = Owner(fleet, ephemeral, stat.pid, stat.start_ticks, boot_id())
        write_atomically(root / OWNER, json.dumps(asdict(owner)))
        return owner


def release(root: Path) -> None:
    (root / OWNER).unlink(missing_ok=True)


def read_owner(root: Path) -> Owner | None:
    try:
        return Owner(**json.loads((root / OWNER).read_text()))
    except FileNotFoundError:
        return None


def clean_up(base: Path | None = None) -> list[str]:
    """End and remove the ephemeral fleets in `base` whose owner is dead; returns their folders.

    Fleets with a living owner, fleets that are meant to last, and every other Ray on the machine are left alone.
    """
    with _claims():
        dead = [root for root in sorted((base or default_base()).iterdir()) if _is_abandoned(root)]
        for root in dead:
            end_fleet(root)
            shutil.rmtree(root)
        return [str(root) for root in dead]


def end_fleet(root: Path) -> None:
    """End every process of the fleet in `root`: nodes first, then the head. Folders of nodes are removed."""
    for path in (*root.glob("*/*/session.json"), *root.glob("*/session.json")):
        if path.parent != root / HEAD:
            end_node(path.parent)
    end_node(root / HEAD)


def _is_abandoned(root: Path) -> bool:
    owner = read_owner(root) if root.is_dir() and not root.is_symlink() else None
    return owner is not None and owner.ephemeral and not owner.alive


@contextlib.contextmanager
def _claims() -> Iterator[None]:
    """Claiming and cleaning up never at the same time, or a fleet could be removed while it is adopted."""
    with (default_base() / "claims.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
