"""Google Cloud as one Provider and PriceSource: machines of Compute Engine (gcp.py) and TPU slices (gcp_tpu.py).

The loop knows one provider for a cloud; a launch goes by what the offer is, everything else to both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tradewind.autoscaler.providers.base import Check, CloudNode, LaunchSpec
from tradewind.autoscaler.providers.deletions import delete_each
from tradewind.autoscaler.providers.gcp import GcpCompute
from tradewind.autoscaler.providers.gcp_settings import GcpSettings
from tradewind.autoscaler.providers.gcp_slice import PREFIX
from tradewind.autoscaler.providers.gcp_tpu import GcpTpu
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.errors import NotFound, ProviderError
from tradewind.model import EndReason, Offer


def is_tpu(offer: Offer) -> bool:
    return offer.market.instance_type.startswith(PREFIX)


class GcpProvider:
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
        known = list(offers)
        slices = [offer for offer in known if is_tpu(offer)]
        machines = [offer for offer in known if not is_tpu(offer)]
        hands = {"credentials": credentials, "clock": clock, "sleep": sleep}
        self._compute = GcpCompute(settings, user_data, offers=machines, **hands)
        self._tpu = GcpTpu(settings, user_data, offers=slices, **hands)
        # A fleet without TPUs needs neither their API nor the rights to use it.
        self._parts: tuple[GcpCompute | GcpTpu, ...] = (self._compute, self._tpu) if slices else (self._compute,)

    def preflight(self) -> Sequence[Check]:
        return [check for part in self._parts for check in part.preflight()]

    def offers(self, now_s: float) -> Sequence[Offer]:
        return [offer for part in self._parts for offer in part.offers(now_s)]

    def launch(self, spec: LaunchSpec) -> CloudNode:
        return (self._tpu if is_tpu(spec.offer) else self._compute).launch(spec)

    def list_nodes(self) -> Sequence[CloudNode]:
        """PartialListing where only some regions answer, for machines or for slices."""
        nodes: list[CloudNode] = []
        partial: list[PartialListing] = []
        for part in self._parts:
            try:
                nodes += part.list_nodes()
            except PartialListing as error:
                nodes += error.nodes
                partial.append(error)
        if partial:
            blind = frozenset(region for error in partial for region in error.blind)
            raise PartialListing(partial[0].message, cloud=self.name, nodes=nodes, blind=blind)
        return nodes

    def console(self, launch_id: str) -> str:
        try:
            return self._compute.console(launch_id)
        except NotFound:
            if len(self._parts) == 1:
                raise
            return self._tpu.console(launch_id)

    def terminate(self, launch_ids: Iterable[str], reason: EndReason = EndReason.TERMINATED) -> None:
        wanted, failed = list(launch_ids), list[ProviderError]()
        for part in self._parts:  # one that does not answer must not keep the other alive
            try:
                part.terminate(wanted, reason)
            except ProviderError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def wait_terminated(self, launch_ids: Iterable[str], timeout_s: float) -> Sequence[str]:
        wanted = list(launch_ids)
        return sorted({name for part in self._parts for name in part.wait_terminated(wanted, timeout_s)})

    def list_debris(self) -> Sequence[str]:
        return [name for part in self._parts for name in part.list_debris()]

    def delete_debris(self, names: Iterable[str]) -> None:
        wanted = list(names)
        delete_each(("what was listed", partial(part.delete_debris, wanted)) for part in self._parts)
