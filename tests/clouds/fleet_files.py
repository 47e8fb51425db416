"""Fleet files for the tests of clouds: small, of all three, on emulators where an address is given."""

from __future__ import annotations

from tradewind.config_models import FleetConfig
from tradewind.config_yaml import parse

AWS = """
aws:
  instance_profile: tradewind-node
  head_instance_profile: tradewind-head
  endpoint_url: "{aws}"
  regions:
    - name: us-east-1
      image: ami-0123456789abcdef0
      subnets: {{us-east-1a: subnet-00000000000000001, us-east-1b: subnet-00000000000000002}}
      security_groups: [sg-0123456789abcdef0]
    - name: us-west-2
      image: ami-0123456789abcdef0
      subnets: {{us-west-2a: subnet-00000000000000001}}
      security_groups: [sg-0123456789abcdef0]
"""
GCP = """
gcp:
  project: {project}
  service_account: {account}
  endpoint_url: "{gcp}"
  regions: [us-central1, {{name: europe-west4, subnetwork: {inner}}}]
"""
AZURE = """
azure:
  subscription: {subscription}
  resource_group: {group}
  endpoint_url: "{azure}"
  prices_url: "{azure_prices}"
  ca_file: "{ca_file}"
  key_vault: "{vault}"
  regions:
    - name: eastus
      subnet: {eastus}
    - name: westus2
      subnet: {westus2}
"""
_SUBNET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/n/subnets/default"
DEFAULTS = {
    "aws": "",
    "gcp": "",
    "azure": "",
    "project": "my-project",
    "inner": "inner",
    "account": "nodes@my-project.iam.gserviceaccount.com",
    "subscription": "00000000-0000-0000-0000-000000000001",
    "group": "training",
    "azure_prices": "",
    "ca_file": "",
    "vault": "https://fleet.vault.azure.net",
    "eastus": _SUBNET,
    "westus2": _SUBNET,
}
SECTIONS = {"aws": AWS, "gcp": GCP, "azure": AZURE}


def text_of(*clouds: str, more: str = "", **values: str) -> str:
    sections = "".join(SECTIONS[name].format(**{**DEFAULTS, **values}) for name in clouds)
    return f"name: research\nclouds: [{', '.join(clouds)}]\n{sections}{more}"


def fleet_of(*clouds: str, more: str = "", **values: str) -> FleetConfig:
    return parse(text_of(*clouds, more=more, **values), "fleet.yaml", FleetConfig)
