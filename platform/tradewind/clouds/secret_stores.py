"""The secret store of a cell, by the fleet file. Pure but for the SDK's client, which is made by the first call."""

from __future__ import annotations

from typing import Any

from tradewind.autoscaler.providers.secrets import SecretStore, open_secrets
from tradewind.clouds.cells import CellPlan
from tradewind.config_models import FleetConfig

PREFIX = "tradewind"


def store_in(config: FleetConfig, plan: CellPlan, credentials: Any = None) -> SecretStore:
    """With our own credentials. `boot.endpoints.secrets` leads it, and the nodes, elsewhere."""
    endpoint_url = config.boot.endpoints.get("secrets", "") or plan.settings.endpoint_url
    return open_secrets(
        plan.cloud,
        plan.region,
        project=config.gcp.project if config.gcp else "",
        vault_url=config.azure.key_vault if config.azure else "",
        endpoint_url=endpoint_url,
        ca_file=config.azure.ca_file if config.azure else "",
        credentials=credentials,
    )


def secrets_prefix(fleet: str, cell: str = "") -> str:
    return f"{PREFIX}/{fleet}/{cell}/" if cell else f"{PREFIX}/{fleet}/"
