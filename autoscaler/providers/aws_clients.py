"""Clients of the AWS SDK, made when first used: importing it takes a second. Called from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from tradewind.errors import ProviderError

CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 30
T = TypeVar("T")


class Clients(Protocol):
    def get(self, service: str, region: str) -> Any:
        """The SDK's client; the same object for the same arguments."""
        ...


class SdkClients:
    """By the SDK's own ways of finding credentials (environment, profile, instance). It never retries by itself
    unless told: a stock-out is an HTTP 500 and would be repeated in silence, and the loop asks again anyway."""

    def __init__(self, endpoint_url: str = "", session: Any = None, *, attempts: int = 1) -> None:
        self._endpoint_url, self._session, self._attempts = endpoint_url, session, attempts
        self._made: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def get(self, service: str, region: str) -> Any:
        with self._lock:  # making a client is not thread-safe, using it is
            key = (service, region)
            if key not in self._made:
                self._made[key] = self._make(service, region)
            return self._made[key]

    def _make(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config

        if self._session is None:
            self._session = boto3.Session()
        config = Config(
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            user_agent_extra="tradewind",
        )
        endpoint_url = self._endpoint_url or None
        return self._session.client(service, region_name=region, endpoint_url=endpoint_url, config=config)


def in_each(regions: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], dict[str, ProviderError]]:
    """Ask every region at the same time: the answers, and the errors of those that gave none."""
    answers: dict[str, T] = {}
    errors: dict[str, ProviderError] = {}
    with ThreadPoolExecutor(max(1, len(regions)), "aws") as pool:
        asked = {region: pool.submit(ask) for region, ask in regions.items()}
    for region, future in asked.items():
        try:
            answers[region] = future.result()
        except ProviderError as error:
            errors[region] = error
    return answers, errors
