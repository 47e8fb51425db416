"""Google Compute Engine as a Provider and a PriceSource (base.py). TPUs are in gcp_tpu.py, both together in
gcp_cloud.py.

One launch is one machine. What is asked for and how a listed machine is read stand in gcp_instance.py, names and
settings in gcp_settings.py, the calls in gcp_api.py. Nothing is remembered here but how often a launch was told to
try again: machines are found by their labels, and those that have ended by Google's record of operations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from tradewind.autoscaler.providers import gcp_errors, gcp_instance
from tradewind.autoscaler.providers.base import Check, CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.deletions import delete_each
from tradewind.autoscaler.providers.gcp_api import Found, GcpApi
from tradewind.autoscaler.providers.gcp_groups import Groups
from tradewind.autoscaler.providers.gcp_instance import ENDS, KINDS, Happening
from tradewind.autoscaler.providers.gcp_preflight import check_compute
from tradewind.autoscaler.providers.gcp_settings import (
    LABEL_FLEET,
    LABEL_LAUNCH_ID,
    GcpSettings,
    Names,
    check_price,
    poll_times_s,
    request_id,
)
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.errors import Conflict, InvalidRequest, NotFound, ProviderError
from tradewind.model import EndReason, Offer

WAIT_POLL_S = 3.0
REMEMBERED_S = 3600.0  # how far back the record of operations is read; the Protocol asks for ten minutes
_log = logging.getLogger(__name__)

Place = tuple[str, str]  # zone and name of a machine or a disk


class GcpCompute:
    """The machines of one fleet in one project."""

    name = "gcp"

    def __init__(
        self,
        settings: GcpSettings,
        user_data: Callable[[LaunchSpec], str],
        *,
        offers: Iterable[Offer],  # what may be bought; a listed node is read by these
        credentials: Any = None,  # of google.auth; None: the environment's
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._names = Names.of(settings.fleet, offers)
        self._user_data = user_data
        self._api = GcpApi(settings, credentials)
        self._clock, self._sleep = clock, sleep
        self._attempts: dict[str, int] = {}
        self._groups = Groups(self._api, clock, sleep)

    def preflight(self) -> Sequence[Check]:
        return check_compute(self._api, list(self._names.offers.values()))

    def offers(self, now_s: float) -> Sequence[Offer]:  # noqa: ARG002 - list prices do not move
        return list(self._names.offers.values())

    # --- launch ------------------------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec) -> CloudNode:
        name, zone = self._names.name(spec), spec.offer.market.zone
        check_price(spec)
        known = self._known(spec)
        if known is not None:
            return known
        body = gcp_instance.instance_body(spec, name, self._names, self.settings, self._user_data(spec))
        attempt = self._attempts.get(spec.launch_id, 0)
        self._groups.ensure(spec)
        try:
            operation = self._api.compute(
                "InstancesClient",
                "insert_unary",
                launching=True,
                zone=zone,
                instance_resource=body,
                request_id=request_id(name, zone, attempt),
            )
        except Conflict:
            return self._mine(spec, zone, name)
        except InvalidRequest as error:
            self._groups.check(spec, error)
            raise
        return self._answer(spec, (zone, name), operation)

    def _known(self, spec: LaunchSpec) -> CloudNode | None:
        """A machine of this launch id, wherever it is: Google keeps names and request ids apart by zone."""
        for instance in self._instances(f'labels.{LABEL_LAUNCH_ID} = "{spec.launch_id}"').items:
            return self._same(spec, gcp_instance.node_of(instance, self._names))
        return None

    def _same(self, spec: LaunchSpec, node: CloudNode) -> CloudNode:
        if node.launch_id != spec.launch_id or node.offer.market != spec.offer.market:
            message = f"launch id {spec.launch_id} was used for {node.offer.market}, now for {spec.offer.market}"
            raise Conflict(message, cloud="gcp")
        return node

    def _mine(self, spec: LaunchSpec, zone: str, name: str) -> CloudNode:
        """The name is taken. Ours, unless somebody else has had the same idea."""
        instance = self._get((zone, name))
        if instance is None or instance.labels.get(LABEL_FLEET) != self._names.fleet:
            raise Conflict(f"the name {name} is taken in {zone}", cloud="gcp")
        return self._same(spec, gcp_instance.node_of(instance, self._names))

    def _answer(self, spec: LaunchSpec, place: Place, operation: Any) -> CloudNode:
        """Accepted means: it has its hardware (it is past PROVISIONING). A refusal is told inside of the operation."""
        deadline_s, polls_s = self._clock() + self.settings.answer_wait_s, poll_times_s()
        while operation.status.name != "DONE":
            try:
                instance = self._get(place)
                if instance is not None and instance.status != "PROVISIONING":
                    return self._same(spec, gcp_instance.node_of(instance, self._names))
                if self._clock() >= deadline_s:
                    return self._unseen(spec, place, CloudState.PENDING)
                self._sleep(next(polls_s))
                operation = self._operation(place[0], operation.name)
            except ProviderError as error:
                _log.warning("%s is accepted; what became of it, the listing tells: %s", spec.launch_id, error)
                return self._unseen(spec, place, CloudState.PENDING)
        return self._outcome(spec, place, operation)

    def _outcome(self, spec: LaunchSpec, place: Place, operation: Any) -> CloudNode:
        refused = gcp_errors.of_operation((each.code, each.message) for each in operation.error.errors)
        if refused is not None:
            if refused.retryable:
                self._attempts[spec.launch_id] = self._attempts.get(spec.launch_id, 0) + 1
            raise refused
        instance = self._get(place)
        if instance is not None:
            return self._same(spec, gcp_instance.node_of(instance, self._names))
        return self._unseen(spec, place, CloudState.GONE)  # this launch id has had its machine

    def _unseen(self, spec: LaunchSpec, place: Place, state: CloudState) -> CloudNode:
        group = spec.placement_group
        return CloudNode(spec.launch_id, place[1], spec.offer, state, created_at_s=self._clock(), placement_group=group)

    # --- what is there -----------------------------------------------------------------------------------------

    def list_nodes(self) -> Sequence[CloudNode]:
        """PartialListing where only some regions answer."""
        found, happenings = self._instances(), self._happenings()
        told: dict[str, list[Happening]] = {}
        for each in sorted(happenings, key=lambda happening: happening.began_s):
            told.setdefault(each.name, []).append(each)
        listed = [gcp_instance.node_of(each, self._names, told.get(each.name, ())) for each in found.items]
        nodes = [*listed, *gcp_instance.ended_nodes(happenings, self._names, {each.name for each in found.items})]
        if blind := found.blind_regions(self.settings.regions):
            raise PartialListing(f"no answer from {', '.join(sorted(blind))}", cloud="gcp", nodes=nodes, blind=blind)
        return nodes

    def _instances(self, condition: str = "") -> Found:
        ours = f'labels.{LABEL_FLEET} = "{self._names.fleet}"'
        found = self._api.everywhere(
            "InstancesClient", "instances", f"({ours}) AND ({condition})" if condition else ours
        )
        return Found([each for each in found.items if each.labels.get(LABEL_LAUNCH_ID)], found.blind_zones)

    def _happenings(self) -> list[Happening]:
        """What was begun on machines of ours within the last hour. Newest first, so that reading can stop."""
        kinds = " OR ".join(f'(operationType = "{kind}")' for kind in KINDS)
        oldest_s = self._clock() - REMEMBERED_S
        found: list[Happening] = []
        for page in self._api.pages(
            "GlobalOperationsClient", "aggregated_list", filter=kinds, order_by="creationTimestamp desc"
        ):
            operations = [each for scope in page.items.values() for each in scope.operations]
            young = [each for each in operations if (gcp_instance.seconds(each.insert_time) or 0.0) >= oldest_s]
            found += [each for each in map(gcp_instance.happening, young) if each is not None]
            if operations and not young:
                break
        return [each for each in found if self._names.whose(each.name, each.zone)]

    def console(self, launch_id: str) -> str:
        """The first serial port. Google keeps it as long as the machine is there."""
        found = self._instances(f'labels.{LABEL_LAUNCH_ID} = "{launch_id}"').whole(self.settings.regions)
        if not found:
            raise NotFound(f"Google has no machine of {launch_id} any more", cloud="gcp")
        zone, name = found[0].zone.rpartition("/")[2], found[0].name
        told = self._api.compute("InstancesClient", "get_serial_port_output", zone=zone, instance=name)
        return str(told.contents)

    # --- ends --------------------------------------------------------------------------------------------------

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:  # noqa: ARG002
        wanted = set(launch_ids) - {""}
        if not wanted:
            return
        places, blind_zones = self._places()
        asked = [place for name, place in places.items() if name in wanted and place is not None]
        if failed := [error for place in asked if (error := self._delete(place)) is not None]:
            raise failed[0]
        if wanted - set(places):  # unknown counts as done, but only if all could be seen
            Found((), blind_zones).whole(self.settings.regions)

    def _places(self) -> tuple[dict[str, Place | None], frozenset[str]]:
        """By launch id, where the machines of this fleet are; None if one is being deleted. One that was launched a
        moment ago may not be listed yet: the record of operations has it."""
        found, happenings = self._instances(), self._happenings()
        over = {each.name for each in happenings if each.kind in ENDS and not each.errors}
        leaving = {each.name for each in happenings if each.kind == "delete" and each.ended_s is None}
        places: dict[str, Place | None] = {}
        for each in happenings:
            whose = self._names.whose(each.name, each.zone)
            if whose is not None and each.kind == "insert" and not each.errors and each.name not in over:
                places[whose[0]] = (each.zone, each.name)
        for instance in found.items:
            place = (instance.zone.rpartition("/")[2], instance.name)
            places[instance.labels[LABEL_LAUNCH_ID]] = None if instance.name in leaving else place
        return places, found.blind_zones

    def _delete(self, place: Place) -> ProviderError | None:
        try:
            self._api.compute("InstancesClient", "delete_unary", zone=place[0], instance=place[1])
        except NotFound:
            return None
        except ProviderError as error:  # the others are ended all the same
            return error
        return None

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        wanted, deadline_s = set(launch_ids), self._clock() + timeout_s
        while True:
            left = sorted(self._still_there(wanted))
            if not left or self._clock() >= deadline_s:
                return left
            self._sleep(WAIT_POLL_S)

    def _still_there(self, wanted: set[str]) -> set[str]:
        instances = self._instances().whole(self.settings.regions)
        listed = {each.labels[LABEL_LAUNCH_ID] for each in instances} & wanted
        if listed == wanted:
            return listed
        late = {name: place for name, place in self._places()[0].items() if name in wanted - listed and place}
        return listed | {name for name, place in late.items() if self._get(place) is not None}

    # --- debris ------------------------------------------------------------------------------------------------

    def list_debris(self) -> Sequence[str]:
        return sorted(name for name, _ in self._deletions())

    def delete_debris(self, names: Iterable[str]) -> None:
        """Only what is debris of this fleet at this moment, whatever is asked for."""
        wanted = set(names)
        delete_each((name, delete) for name, delete in self._deletions() if name in wanted)

    def _deletions(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """By name, how to remove it."""
        for kind, zone, name in self._debris():
            yield f"zones/{zone}/{kind}/{name}", partial(self._delete_loose, kind, zone, name)
        for region, name in self._empty_groups():
            yield f"regions/{region}/resourcePolicies/{name}", partial(self._groups.delete, (region, name))

    def _delete_loose(self, kind: str, zone: str, name: str) -> None:
        if kind == "disks":
            self._api.compute("DisksClient", "delete_unary", zone=zone, disk=name)
        else:
            self._api.compute("InstancesClient", "delete_unary", zone=zone, instance=name)

    def _empty_groups(self) -> list[tuple[str, str]]:
        instances = self._instances().whole(self.settings.regions)
        return self._groups.empty(self._names.fleet, [link for each in instances for link in each.resource_policies])

    def _debris(self) -> list[tuple[str, str, str]]:
        """Stopped machines, whose disks are still billed, and disks that no machine uses or is about to use."""
        instances = self._instances().whole(self.settings.regions)
        stopped = [_place("instances", each) for each in instances if gcp_instance.is_stopped(each)]
        used = {each.name for each in instances} | {place[1] for place in self._places()[0].values() if place}
        disks = self._api.everywhere("DisksClient", "disks", f'labels.{LABEL_FLEET} = "{self._names.fleet}"')
        loose = [disk for disk in disks.whole(self.settings.regions) if not disk.users and disk.name not in used]
        return [*stopped, *(_place("disks", disk) for disk in loose)]

    # --- single looks ------------------------------------------------------------------------------------------

    def _get(self, place: Place) -> Any:
        try:
            return self._api.compute("InstancesClient", "get", zone=place[0], instance=place[1])
        except NotFound:
            return None

    def _operation(self, zone: str, name: str) -> Any:
        return self._api.compute("ZoneOperationsClient", "get", zone=zone, operation=name)


def _place(kind: str, resource: Any) -> tuple[str, str, str]:
    return kind, resource.zone.rpartition("/")[2], resource.name
