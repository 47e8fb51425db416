"""All three clouds as emulators of this process, and a fleet file that leads there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fleet_files import fleet_of, text_of

from tradewind.config_models import FleetConfig
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.emulators.azure import AzureEmulator
from tradewind.emulators.gcp import GcpEmulator

BEGAN_S = time.time()
PACE = 60.0  # a minute of the clouds is a second of the test


def fast_clock() -> float:
    return BEGAN_S + PACE * (time.time() - BEGAN_S)


@dataclass
class Clouds:
    aws: AwsEmulator
    gcp: GcpEmulator
    azure: AzureEmulator

    @property
    def values(self) -> dict[str, str]:
        return {
            "aws": self.aws.url,
            "gcp": self.gcp.url,
            "project": self.gcp.project,
            "account": "nodes@emulated",
            "inner": "default",
            "azure": self.azure.url,
            "azure_prices": f"{self.azure.url}/api/retail/prices",
            "ca_file": self.azure.ca_file,
            "vault": self.azure.url,
            "subscription": self.azure.subscription,
            "group": "tradewind",
            "eastus": self.azure.subnet("eastus"),
            "westus2": self.azure.subnet("westus2"),
        }

    def text(self, *clouds: str, more: str = "") -> str:
        return text_of(*clouds, more=more, **self.values)

    def config(self, *clouds: str, more: str = "") -> FleetConfig:
        return fleet_of(*clouds, more=more, **self.values)

    @property
    def credentials(self) -> dict[str, Any]:
        import boto3

        session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        return {"aws": session, "gcp": self.gcp.credentials(), "azure": self.azure.credential()}

    def machines(self) -> int:
        """How many are there, whoever made them."""
        return len(self.aws.machines()) + len(self.gcp.compute.vms) + len(self.azure.compute.vms)


@contextmanager
def clouds() -> Iterator[Clouds]:
    aws = AwsEmulator()  # by our clock: AWS refuses callers whose clock is off
    aws.shop.profiles.add("tradewind-head")
    gcp, azure = GcpEmulator(clock=fast_clock).start(tick_s=0.2), AzureEmulator(clock=fast_clock).start()
    try:
        yield Clouds(aws, gcp, azure)
    finally:
        for each in (aws, gcp, azure):
            each.close()
