"""A fleet file that leads to emulated clouds: small machines, one region each, everything else as in a real one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tradewind.emulators.aws import AwsEmulator
    from tradewind.emulators.azure import AzureEmulator
    from tradewind.emulators.gcp import GcpEmulator

_FLEET = """\
# A fleet on emulated clouds. Its machines are processes of this one, and everything costs nothing.
name: {name}
clouds: [{clouds}]
offers: [{offers}]
limits: {{max_nodes: 4}}
timing: {{tick: 500ms, idle_timeout: 30s, boot_timeout: 8m, min_node_life: 1s}}
market: {{move_cell_after: 10s}}
storage: {storage}
boot: {{python: {python}{boot}}}
controller: {{listen: "127.0.0.1:0"}}
{sections}"""
# One accelerator each, in a market for spot and one for on-demand.
OFFERS = {"aws": "g4dn.xlarge", "gcp": "g2-standard-4", "azure": "Standard_NC4as_T4_v3"}


def fleet_text(
    sections: Mapping[str, str], storage: Path, *, name: str = "emulated", offers: str = "", ca_file: str = ""
) -> str:
    """`sections` are those below, by cloud. Without `offers`, one type of machine in each of them."""
    types = [f"{{cloud: {cloud}, instance_type: {OFFERS[cloud]}}}" for cloud in sections]
    return _FLEET.format(
        name=name,
        clouds=", ".join(sections),
        offers=offers or ", ".join(types),
        storage=storage,
        python=sys.executable,
        boot=f", endpoints: {{ca_file: {ca_file}}}" if ca_file else "",
        sections="".join(sections.values()),
    )


def aws_section(cloud: AwsEmulator, *regions: str) -> str:
    places = [
        f"{{name: {name}, image: ami-0123456789abcdef0, subnets: {{{name}a: subnet-00000000000000001}}}}"
        for name in regions or ("us-east-1",)
    ]
    return f"""\
aws:
  endpoint_url: {cloud.url}
  instance_profile: tradewind-node
  head_instance_profile: tradewind-head
  regions: [{", ".join(places)}]
"""


def gcp_section(cloud: GcpEmulator, *regions: str) -> str:
    return f"""\
gcp:
  endpoint_url: {cloud.url}
  project: {cloud.project}
  service_account: nodes@emulated
  head_service_account: heads@emulated
  regions: [{", ".join(regions or ("us-central1",))}]
"""


def azure_section(cloud: AzureEmulator, *regions: str) -> str:
    group = f"/subscriptions/{cloud.subscription}/resourceGroups/tradewind"
    identity = f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/tradewind"
    places = [f"{{name: {name}, subnet: {cloud.subnet(name)}}}" for name in regions or ("eastus",)]
    return f"""\
azure:
  endpoint_url: {cloud.url}
  prices_url: {cloud.prices_url}
  ca_file: {cloud.ca_file}
  key_vault: {cloud.url}
  subscription: {cloud.subscription}
  resource_group: tradewind
  identity: {identity}-node
  head_identity: {identity}-head
  regions: [{", ".join(places)}]
"""
