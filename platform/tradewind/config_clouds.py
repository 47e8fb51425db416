"""The sections of a fleet file that are about real clouds: where machines are made, of what, and how they boot.

What is said here becomes the settings of the providers in tradewind/clouds/cells.py. Names have the clouds' own forms,
so that a typo is told with its line and not by the first launch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, WithJsonSchema, field_validator, model_validator

from tradewind.config_types import Duration, Number, Section, Whole

CloudName = Literal["aws", "gcp", "azure"]
StorageUrl = Annotated[str, Field(pattern=r"^$|^(s3|gs|abfss?|az|file)://\S+$|^/\S*$")]

_ADDRESS = r"^(\[[0-9a-fA-F:]+\]|[^\s:/]+):\d{1,5}$"
_ENDPOINT = Annotated[str, Field(pattern=r"^$|^https?://\S+$")]
_Flag = Annotated[bool, Strict()]


def _named(value: object) -> object:
    """A region may be its name alone."""
    return {"name": value} if isinstance(value, str) else value


def _unique(regions: tuple[Any, ...]) -> tuple[Any, ...]:
    names = [region.name for region in regions]
    if not names or len(set(names)) != len(names):
        raise ValueError("allowed: a list of at least one region, and none twice")
    return regions


# --- AWS ---------------------------------------------------------------------------------------------------------


class AwsRegionSection(Section):
    """Images, subnets and security groups have names of their own in each region."""

    name: Annotated[str, Field(pattern=r"^[a-z]{2,}(-[a-z]+)+-\d+$")] = Field(description="Like us-east-1.")
    image: Annotated[str, Field(pattern=r"^ami-[0-9a-f]+$")] = Field(description="The id of an image, like ami-0abc.")
    subnets: dict[str, Annotated[str, Field(pattern=r"^subnet-[0-9a-f]+$")]] = Field(
        description="Zone -> subnet, like {us-east-1a: subnet-0abc}; a zone without one is not used."
    )
    security_groups: tuple[Annotated[str, Field(pattern=r"^sg-[0-9a-f]+$")], ...] = Field(
        default=(), description="Left out: the default group of the VPC."
    )

    @model_validator(mode="after")
    def _zones_are_here(self) -> AwsRegionSection:
        if not self.subnets:
            raise ValueError("subnets: at least one zone with its subnet is needed")
        if strange := [zone for zone in self.subnets if not zone.startswith(self.name)]:
            raise ValueError(f"subnets: {', '.join(strange)} is no zone of {self.name}")
        return self


class AwsCloud(Section):
    regions: tuple[AwsRegionSection, ...] = Field(description="A list; each region becomes a cell.")
    instance_profile: str = Field(default="", description="Of workers; by it they read their secret and the data.")
    head_instance_profile: str = Field(default="", description="Of heads; left out: as for workers.")
    disk_gib: Annotated[Whole, Field(ge=1)] = 100
    root_device: str = Field(default="/dev/sda1", description="As the image calls its disk.")
    capacity_reservation: Annotated[
        str, Field(pattern=r"^(open|none|cr-[0-9a-f]+|arn:[a-z-]+:resource-groups:\S+)?$")
    ] = Field(default="", description="For on-demand nodes: open, none, cr-... or the ARN of a resource group.")
    tags: dict[str, str] = Field(default_factory=dict, description="Beside ours, on everything that is made.")
    endpoint_url: _ENDPOINT = Field(default="", description="Of an emulator, or a private endpoint.")

    _regions_are_unique = field_validator("regions")(_unique)


# --- Google Cloud ------------------------------------------------------------------------------------------------


class GcpRegionSection(Section):
    name: Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+\d+$")] = Field(description="Like us-central1.")
    subnetwork: str = Field(default="", description="Left out: that of all regions.")


class GcpCloud(Section):
    project: Annotated[str, Field(pattern=r"^[a-z][-a-z0-9:.]{4,60}[a-z0-9]$")] = Field(description="The project's id.")
    regions: tuple[
        Annotated[GcpRegionSection, BeforeValidator(_named, json_schema_input_type=str | GcpRegionSection)], ...
    ] = Field(description="A list of names, or of {name: ..., subnetwork: ...}; each becomes a cell.")
    image: str = Field(default="", description="Left out: Google's image for deep learning.")
    network: str = "default"
    subnetwork: str = "default"
    service_account: str = Field(default="", description="Of workers; by it they read their secret and the data.")
    head_service_account: str = Field(default="", description="Of heads; left out: as for workers.")
    network_tags: tuple[str, ...] = Field(default=("tradewind",), description="Firewall rules go by these.")
    disk_gib: Annotated[Whole, Field(ge=10)] = 100
    labels: dict[str, str] = Field(default_factory=dict, description="Beside ours, on everything that is made.")
    reservation: str = Field(default="", description="For on-demand nodes; left out: any that fits.")
    secure_boot: _Flag = Field(default=False, description="Needs an image whose GPU driver is signed.")
    tpu_runtime: str = Field(default="", description="Left out: Google's newest image of the TPU's generation.")
    tpu_queue_s: Duration = Field(
        default=0.0, alias="tpu_queue", description="How long a slice may wait in Google's queue; 0: now or never."
    )
    endpoint_url: _ENDPOINT = Field(default="", description="Of an emulator.")

    _regions_are_unique = field_validator("regions")(_unique)


# --- Azure -------------------------------------------------------------------------------------------------------


class AzureRegionSection(Section):
    """A network lies in one region."""

    name: Annotated[str, Field(pattern=r"^[a-z]+\d?$")] = Field(description="Like eastus.")
    subnet: Annotated[str, Field(pattern=r"(?i)^/subscriptions/[^/]+/.*/virtualNetworks/[^/]+/subnets/[^/]+$")] = Field(
        description="Its whole id, /subscriptions/.../subnets/NAME."
    )
    security_group: str = Field(default="", description="Its whole id; left out: the subnet's.")
    capacity_reservation: str = Field(default="", description="The id of a group of them, for on-demand nodes.")


class AzureCloud(Section):
    subscription: Annotated[str, Field(pattern=r"^\S+$")] = Field(description="Its id: `az account show --query id`.")
    resource_group: Annotated[str, Field(pattern=r"^[-\w.()]{0,89}[-\w()]$")] = Field(description="Its name.")
    regions: tuple[AzureRegionSection, ...] = Field(description="A list; each region becomes a cell.")
    image: str = Field(default="", description="publisher:offer:sku:version, or the id of an image.")
    identity: str = Field(default="", description="The id of the workers' identity: they read secret and data by it.")
    head_identity: str = Field(default="", description="Of heads; left out: as for workers.")
    key_vault: Annotated[str, Field(pattern=r"^https://\S+$")] = Field(
        description="Where the fleet's secrets are kept, https://NAME.vault.azure.net."
    )
    disk_gib: Annotated[Whole, Field(ge=30)] = 128
    disk_type: str = "Premium_LRS"
    encryption_at_host: _Flag = True
    tags: dict[str, str] = Field(default_factory=dict, description="Beside ours, on everything that is made.")
    endpoint_url: _ENDPOINT = Field(default="", description="Of an emulator or another Azure than the public one.")
    prices_url: _ENDPOINT = Field(default="", description="Left out: Azure's public list of retail prices.")
    ca_file: str = Field(default="", description="By which the endpoint's certificate is checked.")

    _regions_are_unique = field_validator("regions")(_unique)


# --- heads, boot, controller -------------------------------------------------------------------------------------


def _by_cloud(value: object) -> object:
    return {"*": value} if isinstance(value, str) else value


class Head(Section):
    """The machine of each cell on which Ray's head runs, on-demand. Without a type: the cheapest that is enough."""

    instance_types: Annotated[
        dict[Literal["aws", "gcp", "azure", "*"], str],
        BeforeValidator(_by_cloud),
        WithJsonSchema({"type": ["string", "object"], "additionalProperties": {"type": "string"}}),
    ] = Field(default_factory=dict, alias="instance_type", description="One, or by cloud: {aws: m7i.large}.")
    vcpus: Annotated[Number, Field(gt=0)] = 2.0
    memory_gib: Annotated[Number, Field(gt=0)] = 8.0


