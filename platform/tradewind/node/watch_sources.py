"""Where each cloud tells a machine about its end: AWS (IMDSv2), Google (metadata server), Azure (Scheduled Events).

An edge of watch.py. Each class is one machine's view; nothing here needs credentials, only to be on that machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from tradewind.errors import Transient
from tradewind.node.watch import Notice

TIMEOUT_S = 5.0
GCP_NOTICE_S = 30.0
GCP_MAINTENANCE_S = 60.0
GCP_GPU_MAINTENANCE_S = 3600.0  # machines with GPUs are told an hour before
_GPU_MACHINES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
_TOKEN_TTL_S = 21600  # the most that AWS gives
_AZURE_VERSION = "2020-07-01"
# A Freeze is a pause of some seconds, after which everything goes on: no reason to leave.
_AZURE_KINDS = {"Preempt": "preempt", "Terminate": "terminate", "Redeploy": "redeploy", "Reboot": "reboot"}


class Metadata:
    """HTTP to the metadata service. Never through a proxy: what it tells is of this machine alone."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._client = httpx.Client(trust_env=False, timeout=TIMEOUT_S)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], *, body: Any = None, patience_s: float = 0.0
    ) -> httpx.Response:
        try:
            answer = self._client.request(
                method, f"{self._url}{path}", headers=dict(headers), json=body, timeout=TIMEOUT_S + patience_s
            )
        except httpx.HTTPError as error:
            raise Transient(f"the metadata service at {self._url} does not answer: {error!r}") from error
        if answer.status_code >= 500 or answer.status_code == 429:
            raise Transient(f"the metadata service at {self._url} answers {path} with {answer.status_code}")
        return answer


@contextmanager
def understood(cloud: str) -> Iterator[None]:
    """An answer that makes no sense is a bad moment of the service, and no reason to stop watching."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Transient(f"the metadata service gives an answer that makes no sense: {error!r}", cloud=cloud) from error


class AwsNotices:
    """Two minutes before a spot interruption; a rebalance recommendation often comes earlier, and sometimes alone."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._metadata, self._clock = Metadata(url), clock
        self._token, self._renew_at_s = "", 0.0

    def wait(self, timeout_s: float) -> Sequence[Notice]:
        del timeout_s  # there is no way to wait
        with understood("aws"):
            return self._notices()

    def _notices(self) -> Sequence[Notice]:
        found = []
        if action := self._get("spot/instance-action"):
            deadline_s = datetime.fromisoformat(action["time"]).timestamp()
            found.append(Notice("preempt", deadline_s, f"AWS takes this spot instance back ({action['action']})"))
        if warning := self._get("events/recommendations/rebalance"):
            found.append(Notice("rebalance", None, f"AWS sees a raised risk since {warning['noticeTime']}"))
        return found

    def acknowledge(self, notice: Notice) -> None:
        del notice

    def _get(self, name: str) -> Mapping[str, str] | None:
        answer = self._with_token(name)
        if answer.status_code == 401:  # the token is no longer valid
            self._renew_at_s = 0.0
            answer = self._with_token(name)
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise Transient(f"the metadata service answers {name} with {answer.status_code}", cloud="aws")
        found: Mapping[str, str] = answer.json()
        return found

    def _with_token(self, name: str) -> httpx.Response:
        if self._clock() >= self._renew_at_s:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_TTL_S)}
            told = self._metadata.ask("PUT", "/latest/api/token", ttl)
            if told.status_code != 200:
                raise Transient(f"the metadata service gives no token: {told.status_code}", cloud="aws")
            self._token, self._renew_at_s = told.text, self._clock() + _TOKEN_TTL_S / 2
        return self._metadata.ask("GET", f"/latest/meta-data/{name}", {"X-aws-ec2-metadata-token": self._token})


