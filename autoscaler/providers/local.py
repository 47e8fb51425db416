"""The local cloud: real Ray nodes on this machine, sold as instances of pretend markets in three clouds.

A Provider and a PriceSource like any other (base.py): the loop cannot tell the difference. The books are in
local_instances.py, the weather (stock-outs, prices, preemptions) in local_market.py, the processes below
local_machines.py. Here is what a cloud does by itself: boot what was launched, take back, notice what crashed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from tradewind.autoscaler.providers import local_fleets, local_market
from tradewind.autoscaler.providers.base import Check, CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.local_instances import Instance, InstanceBook
from tradewind.autoscaler.providers.local_machines import Machines, RayMachines
from tradewind.autoscaler.providers.local_market import MarketScript
from tradewind.autoscaler.providers.local_preflight import check_machine
from tradewind.autoscaler.providers.local_processes import write_atomically
from tradewind.errors import NotFound, RayError
from tradewind.model import EndReason, Offer

RESOLD_S = 120.0  # how long somebody else keeps what was taken back from us
LISTED_AFTER_END_S = 900.0  # the Protocol asks for ten minutes at least
TERMINATE_GRACE_S = 0.5  # Ray signs off within 0.2 s of a SIGTERM; a preempted node is not asked
CONSOLE, CONSOLE_SIGNS = "console.log", 65536  # what is kept of an ended instance's log
_WATCH_EVERY_S = 0.1
_log = logging.getLogger(__name__)


class LocalCloud:
    """Owns the fleet in `root` until `close` (ends everything) or `detach` (leaves the nodes to the next owner)."""

    name = "local"

    def __init__(
        self,
        root: Path,
        fleet: str,
        offers: Iterable[Offer],
        script: MarketScript | None = None,
        *,
        clock: Callable[[], float] = time.time,
        cpus_per_node: int | None = None,
        ephemeral: bool = False,
        machines: Machines | None = None,
        watch: bool = True,
    ) -> None:
        """`cpus_per_node` limits the logical CPUs of every offer. Without `watch` nothing happens but in `step()`."""
        self.root, self.fleet, self.script = root, fleet, script or MarketScript()
        self._clock = clock
        self._offers = {offer.market.key: _limited(offer, cpus_per_node) for offer in offers}
        self._machines = machines or RayMachines(root / local_fleets.HEAD / "token")
        local_fleets.claim(root, fleet, ephemeral=ephemeral)
        self._book = InstanceBook.open(root)
        self._started_at_s, self._looked_at_s = self._load_times()
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._booting: set[str] = set()
        self._ending: set[str] = set()
        self._booter = ThreadPoolExecutor(1, "local-boot") if watch else None
        self._ender = ThreadPoolExecutor(4, "local-end") if watch else None
        self._watcher = threading.Thread(target=self._watch, name="local-watch", daemon=True)
        if watch:
            self._watcher.start()

    # --- Provider and PriceSource ----------------------------------------------------------------------------------

    def preflight(self) -> Sequence[Check]:
        return check_machine(self.root)

    def offers(self, now_s: float) -> Sequence[Offer]:
        return [local_market.priced(offer, self.script, self._started_at_s, now_s) for offer in self._offers.values()]

    def launch(self, spec: LaunchSpec) -> CloudNode:
        with self._lock:
            known = self._book.by_launch_id.get(spec.launch_id)
            if known is not None:
                return known.checked_against(spec).as_node()
            now_s = self._clock()
            taken = self._places_taken(spec.offer.market.key, now_s)
            offer = local_market.admit(spec, self._offers, self.script, self._started_at_s, now_s, taken)
            delay_s = local_market.launch_delay_s(self.script, spec.launch_id)
            return self._book.put(self._book.new(spec, offer, now_s, now_s + delay_s)).as_node()

    def list_nodes(self) -> Sequence[CloudNode]:
        with self._lock:
            oldest_end_s = self._clock() - LISTED_AFTER_END_S
            return [i.as_node() for i in self._instances() if i.ended_at_s is None or i.ended_at_s > oldest_end_s]

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:
        with self._lock:
            for launch_id in launch_ids:
                instance = self._book.by_launch_id.get(launch_id)
                if instance is not None and instance.is_up:
                    self._stop(instance, reason, "as asked")

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        wanted, deadline_s = set(launch_ids), time.monotonic() + timeout_s
        while True:
            with self._lock:
                left = [i.launch_id for i in self._instances() if i.launch_id in wanted and i.is_alive]
            if not left or time.monotonic() > deadline_s:
                return left
            time.sleep(_WATCH_EVERY_S / 2)

    def console(self, launch_id: str) -> str:
        """Ray's own log; what is left of it after the end lies in the instance's folder."""
        instance = self._book.by_launch_id.get(launch_id)
        if instance is None:
            raise NotFound(f"there was no instance of {launch_id}", cloud="local")
        folder = self._book.folder(instance)
        with contextlib.suppress(FileNotFoundError):
            return (folder / CONSOLE).read_text(errors="replace")
        return self._machines.console(folder)

    def list_debris(self) -> Sequence[str]:
        """Folders of this fleet that no instance accounts for, and those in which an ended one left something."""
        with self._lock:
            ended = [self._book.folder(i) for i in self._instances() if not i.is_alive]
            return [str(path) for path in (*self._book.strays(), *(path for path in ended if _has_folders(path)))]

    def delete_debris(self, names: Iterable[str]) -> None:
        with self._lock:
            known = {self._book.folder(instance) for instance in self._instances()}
            for path in (Path(name) for name in set(names) & set(self.list_debris())):
                self._machines.end(path, 0.0)
                if path not in known:
                    shutil.rmtree(path)

    # --- what people do to a pretend cloud -------------------------------------------------------------------------

    def preempt(self, target: str, notice_s: float | None = None, count: int | None = None) -> Sequence[str]:
        """Take nodes back, by launch id or by a glob over market keys: after `notice_s`, or at once."""
        with self._lock:
            now_s = self._clock()
            chosen = [i for i in self._instances() if i.is_up and i.taken_at_s is None and _is_meant(i, target)]
            if not chosen:
                raise NotFound(f"no running node matches {target!r}", "`tradewind status` lists them", cloud="local")
            for instance in chosen[:count]:
                taken = local_market.preemption(instance.as_subject(), now_s, notice_s, "by hand")
                self._look_at(self._announce(taken), now_s)
            return [instance.launch_id for instance in chosen[:count]]

    def step(self) -> None:
        """One look at the weather and at every machine."""
        with self._lock:
            now_s = self._clock()
            self._look_at_weather(now_s)
            for instance in self._instances():
                if instance.is_alive:
                    self._look_at(instance, now_s)

    def close(self) -> None:
        """End every node and the head, and give up the fleet. Nothing is left of it here. May be repeated."""
        if self._closing.is_set():
            return
        with self._lock:
            for instance in self._instances():
                if instance.is_up:
                    self._stop(instance, EndReason.TERMINATED, "the cloud was closed")
        self._stop_threads()
        local_fleets.end_fleet(self.root)
        local_fleets.release(self.root)
        shutil.rmtree(self.root)

    def detach(self) -> None:
        """Give up the fleet and leave its nodes running; the next LocalCloud on the same folder adopts them."""
        if not self._closing.is_set():
            self._stop_threads()
            local_fleets.release(self.root)

    # --- the life of an instance -----------------------------------------------------------------------------------

    def _look_at_weather(self, now_s: float) -> None:
        script, began_s, since_s = self.script, self._started_at_s, self._looked_at_s
        subjects = [instance.as_subject() for instance in self._instances()]
        for taken in local_market.preemptions(script, began_s, since_s, now_s, subjects):
            self._announce(taken)
        self._looked_at_s = now_s
        if any(since_s < began_s + event.at_s <= now_s for event in script.events):
            self._save_times()  # a restarted cloud must not do it again

    def _announce(self, taken: local_market.Preemption) -> Instance:
        instance = self._book.by_launch_id[taken.launch_id]
        return self._book.put(
            replace(instance, noticed_at_s=taken.noticed_at_s, taken_at_s=taken.deadline_s, detail=taken.reason)
        )

    def _look_at(self, instance: Instance, now_s: float) -> None:
        """What is due for one instance."""
        name = instance.launch_id
        if instance.is_up and instance.taken_at_s is not None and instance.taken_at_s <= now_s:
            self._stop(instance, EndReason.PREEMPTED, instance.detail)
        elif instance.state is CloudState.PENDING and instance.boots_at_s <= now_s and name not in self._booting:
            self._booting.add(name)
            _run(self._booter, self._boot, name)
        elif instance.state is CloudState.RUNNING and name not in self._booting:
            if not self._machines.is_running(instance, self._book.folder(instance)):
                what = "its processes" if instance.offer.hosts == 1 else "the processes of a host"
                self._stop(instance, EndReason.CRASHED, f"{what} ended by themselves")
        elif instance.state is CloudState.STOPPING and name not in self._ending:
            self._end_soon(instance)  # found so after a restart, or tried in vain before

    def _boot(self, launch_id: str) -> None:
        """In the boot thread: one machine after another, each from its start until it has joined. A slice is there with
        its last host; a host that does not boot fails it."""
        try:
            with self._machines.queue():
                instance = self._switch_on(launch_id)
                if instance is not None:
                    for host in range(instance.offer.hosts):
                        self._boot_host(instance, host)
        except RayError as error:
            self._boot_failed(launch_id, error.message)
        finally:
            with self._lock:
                self._booting.discard(launch_id)

    def _switch_on(self, launch_id: str) -> Instance | None:
        """From pending to running; None if it was stopped meanwhile, or cannot boot."""
        with self._lock:
            instance = self._book.by_launch_id[launch_id]
            if instance.state is not CloudState.PENDING or self._closing.is_set():
                return None
            subjects = [other.as_subject() for other in self._instances()]
            if local_market.fails_to_boot(self.script, self._started_at_s, instance.as_subject(), subjects):
                self._stop(instance, EndReason.CRASHED, "failed to boot (as the script says)")
                return None
            running = replace(instance, state=CloudState.RUNNING, billed_from_s=self._clock())
            return self._book.put(running)

    def _boot_host(self, instance: Instance, host: int) -> None:
        """Ray gives itself 30 s to start, which is short on a busy machine: so there is a second try."""
        self._start_host(instance, host)
        try:
            self._machines.wait_joined(instance, self._book.folder(instance), host)
        except RayError as error:
            self._start_host(instance, host)
            _log.warning("%s boots once more: %s", instance.launch_id, error.message)
            self._machines.wait_joined(instance, self._book.folder(instance), host)

    def _start_host(self, instance: Instance, host: int) -> None:
        with self._lock:
            if not self._book.by_launch_id[instance.launch_id].is_up or self._closing.is_set():
                raise RayError(f"{instance.launch_id} was ended while it booted")  # and must not come back
            self._machines.start(instance, self._book.folder(instance), host)

    def _boot_failed(self, launch_id: str, message: str) -> None:
        with self._lock:
            instance = self._book.by_launch_id[launch_id]
            if instance.is_up and not self._closing.is_set():  # otherwise it was ended meanwhile, which is no failure
                self._stop(instance, EndReason.CRASHED, f"failed to boot: {message}")

    def _stop(self, instance: Instance, end: EndReason, detail: str) -> None:
        self._end_soon(self._book.put(replace(instance, state=CloudState.STOPPING, end=end, detail=detail)))

    def _end_soon(self, instance: Instance) -> None:
        self._ending.add(instance.launch_id)
        _run(self._ender, self._end, instance)

    def _end(self, instance: Instance) -> None:
        """In an end thread: SIGKILL is quick, but a node that we terminate may sign off."""
        try:
            grace_s = TERMINATE_GRACE_S if instance.end is EndReason.TERMINATED else 0.0
            folder = self._book.folder(instance)
            if console := self._machines.console(folder):
                (folder / CONSOLE).write_text(console[-CONSOLE_SIGNS:])
            self._machines.end(folder, grace_s)
            billed_until_s = self._clock() if instance.billed_from_s is not None else None
            gone = replace(instance, state=CloudState.GONE, billed_until_s=billed_until_s, ended_at_s=self._clock())
            with self._lock:
                self._book.put(gone)
        except RayError as error:
            _log.warning("%s does not end, trying again: %s", instance.launch_id, error)
        finally:
            with self._lock:
                self._ending.discard(instance.launch_id)

    # --- threads and times -----------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_EVERY_S):
            try:
                self.step()
            except Exception:  # a cloud does not stop because of one bad look
                _log.exception("the local cloud could not look at its nodes, trying again")

    def _stop_threads(self) -> None:
        self._closing.set()
        if self._watcher.is_alive():
            self._watcher.join()
        if self._booter and self._ender:
            self._booter.shutdown(wait=False, cancel_futures=True)  # may wait for another fleet's turn to boot
            self._ender.shutdown(wait=True)

    def _places_taken(self, market: str, now_s: float) -> int:
        """A node that was taken back went to somebody else: its place stays occupied for a while."""
        return sum(
            instance.is_alive
            or (instance.end is EndReason.PREEMPTED and now_s - (instance.ended_at_s or 0.0) < RESOLD_S)
            for instance in self._instances()
            if instance.offer.market.key == market
        )

    def _instances(self) -> list[Instance]:
        return list(self._book.by_launch_id.values())

    def _load_times(self) -> tuple[float, float]:
        """When the script began, and up to when it has been played: a restarted cloud goes on where it was."""
        try:
            times = json.loads((self.root / "cloud.json").read_text())
            return times["started_at_s"], times["looked_at_s"]
        except FileNotFoundError:
            self._started_at_s = self._looked_at_s = self._clock()
            self._save_times()
            return self._started_at_s, self._looked_at_s

    def _save_times(self) -> None:
        times = {"started_at_s": self._started_at_s, "looked_at_s": self._looked_at_s}
        write_atomically(self.root / "cloud.json", json.dumps(times))


def _run(executor: ThreadPoolExecutor | None, work: Callable[..., None], *arguments: object) -> None:
    """In its thread; at once where there are no threads."""
    if executor is None:
        work(*arguments)
    else:
        executor.submit(work, *arguments).add_done_callback(_report)


def _report(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.error("the local cloud stumbled; the next look goes on from there", exc_info=error)


def _limited(offer: Offer, cpus: int | None) -> Offer:
    return offer if cpus is None else replace(offer, vcpus=min(offer.vcpus, cpus))


def _is_meant(instance: Instance, target: str) -> bool:
    return target == instance.launch_id or fnmatchcase(instance.offer.market.key, target)


def _has_folders(folder: Path) -> bool:
    return any(path.is_dir() for path in folder.iterdir())
