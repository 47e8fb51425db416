"""Can the fleet of this file come up? The checks of its clouds, all cells at the same time. Asks; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tradewind.autoscaler.providers.base import Check
from tradewind.clouds.cells import CellPlan, cells_of
from tradewind.clouds.providers import open_cell
from tradewind.clouds.secret_stores import secrets_prefix, store_in
from tradewind.config_models import FleetConfig
from tradewind.errors import ProviderError

_MEND_SECRETS = "attach the controller's policy (cluster-configs/iam) to this identity"


def check_clouds(
    config: FleetConfig, cloud: str | None = None, credentials: Mapping[str, Any] | None = None
) -> list[Check]:
    """Of one cloud, or of all; each line says which. What two cells share (an account) is told once."""
    plans = [plan for plan in cells_of(config) if cloud in (None, plan.cloud)]
    with ThreadPoolExecutor(max(1, len(plans)), "preflight") as pool:
        answers = list(pool.map(lambda plan: _check_cell(config, plan, credentials), plans))
    return list({check.name: check for checks in answers for check in checks}.values())


def _check_cell(config: FleetConfig, plan: CellPlan, credentials: Mapping[str, Any] | None) -> list[Check]:
    cell = open_cell(plan, lambda spec: spec.launch_id, credentials)
    found: Sequence[Check] = cell.provider.preflight()
    named = _once([replace(check, name=_named(plan.cloud, check.name)) for check in found])
    return named if any(not check.ok for check in named[:1]) else [*named, _secrets(config, plan, credentials)]


def _once(checks: Sequence[Check]) -> list[Check]:
    """Without a login everything fails alike: the first that every node needs is enough."""
    told: set[tuple[str, str]] = set()
    kept: list[Check] = []
    for check in checks:
        if check.ok or (check.found, check.fix) not in told:
            kept.append(check)
        if not check.ok and not is_about_an_offer(check):
            told.add((check.found, check.fix))
    return kept


def _named(cloud: str, name: str) -> str:
    return name if name.startswith((f"{cloud} ", f"{cloud}/")) else f"{cloud} {name}"


def is_about_an_offer(check: Check) -> bool:
    """A quota, or a market: where one fails, others may serve. Gangs come without a placement group, too. Everything
    else is needed by every node."""
    return any(word in check.name.lower() for word in ("quota", "placement groups", "/"))


def _secrets(config: FleetConfig, plan: CellPlan, credentials: Mapping[str, Any] | None) -> Check:
    name = f"{plan.cloud} {plan.region} secrets"
    try:
        kept = store_in(config, plan, (credentials or {}).get(plan.cloud)).list(secrets_prefix(config.name, plan.name))
    except ProviderError as error:
        return Check(name, False, error.message, f"{error.hint}; {_MEND_SECRETS}")
    return Check(name, True, f"the store answers; {len(kept)} of this cell")
