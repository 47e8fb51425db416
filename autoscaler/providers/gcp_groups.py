"""Compact placement policies of Compute Engine: made with the first machine that names them, deleted when no machine
has them. They are resources of a region, and have no labels: their name says whose they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from tradewind.autoscaler.placement import is_group_of
from tradewind.autoscaler.providers import gcp_errors
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.gcp_api import GcpApi
from tradewind.autoscaler.providers.gcp_settings import poll_times_s
from tradewind.autoscaler.providers.groups import about_the_group, if_allowed
from tradewind.errors import Conflict, NotFound, ProviderError, Transient

_CLIENT = "ResourcePoliciesClient"
_IN_USE = "resourceInUseByAnotherResource"
Policy = tuple[str, str]  # region and name


class Groups:
    """Remembers which it has seen, so that one gang asks for its group once; one at a time, since a policy that is just
    being made cannot be used yet."""

    def __init__(self, api: GcpApi, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._api, self._clock, self._sleep = api, clock, sleep
        self._made: set[Policy] = set()
        self._lock = threading.Lock()

    def ensure(self, spec: LaunchSpec) -> None:
        """Made by somebody else in the same moment is just as well."""
        policy = (spec.offer.market.region, spec.placement_group)
        if not spec.placement_group:
            return
        with self._lock, about_the_group():
            if policy not in self._made:
                self._make(policy, spec.fleet)
                self._made.add(policy)

    def _make(self, policy: Policy, fleet: str) -> None:
        """Without a maximal distance: as near as there is room."""
        region, name = policy
        body = {
            "name": name,
            "description": f"Tradewind fleet {fleet}",
            "group_placement_policy": {"collocation": "COLLOCATED"},
        }
        try:
            operation = self._api.compute(_CLIENT, "insert_unary", region=region, resource_policy_resource=body)
        except Conflict:
            return
        deadline_s, polls_s = self._clock() + self._api.settings.answer_wait_s, poll_times_s()
        while operation.status.name != "DONE":
            if self._clock() >= deadline_s:
                raise Transient(f"placement policy {name} is not ready yet", cloud=gcp_errors.CLOUD)
            self._sleep(next(polls_s))
            operation = self._api.compute("RegionOperationsClient", "get", region=region, operation=operation.name)
        refused = gcp_errors.of_operation((each.code, each.message) for each in operation.error.errors)
        if refused is not None:
            raise refused

    def check(self, spec: LaunchSpec, error: ProviderError) -> None:
        """A launch was refused: if its policy was swept up before, the same launch may be sent again."""
        name = spec.placement_group
        if name and f"resourcePolicies/{name}" in error.message and "not found" in error.message:
            self._made.discard((spec.offer.market.region, name))
            raise Transient(error.message, cloud=gcp_errors.CLOUD, code=error.code) from error

    def empty(self, fleet: str, used: Iterable[str]) -> list[Policy]:
        """Of this fleet in its regions, and no machine has them. `used` are links, as machines tell them."""
        taken = {tuple(link.rsplit("/", 3)[i] for i in (1, 3)) for link in used}
        listed = if_allowed(self._listed)
        return [policy for policy in listed if is_group_of(fleet, policy[1]) and policy not in taken]

    def _listed(self) -> list[Policy]:
        """A region that does not answer is an error: what is there is not known."""
        found: list[Policy] = []
        for page in self._api.pages(_CLIENT, "aggregated_list"):
            silent = {link.rpartition("/")[2] for link in page.unreachables} & set(self._api.settings.regions)
            for scope, listed in page.items.items():
                region = scope.rpartition("/")[2]
                if region in self._api.settings.regions:
                    silent |= {region} if listed.warning.code == "UNREACHABLE" else set()
                    found += [(region, policy.name) for policy in listed.resource_policies]
            if silent:
                raise Transient(f"no answer from {', '.join(sorted(silent))}", cloud=gcp_errors.CLOUD)
        return found

    def delete(self, policy: Policy) -> None:
        """One that is gone, or has got a machine meanwhile, is no debris any more."""
        self._made.discard(policy)
        try:
            self._api.compute(_CLIENT, "delete_unary", region=policy[0], resource_policy=policy[1])
        except NotFound:
            return
        except ProviderError as error:
            if error.code != _IN_USE:
                raise
