"""The calls to Azure, through its own SDK, with its errors as ours. Acts; knows no policy.

The SDK is imported by the first call: it takes a second. Its retries are off: a launch must not be repeated behind our
back, and the loop asks again by itself. Its pollers are not used: what becomes of a machine is read from the machine,
which survives a restart of the controller. Answers are given as plain JSON.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from tradewind.autoscaler.providers import azure_errors
from tradewind.autoscaler.providers.azure_settings import CLOUD, AzureSettings
from tradewind.errors import Transient

_MANAGEMENT = "https://management.azure.com"
JSON = dict[str, Any]


class AzureApi:
    """One subscription's clients, made when first used. May be shared between threads."""

    def __init__(self, settings: AzureSettings, credential: Any = None) -> None:
        self.settings = settings
        self._credential = credential
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    # --- machines, interfaces, disks ---------------------------------------------------------------------------

    def get_vm(self, name: str) -> JSON:
        group = self.settings.resource_group
        return _plain(self._call(lambda: self._compute.virtual_machines.get(group, name, expand="instanceView")))

    def create_vm(self, name: str, body: Mapping[str, Any]) -> JSON:
        """Never changes one that is there: then it is a Conflict (If-None-Match: *)."""
        from azure.core import MatchConditions

        group = self.settings.resource_group
        hands = {"etag": "*", "match_condition": MatchConditions.IfMissing, "polling": False}
        return _plain(
            self._call(
                lambda: self._compute.virtual_machines.begin_create_or_update(group, name, body, **hands).result(),
                launching=True,
            )
        )

    def delete_vm(self, name: str) -> bool:
        """Accepted; False: there is none. By force: it was drained, or is not worth waiting for."""
        group, vms = self.settings.resource_group, self._compute.virtual_machines
        hands = {"force_deletion": True, "polling": False, "cls": _status_code}
        return bool(self._call(lambda: vms.begin_delete(group, name, **hands).result()) != 204)

    def console(self, name: str) -> str:
        """The serial log that boot diagnostics keep. It lies in a blob whose link is its own permission: no token is
        sent there."""
        import httpx

        group, vms = self.settings.resource_group, self._compute.virtual_machines
        link = self._call(lambda: vms.retrieve_boot_diagnostics_data(group, name)).serial_console_log_blob_uri
        trust: Any = ssl.create_default_context(cafile=self.settings.ca_file or None)
        try:
            answer = httpx.get(link or "", verify=trust, timeout=self.settings.timeout_s)
        except httpx.HTTPError as error:
            raise Transient(f"the serial log of {name} does not come: {error!r}", cloud=CLOUD) from error
        return answer.text if answer.status_code == 200 else ""  # nothing is written yet

    def list_vms(self) -> Iterator[JSON]:
        return self._all(lambda: self._compute.virtual_machines.list(self.settings.resource_group))

    def list_statuses(self) -> Iterator[JSON]:
        """Instance views, which the listing of a group does not have, of every machine in the subscription."""
        return self._all(lambda: self._compute.virtual_machines.list_all(status_only="true"))

    def put_nic(self, name: str, body: Mapping[str, Any]) -> JSON:
        group, nics = self.settings.resource_group, self._network.network_interfaces
        return _plain(self._call(lambda: nics.begin_create_or_update(group, name, body, polling=False).result()))

    def delete_nic(self, name: str) -> None:
        group, nics = self.settings.resource_group, self._network.network_interfaces
        self._call(lambda: nics.begin_delete(group, name, polling=False))

    def list_nics(self) -> Iterator[JSON]:
        return self._all(lambda: self._network.network_interfaces.list(self.settings.resource_group))

    def delete_disk(self, name: str) -> None:
        group, disks = self.settings.resource_group, self._compute.disks
        self._call(lambda: disks.begin_delete(group, name, polling=False))

    def list_disks(self) -> Iterator[JSON]:
        return self._all(lambda: self._compute.disks.list_by_resource_group(self.settings.resource_group))

    def put_group(self, name: str, body: Mapping[str, Any]) -> JSON:
        group, groups = self.settings.resource_group, self._compute.proximity_placement_groups
        return _plain(self._call(lambda: groups.create_or_update(group, name, body)))

    def delete_group(self, name: str) -> None:
        group, groups = self.settings.resource_group, self._compute.proximity_placement_groups
        self._call(lambda: groups.delete(group, name))

    def list_groups(self) -> Iterator[JSON]:
        groups = self._compute.proximity_placement_groups
        return self._all(lambda: groups.list_by_resource_group(self.settings.resource_group))

    # --- what a preflight reads --------------------------------------------------------------------------------

    def list_usage(self, region: str) -> Iterator[JSON]:
        return self._all(lambda: self._compute.usage.list(region))

    def list_skus(self, region: str) -> Iterator[JSON]:
        return self._all(lambda: self._compute.resource_skus.list(filter=f"location eq '{region}'"))

    def list_images(self, region: str, publisher: str, offer: str, sku: str) -> list[JSON]:
        images = self._compute.virtual_machine_images
        return [_plain(each) for each in self._call(lambda: images.list(region, publisher, offer, sku))]

    def get(self, path: str, api_version: str, **query: str) -> JSON:
        """Anything of Azure Resource Manager by its id."""
        return self._get(f"{self._url}{path}?{urlencode({**query, 'api-version': api_version})}")

    def pages(self, path: str, api_version: str, **query: str) -> Iterator[JSON]:
        """The items of a listing that the SDK's clients do not have."""
        page = self.get(path, api_version, **query)
        while True:
            yield from page.get("value", ())
            if not page.get("nextLink"):
                return
            page = self._get(page["nextLink"])

    # --- inside ------------------------------------------------------------------------------------------------

    def _get(self, url: str) -> JSON:
        from azure.core.rest import HttpRequest

        answer = self._call(lambda: self._compute.send_request(HttpRequest("GET", url)))
        if answer.status_code != 200:
            raise azure_errors.of_answer(self._call(answer.json), answer.status_code)
        found: JSON = answer.json()
        return found

    def _call(self, call: Callable[[], Any], *, launching: bool = False) -> Any:
        try:
            return call()
        except Exception as error:
            raise azure_errors.of_exception(error, launching=launching) from error

    def _all(self, call: Callable[[], Any]) -> Iterator[JSON]:
        items = iter(self._call(call))
        end = object()
        while (item := self._call(lambda: next(items, end))) is not end:
            yield _plain(item)

    @property
    def _url(self) -> str:
        return (self.settings.endpoint_url or _MANAGEMENT).rstrip("/")

    @property
    def _compute(self) -> Any:
        return self._client("ComputeManagementClient")

    @property
    def _network(self) -> Any:
        return self._client("NetworkManagementClient")

    def _client(self, name: str) -> Any:
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self._make(name)
            return self._clients[name]

    def _make(self, name: str) -> Any:
        if name == "ComputeManagementClient":
            from azure.mgmt.compute import ComputeManagementClient as client_class
        else:
            from azure.mgmt.network import NetworkManagementClient as client_class
        if self._credential is None:
            from azure.identity import DefaultAzureCredential

            logging.getLogger("azure.identity").setLevel(logging.ERROR)  # its warning is in the error that it raises
            self._credential = DefaultAzureCredential()
        return client_class(
            self._credential,
            self.settings.subscription,
            base_url=self._url,
            credential_scopes=[f"{self._url}/.default"],
            connection_timeout=self.settings.timeout_s,
            read_timeout=self.settings.timeout_s,
            retry_total=0,
            **({"connection_verify": self.settings.ca_file} if self.settings.ca_file else {}),
        )


def _status_code(answer: Any, *_: Any) -> int:
    return int(answer.http_response.status_code)


def _plain(item: Any) -> JSON:
    found: JSON = item.as_dict()
    return found