class GcpNotices:
    """Machines and hosts of TPU slices. One request waits for any change of what the server knows of the instance.
    Google tells that the time has come, not when it is over: the deadline counts from when it was first seen."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._metadata, self._clock = Metadata(url), clock
        self._etag = ""
        self._seen_at_s: dict[str, float] = {}

    def wait(self, timeout_s: float) -> Sequence[Notice]:
        with understood("gcp"):
            return self._notices(self._instance(timeout_s))

    def _notices(self, instance: Mapping[str, Any]) -> Sequence[Notice]:
        now_s, found = self._clock(), []
        if str(instance.get("preempted", "")).upper() == "TRUE":
            at_s = self._seen_at_s.setdefault("preempt", now_s)
            found.append(Notice("preempt", at_s + GCP_NOTICE_S, "Google takes this spot machine back"))
        event = str(instance.get("maintenanceEvent", "NONE"))
        if event.startswith("TERMINATE"):  # the other one, MIGRATE, moves the machine while it runs
            at_s = self._seen_at_s.setdefault(event, now_s)
            machine = str(instance.get("machineType", "")).rpartition("/")[2]
            ahead_s = GCP_GPU_MAINTENANCE_S if machine.startswith(_GPU_MACHINES) else GCP_MAINTENANCE_S
            found.append(Notice("maintenance", at_s + ahead_s, f"Google works on this machine's host ({event})"))
        return found

    def acknowledge(self, notice: Notice) -> None:
        del notice

    def _instance(self, timeout_s: float) -> Mapping[str, Any]:
        """The first answer comes at once; later ones when something has changed."""
        waiting = f"&wait_for_change=true&timeout_sec={timeout_s:.0f}&last_etag={self._etag}" if self._etag else ""
        path = f"/computeMetadata/v1/instance/?recursive=true&alt=json{waiting}"
        answer = self._metadata.ask("GET", path, {"Metadata-Flavor": "Google"}, patience_s=timeout_s)
        if answer.status_code != 200:
            raise Transient(f"the metadata service answers with {answer.status_code}", cloud="gcp")
        found: Mapping[str, Any] = answer.json()
        self._etag = answer.headers.get("etag", "")
        return found


class AzureNotices:
    """Scheduled Events: at least 30 s before an eviction, minutes before the others. What is acknowledged happens at
    once. The first request ever turns the service on for this machine, which may take two minutes."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._metadata, self._clock = Metadata(url), clock
        self._name = ""
        self._started_at_s: dict[str, float] = {}

    def wait(self, timeout_s: float) -> Sequence[Notice]:
        del timeout_s  # there is no way to wait
        with understood("azure"):
            return self._notices()

    def _notices(self) -> Sequence[Notice]:
        if not self._name:
            self._name = self._ask("GET", "/metadata/instance/compute/name", "format=text").text.strip()
        events = self._ask("GET", "/metadata/scheduledevents").json().get("Events", ())
        mine = [event for event in events if self._name in event.get("Resources", ())]
        return [self._notice(event) for event in mine if event.get("EventType") in _AZURE_KINDS]

    def _notice(self, event: Mapping[str, Any]) -> Notice:
        """An event that has started has no time any more: it is now."""
        when = event.get("NotBefore") or ""
        started_s = self._started_at_s.setdefault(event["EventId"], self._clock()) if not when else 0.0
        deadline_s = parsedate_to_datetime(when).replace(tzinfo=UTC).timestamp() if when else started_s
        words = event.get("Description") or event.get("EventSource") or "Scheduled Events"
        return Notice(_AZURE_KINDS[event["EventType"]], deadline_s, f"Azure: {words}", event["EventId"])

    def acknowledge(self, notice: Notice) -> None:
        self._ask("POST", "/metadata/scheduledevents", body={"StartRequests": [{"EventId": notice.id}]})

    def _ask(self, method: str, path: str, more: str = "", body: Any = None) -> httpx.Response:
        query = "&".join(filter(None, [f"api-version={_AZURE_VERSION}", more]))
        answer = self._metadata.ask(method, f"{path}?{query}", {"Metadata": "true"}, body=body)
        if answer.status_code != 200:
            raise Transient(f"the metadata service answers {path} with {answer.status_code}", cloud="azure")
        return answer
