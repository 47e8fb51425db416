"""Azure as a Provider (base.py): virtual machines, one a launch, spot or on-demand, in one resource group.

A launch is an interface and a machine with names made from the launch id (azure_settings.py); what is asked for and how
a listed machine is read stand in azure_vm.py, the calls in azure_api.py. Azure forgets a machine when it is deleted, or
evicted: what became of those is in its activity log (azure_log.py), which is read when one is missing, and before a
launch: a launch id has one machine, once. In memory is only what was listed before.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tradewind.autoscaler.providers import azure_errors, azure_log, azure_vm
from tradewind.autoscaler.providers.azure_api import JSON, AzureApi
from tradewind.autoscaler.providers.azure_groups import KIND, Groups
from tradewind.autoscaler.providers.azure_preflight import check_subscription
from tradewind.autoscaler.providers.azure_settings import (
    CLOUD,
    TAG_FLEET,
    TAG_LAUNCH_ID,
    AzureSettings,
    Names,
    check_spec,
    is_launch_id,
    poll_times_s,
)
from tradewind.autoscaler.providers.azure_vm import Status
from tradewind.autoscaler.providers.base import Check, CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.deletions import delete_each
from tradewind.errors import AmbiguousOutcome, Conflict, NotFound, ProviderError
from tradewind.model import EndReason, Offer

WAIT_POLL_S = 5.0
REMEMBERED_S = 3600.0  # how far back the activity log is read; the Protocol asks for ten minutes
LOG_LAG_S = 1200.0  # by then the log has told of one that is missing, or never will
_LOG = "/providers/Microsoft.Insights/eventtypes/management/values"
_LOG_VERSION = "2015-04-01"
_log = logging.getLogger(__name__)


class AzureProvider:
    """The machines of one fleet."""

    name = CLOUD

    def __init__(
        self,
        settings: AzureSettings,
        user_data: Callable[[LaunchSpec], str],
        *,
        offers: Iterable[Offer],  # what may be bought; a listed node is read by these
        credential: Any = None,  # of azure.identity; None: the environment's
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._user_data = user_data
        self._offers = {offer.market: offer for offer in offers}
        self._names = Names(settings.fleet)
        self._api = AzureApi(settings, credential)
        self._groups = Groups(self._api)
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        # Calls that are under way, by launch id and group: their interfaces and groups are no debris.
        self._launching: Counter[tuple[str, str]] = Counter()
        self._seen: dict[str, tuple[CloudNode, float]] = {}  # launches, and when each was last listed
        self._ended: dict[str, CloudNode] = {}  # by the activity log
        self._is_log_read = False

    def preflight(self) -> Sequence[Check]:
        return check_subscription(self._api, list(self._offers.values()))

    # --- launch ------------------------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec) -> CloudNode:
        check_spec(spec, self.settings)
        key = self.settings.ssh_public_key or _nobodys_key()
        body = azure_vm.vm_body(spec, self.settings, self._user_data(spec), key)
        known = self._get(spec.launch_id)
        if known is not None:
            return self._same(spec, known)
        if (ended := self._ended_before(spec)) is not None:
            return ended
        with self._under_way((spec.launch_id, spec.placement_group)):
            self._create(spec, body)
        return self._answer(spec)

    @contextmanager
    def _under_way(self, call: tuple[str, str]) -> Iterator[None]:
        with self._lock:
            self._launching[call] += 1
        try:
            yield
        finally:
            with self._lock:
                self._launching[call] -= 1
                self._launching = +self._launching  # without those that are done

    def _same(self, spec: LaunchSpec, vm: JSON) -> CloudNode:
        """This launch id has its machine. The name is ours, unless somebody else has had the same idea."""
        if vm.get("tags", {}).get(TAG_LAUNCH_ID) != spec.launch_id or vm["tags"].get(TAG_FLEET) != spec.fleet:
            raise Conflict(f"the name {vm['name']} is taken in {self.settings.resource_group}", cloud=CLOUD)
        node = azure_vm.node_of(vm, _status(vm), self._offers)
        if node.offer.market != spec.offer.market:
            message = f"launch id {spec.launch_id} was used for {node.offer.market}, now for {spec.offer.market}"
            raise Conflict(message, cloud=CLOUD)
        self._seen[spec.launch_id] = (node, self._clock())
        return node

    def _ended_before(self, spec: LaunchSpec) -> CloudNode | None:
        """Azure would make a second machine of the same name."""
        if spec.launch_id not in self._ended:
            path = self.settings.path("Microsoft.Compute/virtualMachines", self._names.vm(spec.launch_id))
            self._read_log(f"resourceUri eq '{path}'")
        return self._ended.get(spec.launch_id)

    def _create(self, spec: LaunchSpec, body: JSON) -> None:
        """The interface, then the machine. A machine that is there already (another thread was quicker) is left alone.
        Where the machine is refused, its interface has no use."""
        self._groups.ensure(spec)
        try:
            self._api.put_nic(self._names.nic(spec.launch_id), azure_vm.nic_body(spec, self.settings))
        except NotFound as error:  # its subnet or its security group
            raise azure_errors.refusal("InvalidResourceReference", error.message) from error
        try:
            self._api.create_vm(self._names.vm(spec.launch_id), body)
        except Conflict:
            if self._get(spec.launch_id) is None:
                raise
        except ProviderError as error:
            if not error.retryable and not isinstance(error, AmbiguousOutcome):
                self._clean(lambda: self._api.delete_nic(self._names.nic(spec.launch_id)), spec.launch_id)
                self._groups.check(spec, error)
            raise

    def _answer(self, spec: LaunchSpec) -> CloudNode:
        """Accepted means: it has hardware, or the time is over. A refusal is told by the machine."""
        deadline_s, polls_s = self._clock() + self.settings.answer_wait_s, poll_times_s()
        try:
            vm = self._get(spec.launch_id)
            while vm is not None and not azure_vm.is_decided(vm, _status(vm)) and self._clock() < deadline_s:
                self._sleep(next(polls_s))
                vm = self._get(spec.launch_id)
        except ProviderError as error:
            _log.warning("%s is accepted; what became of it, the listing tells: %s", spec.launch_id, error)
            return self._unseen(spec, CloudState.PENDING)
        if vm is None:  # this launch id has had its machine
            return self._unseen(spec, CloudState.GONE)
        # One that ran and has gone down by itself meanwhile was no refusal: the listing tells of its end.
        if azure_vm.is_failed(vm) and azure_vm.is_leftover(vm, _status(vm)):
            self._clean(lambda: self._api.delete_vm(vm["name"]), spec.launch_id)
            raise azure_errors.refusal(_status(vm).code, _status(vm).message)
        return self._same(spec, vm)

    def _unseen(self, spec: LaunchSpec, state: CloudState) -> CloudNode:
        name, group = self._names.vm(spec.launch_id), spec.placement_group
        return CloudNode(spec.launch_id, name, spec.offer, state, created_at_s=self._clock(), placement_group=group)

    def _clean(self, delete: Callable[[], object], launch_id: str) -> None:
        """What cannot be removed now is debris, and found as such."""
        try:
            delete()
        except ProviderError as error:
            _log.warning("%s was refused, and left something behind: %s", launch_id, error)

    def _get(self, launch_id: str) -> JSON | None:
        try:
            return self._api.get_vm(self._names.vm(launch_id))
        except NotFound:
            return None

    # --- what is there -----------------------------------------------------------------------------------------

    def list_nodes(self) -> Sequence[CloudNode]:
        """All of our regions or an error: Azure lists a resource group, wherever its machines are."""
        asked_at_s = self._clock()
        nodes = [azure_vm.node_of(vm, status, self._offers) for vm, status in self._machines()]
        listed = {node.launch_id for node in nodes}
        self._seen.update((node.launch_id, (node, asked_at_s)) for node in nodes)
        self._learn_ends(listed, asked_at_s)
        ended = [node for name, node in list(self._ended.items()) if name not in listed]
        return [*nodes, *ended]

    def _machines(self) -> Iterator[tuple[JSON, Status]]:
        ours = [vm for vm in self._api.list_vms() if self._is_ours(vm)]
        if not ours:
            return
        views = {each["id"].lower(): each["properties"].get("instanceView", {}) for each in self._api.list_statuses()}
        for vm in ours:
            yield vm, Status.of(views.get(vm["id"].lower(), {}))

    def _is_ours(self, resource: JSON) -> bool:
        """Other cells of the fleet have machines in the same group, in other regions."""
        tags, place = resource.get("tags") or {}, resource["location"].lower()
        is_here = any(region.name == place for region in self.settings.regions)
        return is_here and tags.get(TAG_FLEET) == self.settings.fleet and bool(tags.get(TAG_LAUNCH_ID))

    def _learn_ends(self, listed: set[str], now_s: float) -> None:
        """Of those that are missing, and after a start of all: from the activity log. It is not asked otherwise."""
        oldest_s = now_s - REMEMBERED_S
        self._seen = {k: v for k, v in list(self._seen.items()) if v[1] >= now_s - LOG_LAG_S}
        self._ended = {k: v for k, v in list(self._ended.items()) if (v.billed_until_s or v.created_at_s) >= oldest_s}
        if not self._is_log_read or set(self._seen) - listed - set(self._ended):
            self._read_log(f"resourceGroupName eq '{self.settings.resource_group}'")
            self._is_log_read = True

    def _read_log(self, which: str) -> None:
        since = datetime.fromtimestamp(self._clock() - REMEMBERED_S, UTC).isoformat(timespec="seconds")
        path = f"/subscriptions/{self.settings.subscription}{_LOG}"
        query = {
            "$filter": f"eventTimestamp ge '{since.replace('+00:00', 'Z')}' and {which}",
            "$select": azure_log.SELECT,
        }
        told = azure_log.happenings(self._api.pages(path, _LOG_VERSION, **query))
        seen = {launch_id: node for launch_id, (node, _) in list(self._seen.items())}
        for node in azure_log.ended_nodes(told, self._names, seen):
            self._ended.setdefault(node.launch_id, node)

    def console(self, launch_id: str) -> str:
        return self._api.console(self._names.vm(launch_id))

    # --- ends --------------------------------------------------------------------------------------------------

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:
        """By name, so that it works for one that is not listed yet, and while a region does not answer."""
        del reason  # Azure keeps its own
        failed = [error for name in sorted(set(launch_ids)) if (error := self._end(name)) is not None]
        if failed:
            raise failed[0]

    def _end(self, launch_id: str) -> ProviderError | None:
        if not is_launch_id(launch_id):
            return None  # never ours
        try:
            if not self._api.delete_vm(self._names.vm(launch_id)):
                self._api.delete_nic(self._names.nic(launch_id))  # a launch that came no further
        except NotFound:
            return None
        except ProviderError as error:  # the others are ended all the same
            return error
        return None

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        """What cannot be looked at counts as still there."""
        wanted, deadline_s = sorted({name for name in launch_ids if is_launch_id(name)}), self._clock() + timeout_s
        while True:
            wanted = [name for name in wanted if self._may_be_there(name)]
            if not wanted or self._clock() >= deadline_s:
                return wanted
            self._sleep(min(WAIT_POLL_S, max(0.1, deadline_s - self._clock())))

    def _may_be_there(self, launch_id: str) -> bool:
        try:
            return self._get(launch_id) is not None
        except ProviderError as error:
            _log.warning("%s: cannot tell whether it is gone: %s", launch_id, error)
            return True

    # --- debris ------------------------------------------------------------------------------------------------

    def list_debris(self) -> Sequence[str]:
        return sorted(self._debris())

    def delete_debris(self, names: Iterable[str]) -> None:
        """Only what is debris of this fleet at this moment, whatever is asked for."""
        wanted = set(names)
        if wanted:
            delete_each((name, delete) for name, delete in self._debris().items() if name in wanted)

    def _debris(self) -> Mapping[str, Callable[[], object]]:
        """By name, how to remove it: machines that failed or went down, interfaces and disks that nothing uses, and
        empty groups."""
        with self._lock:
            under_way = {name for call in self._launching for name in call}
        machines = list(self._machines())
        found: list[tuple[str, JSON, Callable[[str], object]]] = []
        over = [vm for vm, status in machines if azure_vm.is_leftover(vm, status)]
        found += [("virtualMachines", vm, self._api.delete_vm) for vm in over]
        nics = [nic for nic in self._api.list_nics() if not nic["properties"].get("virtualMachine")]
        found += [("networkInterfaces", nic, self._api.delete_nic) for nic in nics]
        disks = [disk for disk in self._api.list_disks() if not disk.get("managedBy")]
        found += [("disks", disk, self._api.delete_disk) for disk in disks]
        loose: dict[str, Callable[[], object]] = {
            f"{kind}/{each['name']}": functools.partial(delete, each["name"])
            for kind, each, delete in found
            if self._is_ours(each) and each["tags"][TAG_LAUNCH_ID] not in under_way
        }
        going = [vm["name"] for vm in over if f"virtualMachines/{vm['name']}" in loose]
        going += [vm["name"] for vm, _ in machines if azure_vm.is_ending(vm)]
        empty = [name for name in self._groups.empty(going) if name not in under_way]
        return {**loose, **{f"{KIND}/{name}": functools.partial(self._groups.delete, name) for name in empty}}


def _status(vm: JSON) -> Status:
    return Status.of(vm["properties"].get("instanceView", {}))


@functools.cache
def _nobodys_key() -> str:
    """Azure wants a key or a password for every machine. The other half of this one is thrown away."""
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
