"""AWS: EC2 instances, one a launch, spot or on-demand, in every region of the settings.

Here are the calls; what is asked for is in aws_requests.py, what the answers mean in aws_listing.py and aws_errors.py.
Nothing is kept between starts: what exists is what carries the fleet's tag. In memory is only where each launch id was
seen, so that none is bought twice, and a node can be ended before it is listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tradewind.autoscaler.providers.aws_clients import Clients, SdkClients, in_each
from tradewind.autoscaler.providers.aws_debris import GROUP, delete_debris_in, list_debris_in
from tradewind.autoscaler.providers.aws_errors import translated
from tradewind.autoscaler.providers.aws_groups import Groups
from tradewind.autoscaler.providers.aws_listing import SpotStatus, node_of
from tradewind.autoscaler.providers.aws_preflight import Ground, check_account
from tradewind.autoscaler.providers.aws_requests import TAG_FLEET, TAG_LAUNCH_ID, run_arguments
from tradewind.autoscaler.providers.aws_settings import CLOUD, AwsSettings
from tradewind.autoscaler.providers.base import Check, CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.errors import AmbiguousOutcome, Conflict, NotFound, ProviderError, Transient, Unsupported
from tradewind.model import EndReason, Market, Offer

YOUNG_S = 600.0  # for so long, EC2 may not know an instance that it has just made
POLL_S = 5.0
_PAGE = 1000
_FILTER_VALUES = 200  # EC2 takes no more in one filter
# Spot requests of which something is to be learnt: a notice runs, or the end had a reason.
_TELLING = ("marked-for-termination", "marked-for-stop", "instance-terminated-*", "instance-stopped-*")
_MISMATCH = "IdempotentParameterMismatch"


@dataclass(frozen=True, slots=True)
class _Seen:
    """Where a launch id went. Without an instance id, its answer has not come (yet)."""

    market: Market
    at_s: float
    instance_id: str = ""
    listed: bool = False


class AwsProvider:
    """`user_data(spec)` must give the same text for the same spec, or EC2 refuses a repeated launch."""

    name = CLOUD

    def __init__(
        self,
        settings: AwsSettings,
        user_data: Callable[[LaunchSpec], str],
        *,
        offers: Iterable[Offer] = (),  # what may be bought, for the preflight
        clients: Clients | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self._user_data, self._offers = user_data, tuple(offers)
        self._clients = clients or SdkClients(settings.endpoint_url)
        self._clock, self._sleep = clock, sleep
        self._seen: dict[str, _Seen] = {}
        self._regions = [region.name for region in settings.regions]
        self._groups = Groups(settings, self._ec2)

    def preflight(self) -> Sequence[Check]:
        return check_account(Ground(self.settings, self._offers, self._clients))

    # --- launch ------------------------------------------------------------------------------------------------

    def launch(self, spec: LaunchSpec) -> CloudNode:
        arguments = run_arguments(spec, self.settings, self._user_data(spec))
        market = spec.offer.market
        seen = self._seen.setdefault(spec.launch_id, _Seen(market, self._clock()))
        if seen.market != market:
            raise Conflict(f"launch id {spec.launch_id} was used for {seen.market}, now for {market}", cloud=CLOUD)
        try:
            self._groups.ensure(spec)
            with translated("RunInstances", market.region, changes=True):
                answer = self._ec2(market.region).run_instances(**arguments)
        except AmbiguousOutcome:
            raise
        except ProviderError as error:
            return self._refused(spec, error)
        node = node_of(answer["Instances"][0], market.region)
        self._seen[spec.launch_id] = _Seen(market, self._clock(), node.instance_id)
        return node

    def _refused(self, spec: LaunchSpec, error: ProviderError) -> CloudNode:
        """The token was used with other arguments (a setting was changed meanwhile): the node is there, or will be."""
        if error.code != _MISMATCH:
            self._groups.check(spec, error)
            if not error.retryable:
                self._seen.pop(spec.launch_id, None)
            raise error
        region = spec.offer.market.region
        found = [node for node in self._list_region(region, [spec.launch_id]) if node.state is not CloudState.GONE]
        if not found:
            message = f"{spec.launch_id} was launched before with other settings, and is not listed yet"
            raise AmbiguousOutcome(message, cloud=CLOUD, code=error.code) from error
        if found[0].offer.market != spec.offer.market:
            raise error
        return found[0]

    # --- listing -----------------------------------------------------------------------------------------------

    def list_nodes(self) -> Sequence[CloudNode]:
        """PartialListing where only some regions answer."""
        asked_at_s = self._clock()
        answers, errors = in_each({name: partial(self._list_region, name) for name in self._regions})
        nodes = [node for found in answers.values() for node in found]
        self._remember(nodes, asked_at_s, whole=not errors)
        if errors and not answers:
            raise next(iter(errors.values()))
        if errors:
            message = "; ".join(error.message for error in errors.values())
            raise PartialListing(message, cloud=CLOUD, nodes=nodes, blind=frozenset(errors))
        return nodes

    def _list_region(self, region: str, launch_ids: Sequence[str] = ()) -> list[CloudNode]:
        filters = [{"Name": f"tag:{TAG_FLEET}", "Values": [self.settings.fleet]}]
        if launch_ids:
            filters.append({"Name": f"tag:{TAG_LAUNCH_ID}", "Values": list(launch_ids)})
        reservations = self._pages(region, "describe_instances", "Reservations", filters)
        instances = [instance for each in reservations for instance in each["Instances"]]
        statuses = self._spot_statuses(region, instances)
        return [node_of(each, region, statuses.get(each.get("SpotInstanceRequestId", ""))) for each in instances]

    def _spot_statuses(self, region: str, instances: Sequence[Any]) -> dict[str, SpotStatus]:
        if not any(instance.get("InstanceLifecycle") == "spot" for instance in instances):
            return {}
        filters = [
            {"Name": f"tag:{TAG_FLEET}", "Values": [self.settings.fleet]},
            {"Name": "status-code", "Values": list(_TELLING)},
        ]
        requests = self._pages(region, "describe_spot_instance_requests", "SpotInstanceRequests", filters)
        return {each["SpotInstanceRequestId"]: SpotStatus.of(each) for each in requests}

    def _pages(self, region: str, call: str, key: str, filters: Sequence[Any]) -> list[Any]:
        client = self._ec2(region)
        with translated(client.meta.method_to_api_mapping[call], region):
            pages = client.get_paginator(call).paginate(Filters=filters, PaginationConfig={"PageSize": _PAGE})
            return [item for page in pages for item in page[key]]

    def _remember(self, nodes: Sequence[CloudNode], asked_at_s: float, *, whole: bool) -> None:
        """What is listed, and what is too young for it; after a whole listing the rest is forgotten."""
        listed = {node.launch_id: _Seen(node.offer.market, asked_at_s, node.instance_id, listed=True) for node in nodes}
        before = dict(self._seen)  # a copy: launches come from other threads
        kept = {name: seen for name, seen in before.items() if not whole or self._may_be_listed_late(seen)}
        self._seen = {**kept, **listed}

    def _may_be_listed_late(self, seen: _Seen) -> bool:
        return not seen.listed and seen.at_s > self._clock() - YOUNG_S

    def console(self, launch_id: str) -> str:
        """EC2 posts it some minutes late by itself; `Latest` asks a running Nitro instance, older types refuse it."""
        seen = self._seen.get(launch_id)
        if seen is None or not seen.instance_id:
            self.list_nodes()
            seen = self._seen.get(launch_id)
        if seen is None or not seen.instance_id:
            raise NotFound(f"EC2 has no instance of {launch_id} on record", cloud=CLOUD)
        try:
            return self._console(seen, Latest=True)
        except (Unsupported, Conflict):  # of an older type, or not running
            return self._console(seen)

    def _console(self, seen: _Seen, **how: bool) -> str:
        region = seen.market.region
        with translated("GetConsoleOutput", region):
            answer = self._ec2(region).get_console_output(InstanceId=seen.instance_id, **how)
        return str(answer.get("Output", ""))

    # --- ends --------------------------------------------------------------------------------------------------

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:
        """Ends what can be reached, then raises for the first region that could not."""
        del reason  # EC2 keeps its own
        wanted = {launch_id for launch_id in launch_ids if launch_id}
        known = {name: seen for name in wanted if (seen := self._seen.get(name)) is not None and seen.instance_id}
        found, errors = self._find(sorted(wanted - set(known)))
        by_region: dict[str, list[str]] = {}
        for seen in {**known, **found}.values():
            by_region.setdefault(seen.market.region, []).append(seen.instance_id)
        _, failed = in_each({name: partial(self._terminate_in, name, ids) for name, ids in by_region.items()})
        if problems := [*failed.values(), *errors]:
            raise problems[0]

    def _find(self, launch_ids: Sequence[str]) -> tuple[dict[str, _Seen], list[ProviderError]]:
        """Living nodes by launch id, looked for in every region; errors only while some are not found."""
        found: dict[str, _Seen] = {}
        problems: list[ProviderError] = []
        for start in range(0, len(launch_ids), _FILTER_VALUES):
            chunk = launch_ids[start : start + _FILTER_VALUES]
            answers, errors = in_each({name: partial(self._list_region, name, chunk) for name in self._regions})
            living = [n for nodes in answers.values() for n in nodes if n.state is not CloudState.GONE]
            found.update((n.launch_id, _Seen(n.offer.market, self._clock(), n.instance_id)) for n in living)
            if any(name not in found for name in chunk):
                problems += errors.values()
        return found, problems

    def _terminate_in(self, region: str, instance_ids: Sequence[str]) -> None:
        try:
            with translated("TerminateInstances", region):
                self._ec2(region).terminate_instances(InstanceIds=list(instance_ids))
        except NotFound as error:
            if len(instance_ids) > 1:  # one unknown id, and EC2 ends none of them
                _, failed = in_each({name: partial(self._terminate_in, region, [name]) for name in instance_ids})
                if failed:
                    raise next(iter(failed.values())) from error
            elif self._is_young(instance_ids[0]):
                message = f"{region}: EC2 does not know {instance_ids[0]} yet"
                raise Transient(message, cloud=CLOUD, code=error.code) from error

    def _is_young(self, instance_id: str) -> bool:
        seen = dict(self._seen).values()
        return any(each.instance_id == instance_id and self._may_be_listed_late(each) for each in seen)

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        """What cannot be listed counts as still there."""
        wanted, deadline_s = sorted(set(launch_ids)), self._clock() + timeout_s
        while True:
            found, problems = self._find(wanted)
            left = [name for name in wanted if name in found or problems]
            if not left or self._clock() >= deadline_s:
                return left
            self._sleep(min(POLL_S, max(0.1, deadline_s - self._clock())))

    # --- debris ------------------------------------------------------------------------------------------------

    def list_debris(self) -> Sequence[str]:
        """Disks, network interfaces and placement groups with the fleet's tag that no living node accounts for:
        "region/id"."""
        living = [node for node in self.list_nodes() if node.state is not CloudState.GONE]
        fleet = self.settings.fleet
        answers, errors = in_each(
            {name: partial(list_debris_in, self._ec2(name), name, fleet, living) for name in self._regions}
        )
        if errors:
            raise next(iter(errors.values()))
        return [name for found in answers.values() for name in found]

    def delete_debris(self, names: Iterable[str]) -> None:
        """Only what is debris of this fleet at this moment. Groups last: they cost nothing, and one may not be allowed
        to delete them."""
        for name in sorted(set(names) & set(self.list_debris()), key=lambda each: (f"/{GROUP}" in each, each)):
            region, _, resource = name.partition("/")
            if resource.startswith(GROUP):
                self._groups.delete(region, resource.removeprefix(GROUP))
            else:
                delete_debris_in(self._ec2(region), region, resource)

    def _ec2(self, region: str) -> Any:
        return self._clients.get("ec2", region)
