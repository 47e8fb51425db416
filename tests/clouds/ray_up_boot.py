"""Our node provider with a user-data that boots nothing, for `ray up` against an emulator without machines."""

from __future__ import annotations

from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.clouds.cells import CellPlan
from tradewind.clouds.providers import UserData
from tradewind.clouds.ray_provider import TradewindNodeProvider
from tradewind.config_models import FleetConfig


class PlainBoot(TradewindNodeProvider):
    def make_user_data(self, fleet: FleetConfig, plan: CellPlan) -> UserData:
        return lambda spec: f"#!/bin/bash\n# {fleet.name} {plan.name} {spec.role}\n"

    def secret_store(self) -> SecretStore | None:
        return None
