"""The user-data of a head that `ray up` makes. Makes the cell's authority and tokens, and puts them where the head and
its workers may read them; what stands in the user-data is public."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.certificates import Authority
from tradewind.clouds.cells import CellPlan
from tradewind.clouds.secret_stores import store_in
from tradewind.config_models import FleetConfig
from tradewind.node.boot_plan import DEFAULT_INSTALL, user_data
from tradewind.node.plans import CellBoot, head_plan, secret_name


def head_user_data(fleet: FleetConfig, plan: CellPlan, store: SecretStore | None = None) -> Callable[[LaunchSpec], str]:
    authority = Authority.make(f"{fleet.name} {plan.name}", time.time())
    cell = cell_boot(fleet, plan, authority.cert_pem)
    _put_secrets(store or store_in(fleet, plan), cell, authority.key_pem)
    return lambda spec: user_data(head_plan(cell, spec))


def cell_boot(
    fleet: FleetConfig, plan: CellPlan, ca_pem: str, *, controller_url: str = "", controller_ca_pem: str = ""
) -> CellBoot:
    """What the fleet file says of the machines of a cell. Pure."""
    boot = fleet.boot
    endpoints = dict(boot.endpoints)
    if plan.cloud == "azure" and fleet.azure is not None and fleet.azure.key_vault:
        endpoints.setdefault("vault", fleet.azure.key_vault)
    if plan.cloud == "gcp" and fleet.gcp is not None:
        endpoints.setdefault("project", fleet.gcp.project)
    return CellBoot(
        fleet=fleet.name,
        cell=plan.name,
        cloud=plan.cloud,
        region=plan.region,
        ca_pem=ca_pem,
        controller_url=controller_url,
        controller_ca_pem=controller_ca_pem,
        python=boot.python,
        install=boot.install or DEFAULT_INSTALL,
        setup=boot.setup,
        dead_man_s=boot.dead_man_s,
        storage=fleet.storage,
        endpoints=endpoints,
    )


def _put_secrets(store: SecretStore, cell: CellBoot, ca_key_pem: str) -> None:
    ray_token = secrets.token_urlsafe(32)
    head = {"ray_token": ray_token, "agent_token": secrets.token_urlsafe(32), "ca_key_pem": ca_key_pem}
    store.put(secret_name(cell.fleet, cell.cell, "head"), json.dumps(head))
    store.put(secret_name(cell.fleet, cell.cell, "worker"), json.dumps({"ray_token": ray_token}))
