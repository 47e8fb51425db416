"""The fleet in a Ray cluster file, which `ray up` takes and `tradewind up` takes, too. Pure.

Ray's own keys say which class to call (`provider.module`); what that class needs to know stands below
`provider.tradewind`, in the keys of a fleet file. The cluster's name is the fleet's.
"""

from __future__ import annotations

from tradewind.config_yaml import Document
from tradewind.errors import ConfigError, Problem

RAY_FLEET = ("provider", "tradewind")


def fleet_part(document: Document) -> Document:
    """The document itself, if it is a fleet file."""
    data = document.data
    if not isinstance(data, dict) or "cluster_name" not in data:
        return document
    provider = data.get("provider")
    if not isinstance(provider, dict) or not isinstance(provider.get("tradewind"), dict):
        message = "is missing: this is a cluster file of Ray alone"
        hint = "cluster-configs/aws-gpu-spot.yaml shows one that both launchers take"
        raise ConfigError([Problem(document.where(("provider",)), ".".join(RAY_FLEET), message)], hint)
    part = document.part(RAY_FLEET)
    part.data = {"name": data["cluster_name"], **part.data}
    part.lines[("name",)] = document.lines.get(("cluster_name",), 1)
    return part