class Boot(Section):
    """How a machine becomes a node."""

    python: str = Field(default="", description="The interpreter in the image; left out: it is looked for.")
    install: str = Field(default="", description="What pip installs where Tradewind is not in the image.")
    setup: tuple[str, ...] = Field(default=(), description="Shell commands, run as root before anything else.")
    dead_man_s: Annotated[Duration, Field(ge=60)] = Field(
        default=900.0, alias="dead_man", description="A node that hears nothing for so long shuts itself down."
    )
    endpoints: dict[str, str] = Field(
        default_factory=dict,
        description="Other addresses of the clouds' services, for emulators: {secrets: http://...}.",
    )


class ControllerDoor(Section):
    """Where the cells' agents call. Only fleets in clouds have this door."""

    listen: Annotated[str, Field(pattern=_ADDRESS)] = Field(
        default="0.0.0.0:8440", description="Address and port, like 0.0.0.0:8440."
    )
    url: Annotated[str, Field(pattern=r"^$|^https://\S+$")] = Field(
        default="", description="How heads reach it, https://...; left out: this machine's own address."
    )


def _switch(value: object) -> object:
    """Ray's own launcher reads a plain `off` as false."""
    return "off" if value is False else value


class Placement(Section):
    """How close together the nodes of a gang are asked for."""

    groups: Annotated[Literal["auto", "off"], BeforeValidator(_switch)] = Field(
        default="auto",
        description="auto: several nodes with accelerators for one gang go into a placement group of their cloud, "
        "and outside of it where that has no room; off: anywhere in the zone.",
    )
