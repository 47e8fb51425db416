"""Cells -> providers and price sources, through the vendors' SDKs. Acts, but only when what it made is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tradewind.autoscaler.providers.aws_settings import AwsSettings
from tradewind.autoscaler.providers.azure_settings import AzureSettings
from tradewind.autoscaler.providers.base import LaunchSpec, PriceSource, Provider
from tradewind.clouds.cells import CellPlan, cells_of
from tradewind.config_models import FleetConfig

UserData = Callable[[LaunchSpec], str]  # what a machine runs at its first boot; the same text for the same spec


@dataclass(frozen=True, slots=True)
class CellCloud:
    """One cell's hands: where its nodes are launched and what they cost."""

    plan: CellPlan
    provider: Provider
    prices: PriceSource


def providers_of(
    config: FleetConfig, user_data: UserData, credentials: Mapping[str, Any] | None = None
) -> Mapping[str, Provider]:
    """By the cell's name."""
    return {name: cell.provider for name, cell in open_cells(config, user_data, credentials).items()}


def open_cells(
    config: FleetConfig, user_data: UserData, credentials: Mapping[str, Any] | None = None
) -> Mapping[str, CellCloud]:
    return {plan.name: open_cell(plan, user_data, credentials) for plan in cells_of(config)}


def open_cell(plan: CellPlan, user_data: UserData, credentials: Mapping[str, Any] | None = None) -> CellCloud:
    """`credentials` are by cloud, as its SDK has them (a boto3 Session, google.auth and azure.identity credentials);
    without them each SDK looks for its own."""
    given = (credentials or {}).get(plan.cloud)
    settings = plan.settings
    if isinstance(settings, AwsSettings):
        return _aws(plan, settings, user_data, given)
    if isinstance(settings, AzureSettings):
        return _azure(plan, settings, user_data, given)
    from tradewind.autoscaler.providers.gcp_cloud import GcpProvider

    provider = GcpProvider(settings, user_data, offers=plan.known, credentials=given)
    return CellCloud(plan, provider, provider)


def _aws(plan: CellPlan, settings: AwsSettings, user_data: UserData, session: Any) -> CellCloud:
    from tradewind.autoscaler.providers.aws import AwsProvider
    from tradewind.autoscaler.providers.aws_clients import SdkClients
    from tradewind.autoscaler.providers.aws_prices import AwsPrices

    clients = SdkClients(settings.endpoint_url, session)
    provider = AwsProvider(settings, user_data, offers=plan.known, clients=clients)
    return CellCloud(plan, provider, AwsPrices(plan.offers, clients))


def _azure(plan: CellPlan, settings: AzureSettings, user_data: UserData, credential: Any) -> CellCloud:
    from tradewind.autoscaler.providers.azure import AzureProvider
    from tradewind.autoscaler.providers.azure_prices import AzurePrices

    provider = AzureProvider(settings, user_data, offers=plan.known, credential=credential)
    return CellCloud(plan, provider, AzurePrices(plan.offers, settings))
