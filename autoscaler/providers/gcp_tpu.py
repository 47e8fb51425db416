"""Google's TPUs as a Provider and a PriceSource (base.py): one launch is one slice of `Offer.hosts` hosts, or nothing.

A slice is asked for as a node, which Google gives now or refuses; or, where `tpu_queue_s` is set, as a queued
resource, which may wait so long for its node. What is asked for and how it is read stand in gcp_slice.py. The API has
no filters and no listing over all zones: every zone with an offer is asked, in parallel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tradewind.autoscaler.providers import gcp_errors, gcp_slice
from tradewind.autoscaler.providers.base import Check, CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.gcp_api import GcpApi
from tradewind.autoscaler.providers.gcp_preflight import TPU_PERMISSIONS, answered, permissions
from tradewind.autoscaler.providers.gcp_settings import (
    GcpSettings,
    Names,
    check_price,
    poll_times_s,
    region_of,
    request_id,
)
from tradewind.autoscaler.providers.gcp_slice import Deed, short_name
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.errors import AuthError, Conflict, NotFound, ProviderError, Scope, Unsupported
from tradewind.model import EndReason, Offer

WAIT_POLL_S = 3.0
REMEMBERED_S = 3600.0  # how far back the record of operations is read; the Protocol asks for ten minutes
_PAGE = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZoneView:
    """What one zone holds of this fleet, by name."""

    zone: str
    nodes: Mapping[str, Any] = field(default_factory=dict)
    queued: Mapping[str, Any] = field(default_factory=dict)
    deeds: Mapping[str, list[Deed]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {*self.nodes, *self.queued}


class GcpTpu:
    """The slices of one fleet in one project."""

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
        self._zones = sorted({market.zone for market in self._names.offers})
        self._user_data = user_data
        self._api = GcpApi(settings, credentials)
        self._clock, self._sleep = clock, sleep

    def preflight(self) -> Sequence[Check]:
        kinds = sorted({(market.zone, market.instance_type) for market in self._names.offers})
        return [permissions(self._api, TPU_PERMISSIONS), *(self._check(zone, kind) for zone, kind in kinds)]

    def offers(self, now_s: float) -> Sequence[Offer]:  # noqa: ARG002 - list prices do not move
        return list(self._names.offers.values())

    # --- launch ------------------------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec) -> CloudNode:
        name, zone = self._names.name(spec), spec.offer.market.zone
        check_price(spec)
        known = self._known(spec, name)
        if known is not None:
            return known
        node = gcp_slice.node_body(spec, self._names, self.settings, self._user_data(spec))
        try:
            operation = self._ask(spec, name, node)
        except Conflict:
            return self._mine(spec, zone, name)
        except AuthError as error:
            if error.code != "UNAUTHENTICATED":  # a right that is missing for TPUs says nothing of machines
                error.scope = Scope.REGION
            raise
        return self._answer(spec, name, operation)

    def _ask(self, spec: LaunchSpec, name: str, node: Mapping[str, Any]) -> Any:
        parent = self._parent(spec.offer.market.zone)
        if self.settings.tpu_queue_s <= 0:
            request = {"parent": parent, "node_id": name, "node": node}
            return self._call("create_node", request, launching=True).operation
        queued = gcp_slice.queued_body(spec, name, node, self.settings)
        request = {
            "parent": parent,
            "queued_resource_id": name,
            "queued_resource": queued,
            "request_id": request_id(name, spec.offer.market.zone, 0),
        }
        return self._call("create_queued_resource", request, launching=True).operation

    def _known(self, spec: LaunchSpec, name: str) -> CloudNode | None:
        """A slice of this launch id in any zone; or that it had one: a node's name is free again once it is deleted.
        Other zones may be dead, which must not keep us from this one."""
        here = self._view(spec.offer.market.zone)
        others = self._try_views([zone for zone in self._zones if zone != here.zone])
        for node in self._listed([here, *(view for view in others if isinstance(view, ZoneView))]):
            if node.launch_id == spec.launch_id:
                return self._same(spec, node)
        told = here.deeds.get(name)
        ended = gcp_slice.ended_slice(told, self._names) if told else None
        return ended if ended is not None and ended.end is EndReason.TERMINATED else None

    def _same(self, spec: LaunchSpec, node: CloudNode) -> CloudNode:
        if node.launch_id != spec.launch_id or node.offer.market != spec.offer.market:
            message = f"launch id {spec.launch_id} was used for {node.offer.market}, now for {spec.offer.market}"
            raise Conflict(message, cloud="gcp")
        return node

    def _mine(self, spec: LaunchSpec, zone: str, name: str) -> CloudNode:
        """The name is taken. Ours, unless somebody else has had the same idea."""
        node = self._get("get_node", f"{self._parent(zone)}/nodes/{name}")
        if node is not None and gcp_slice.is_ours(node.labels, self._names.fleet):
            return self._same(spec, gcp_slice.slice_node(node, zone, self._names))
        queued = self._get("get_queued_resource", f"{self._parent(zone)}/queuedResources/{name}")
        if queued is not None and gcp_slice.is_ours(queued.tpu.node_spec[0].node.labels, self._names.fleet):
            return self._same(spec, gcp_slice.queued_node(queued, zone, self._names))
        raise Conflict(f"the name {name} is taken in {zone}", cloud="gcp")

    def _answer(self, spec: LaunchSpec, name: str, operation: Any) -> CloudNode:
        """A refusal is told inside of the operation. What is not refused for a while is accepted."""
        deadline_s, polls_s = self._clock() + self.settings.answer_wait_s, poll_times_s()
        while not operation.done and self._clock() < deadline_s:
            self._sleep(next(polls_s))
            try:
                operation = self._call("get_operation", {"name": operation.name})
            except ProviderError as error:
                _log.warning("%s is accepted; what became of it, the listing tells: %s", spec.launch_id, error)
                break
        refused = gcp_errors.of_status(operation.error.code, operation.error.message)
        if refused is not None:
            raise refused
        return CloudNode(spec.launch_id, name, spec.offer, CloudState.PENDING, created_at_s=self._clock())

    # --- what is there -----------------------------------------------------------------------------------------

    def list_nodes(self) -> Sequence[CloudNode]:
        """PartialListing where only some regions answer."""
        tried = dict(zip(self._zones, self._try_views(self._zones), strict=True))
        views = [view for view in tried.values() if isinstance(view, ZoneView)]
        errors = {region_of(zone): error for zone, error in tried.items() if isinstance(error, ProviderError)}
        if errors and not views:
            raise next(iter(errors.values()))
        nodes = [*self._listed(views), *(node for view in views for node in self._remembered(view))]
        if errors:
            told = "; ".join(f"{region}: {error.message}" for region, error in errors.items())
            raise PartialListing(f"no answer from {told}", cloud="gcp", nodes=nodes, blind=frozenset(errors))
        return nodes

    def _remembered(self, view: ZoneView) -> list[CloudNode]:
        """What has ended and is no longer there."""
        told = (deeds for name, deeds in view.deeds.items() if name not in view.names)
        return [node for deeds in told if (node := gcp_slice.ended_slice(deeds, self._names)) is not None]

    def _listed(self, views: Iterable[ZoneView]) -> list[CloudNode]:
        found: list[CloudNode] = []
        for view in views:
            for name, node in view.nodes.items():
                ready_s = next((each.ended_s for each in view.deeds.get(name, ()) if each.verb == "create"), None)
                found.append(
                    gcp_slice.slice_node(node, view.zone, self._names, ready_s if name not in view.queued else None)
                )
            waiting = [queued for name, queued in view.queued.items() if name not in view.nodes]
            found += [gcp_slice.queued_node(queued, view.zone, self._names) for queued in waiting]
        return found

    def _views(self) -> list[ZoneView]:
        """Every zone, or the error of the first that does not answer."""
        views = self._try_views(self._zones)
        for view in views:
            if isinstance(view, ProviderError):
                raise view
        return [view for view in views if isinstance(view, ZoneView)]

    def _try_views(self, zones: Sequence[str]) -> list[ZoneView | ProviderError]:
        if not zones:
            return []
        with ThreadPoolExecutor(len(zones), "gcp-tpu") as pool:
            return list(pool.map(self._try_view, zones))

    def _try_view(self, zone: str) -> ZoneView | ProviderError:
        try:
            return self._view(zone)
        except ProviderError as error:
            return error

    def _view(self, zone: str) -> ZoneView:
        fleet, parent = self._names.fleet, self._parent(zone)
        nodes = [node for node in self._pages("list_nodes", parent, "nodes") if gcp_slice.is_ours(node.labels, fleet)]
        queued = [
            each
            for each in self._pages("list_queued_resources", parent, "queued_resources")
            if each.tpu.node_spec and gcp_slice.is_ours(each.tpu.node_spec[0].node.labels, fleet)
        ]
        return ZoneView(
            zone,
            {short_name(node.name): node for node in nodes},
            {short_name(each.name): each for each in queued},
            self._deeds(zone),
        )

    def _deeds(self, zone: str) -> dict[str, list[Deed]]:
        found: dict[str, list[Deed]] = {}
        token = ""
        while True:
            request = {"name": self._parent(zone), "page_size": _PAGE, "page_token": token}
            page = self._call("list_operations", request)
            for each in (gcp_slice.deed(operation, zone) for operation in page.operations):
                if each is not None and each.began_s >= self._clock() - REMEMBERED_S:
                    found.setdefault(each.name, []).append(each)
            token = page.next_page_token
            if not token:
                return {name: deeds for name, deeds in found.items() if self._names.whose(name, zone)}

    def console(self, launch_id: str) -> str:
        hint = "its boot report is at the join desk, its log in Cloud Logging (resource type tpu_worker)"
        raise Unsupported(f"{launch_id} is a slice: Google shows no console of its hosts", hint, cloud="gcp")

    # --- ends --------------------------------------------------------------------------------------------------

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:  # noqa: ARG002
        wanted = set(launch_ids) - {""}
        if not wanted:
            return
        seen: set[str] = set()
        blind: list[ProviderError] = []
        failed: list[ProviderError] = []
        for view in self._try_views(self._zones):
            if isinstance(view, ProviderError):
                blind.append(view)
                continue
            there = self._places(view)
            seen |= set(there)
            failed += [error for name in wanted & set(there) if (error := self._delete(view, there[name]))]
        if wanted - seen:  # unknown counts as done, but only if all could be seen
            failed += blind
        if failed:
            raise failed[0]

    def _places(self, view: ZoneView) -> dict[str, str]:
        """Launch id -> name, of what is there, and of what was created a moment ago and is not listed yet."""
        listed = {node.launch_id: node.instance_id for node in self._listed([view])}
        late: dict[str, str] = {}
        for name, deeds in view.deeds.items():
            whose = self._names.whose(name, view.zone)
            made = any(each.verb == "create" and not each.failure for each in deeds)
            if whose is not None and made and all(each.verb == "create" for each in deeds):
                late[whose[0]] = name
        return {**late, **listed}

    def _delete(self, view: ZoneView, name: str) -> ProviderError | None:
        """With its queued resource, if it has one: that owns the node. What is being deleted is left to it."""
        node, queued = view.nodes.get(name), view.queued.get(name)
        leaving = "DELETING" in (node.state.name if node else "", queued.state.state.name if queued else "")
        is_queued = queued is not None or any(each.kind == "queuedResources" for each in view.deeds.get(name, ()))
        try:
            if not leaving and is_queued:
                full = f"{self._parent(view.zone)}/queuedResources/{name}"
                self._call("delete_queued_resource", {"name": full, "force": True})
            elif not leaving:
                self._call("delete_node", {"name": f"{self._parent(view.zone)}/nodes/{name}"})
        except NotFound:
            return None
        except ProviderError as error:  # the others are ended all the same
            return error
        return None

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        wanted, deadline_s = set(launch_ids), self._clock() + timeout_s
        while True:
            left = sorted(name for view in self._views() for name in self._still_there(view) if name in wanted)
            if not left or self._clock() >= deadline_s:
                return left
            self._sleep(WAIT_POLL_S)

    def _still_there(self, view: ZoneView) -> set[str]:
        """What is listed, and what is not listed yet but there: one that vanished is neither."""
        listed = {node.launch_id for node in self._listed([view])}
        late = {launch_id: name for launch_id, name in self._places(view).items() if launch_id not in listed}
        parent = self._parent(view.zone)
        return listed | {
            launch_id
            for launch_id, name in late.items()
            if self._get("get_node", f"{parent}/nodes/{name}")
            or self._get("get_queued_resource", f"{parent}/queuedResources/{name}")
        }

    # --- debris ------------------------------------------------------------------------------------------------

    def list_debris(self) -> Sequence[str]:
        """Slices and requests that have ended and that nobody has deleted: Google keeps them, and counts them."""
        return sorted(f"zones/{view.zone}/tpus/{name}" for view in self._views() for name in self._ended(view))

    def delete_debris(self, names: Iterable[str]) -> None:
        """Only what is debris of this fleet at this moment, whatever is asked for."""
        wanted = set(names)
        for view in self._views():
            for name in self._ended(view):
                if f"zones/{view.zone}/tpus/{name}" in wanted and (error := self._delete(view, name)):
                    raise error

    def _ended(self, view: ZoneView) -> list[str]:
        return [node.instance_id for node in self._listed([view]) if node.state is CloudState.GONE]

    # --- single calls ------------------------------------------------------------------------------------------

    def _check(self, zone: str, instance_type: str) -> Check:
        kind, runtime = gcp_slice.accelerator_type(instance_type), gcp_slice.runtime_of(instance_type, self.settings)
        label = f"gcp {instance_type} in {zone}"

        def look() -> Check:
            self._call("get_accelerator_type", {"name": f"{self._parent(zone)}/acceleratorTypes/{kind}"})
            self._call("get_runtime_version", {"name": f"{self._parent(zone)}/runtimeVersions/{runtime}"})
            return Check(label, True, f"offered, with {runtime}")

        fix = (
            f"gcloud compute tpus accelerator-types list --zone={zone}; gcloud compute tpus versions list --zone={zone}"
        )
        return answered(label, look, fix)

    def _parent(self, zone: str) -> str:
        return f"projects/{self.settings.project}/locations/{zone}"

    def _call(self, method: str, request: Mapping[str, Any], *, launching: bool = False) -> Any:
        return self._api.tpu(method, request, launching=launching)

    def _get(self, method: str, name: str) -> Any:
        try:
            return self._call(method, {"name": name})
        except NotFound:
            return None

    def _pages(self, method: str, parent: str, kind: str) -> list[Any]:
        found: list[Any] = []
        token = ""
        while True:
            page = self._call(method, {"parent": parent, "page_size": _PAGE, "page_token": token})
            found += getattr(page, kind)
            token = page.next_page_token
            if not token:
                return found
