"""The calls to Google Cloud, through its own SDK, with its errors as ours. Acts; knows no policy.

The SDK is imported by the first call: it takes seconds. Its retries are off: a launch must not be repeated behind our
back, and the loop asks again by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.autoscaler.providers import gcp_errors
from tradewind.autoscaler.providers.gcp_settings import SCOPE, GcpSettings, region_of
from tradewind.errors import Transient

_PAGE = 500  # the most that Google gives
_RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"


@dataclass(frozen=True, slots=True)
class Found:
    """A listing, and the zones that did not answer."""

    items: Sequence[Any]
    blind_zones: frozenset[str] = frozenset()

    def whole(self, regions: Iterable[str]) -> Sequence[Any]:
        """The items, if every zone of these regions has answered. A short list would be taken for lost nodes."""
        if blind := self.blind_regions(regions):
            raise Transient(f"no answer from {', '.join(sorted(blind))}", cloud=gcp_errors.CLOUD)
        return self.items

    def blind_regions(self, regions: Iterable[str]) -> frozenset[str]:
        return frozenset(map(region_of, self.blind_zones)) & frozenset(regions)


class GcpApi:
    """One project's clients, each made when it is first used. May be shared between threads."""

    def __init__(self, settings: GcpSettings, credentials: Any = None) -> None:
        self.settings = settings
        self._credentials = credentials
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, name: str) -> Any:
        """A client of compute_v1 by its class's name, or "TpuClient"."""
        with self._lock:
            if name not in self._clients:
                self._clients[name] = self._make(name)
            return self._clients[name]

    def call(self, method: Callable[..., Any], request: Any, *, launching: bool = False) -> Any:
        try:
            return method(request=request, retry=None, timeout=self.settings.timeout_s)
        except Exception as error:
            raise gcp_errors.of_exception(error, launching=launching) from error

    def compute(self, client: str, method: str, *, launching: bool = False, **request: Any) -> Any:
        """One call to Compute Engine; every one of its requests names the project."""
        bound = getattr(self._client(client), method)
        return self.call(bound, {"project": self.settings.project, **request}, launching=launching)

    def tpu(self, method: str, request: Mapping[str, Any], *, launching: bool = False) -> Any:
        """One call to the TPU API. A listing gives one page (the SDK's pager has the page's fields)."""
        return self.call(getattr(self._client("TpuClient"), method), request, launching=launching)

    def pages(self, client: str, method: str, **request: Any) -> Iterator[Any]:
        """The pages of a listing of Compute Engine."""
        pager = self.compute(client, method, max_results=_PAGE, **request)
        pages = iter(pager.pages)
        while True:
            try:
                page = next(pages, None)
            except Exception as error:
                raise gcp_errors.of_exception(error) from error
            if page is None:
                return
            yield page

    def everywhere(self, client: str, kind: str, label_filter: str) -> Found:
        """An aggregated listing: all zones of our regions, for other cells of the fleet are in others. One dead zone
        does not hide the others, but is told."""
        items: list[Any] = []
        blind: set[str] = set()
        for page in self.pages(client, "aggregated_list", filter=label_filter):
            blind.update(link.rpartition("/")[2] for link in page.unreachables)
            for scope, found in page.items.items():
                zone = scope.rpartition("/")[2]
                if region_of(zone) in self.settings.regions:
                    items.extend(getattr(found, kind))
                if found.warning.code == "UNREACHABLE":
                    blind.add(zone)
        return Found(items, frozenset(blind))

    def granted(self, permissions: Sequence[str]) -> set[str]:
        """Which of these permissions we have in the project."""
        from google.auth.transport.requests import AuthorizedSession

        url = (
            f"{self.settings.endpoint_url or _RESOURCE_MANAGER}/v1/projects/{self.settings.project}:testIamPermissions"
        )
        try:
            session = AuthorizedSession(self._scoped_credentials())
            answer = session.post(url, json={"permissions": list(permissions)}, timeout=self.settings.timeout_s)
            if answer.status_code != 200:
                raise gcp_errors.refusal("", answer.text, answer.status_code)
            return set(answer.json().get("permissions", ()))
        except Exception as error:
            raise gcp_errors.of_exception(error) from error

    def _client(self, name: str) -> Any:
        try:
            return self.client(name)
        except Exception as error:  # no credentials to be found
            raise gcp_errors.of_exception(error) from error

    def _make(self, name: str) -> Any:
        if name == "TpuClient":
            from google.cloud.tpu_v2 import TpuClient as client_class
        else:
            from google.cloud import compute_v1

            client_class = getattr(compute_v1, name)
        options = {"api_endpoint": self.settings.endpoint_url} if self.settings.endpoint_url else None
        return client_class(credentials=self._credentials, transport="rest", client_options=options)

    def _scoped_credentials(self) -> Any:
        import google.auth

        if self._credentials is not None:
            scope = getattr(self._credentials, "with_scopes", None)
            return scope([SCOPE]) if scope else self._credentials
        return google.auth.default(scopes=[SCOPE])[0]
