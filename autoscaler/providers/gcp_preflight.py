"""Can this project carry the fleet? One line for each thing that has to be there, with the command that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tradewind.autoscaler.placement import has_groups
from tradewind.autoscaler.providers.base import Check
from tradewind.autoscaler.providers.gcp_api import GcpApi
from tradewind.autoscaler.providers.gcp_settings import is_spot
from tradewind.errors import AuthError, ProviderError, Throttled, Transient
from tradewind.model import Offer

COMPUTE_PERMISSIONS = (
    "compute.disks.create",
    "compute.disks.delete",
    "compute.disks.list",
    "compute.disks.setLabels",
    "compute.globalOperations.list",
    "compute.instances.create",
    "compute.instances.delete",
    "compute.instances.get",
    "compute.instances.list",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setTags",
    "compute.subnetworks.use",
    "compute.zoneOperations.get",
    "compute.zoneOperations.list",
)
GROUP_PERMISSIONS = (
    "compute.regionOperations.get",
    "compute.resourcePolicies.create",
    "compute.resourcePolicies.delete",
    "compute.resourcePolicies.list",
    "compute.resourcePolicies.use",
)
TPU_PERMISSIONS = (
    "tpu.nodes.create",
    "tpu.nodes.delete",
    "tpu.nodes.get",
    "tpu.nodes.list",
    "tpu.operations.get",
    "tpu.operations.list",
)
# Google's names of the quota for an accelerator; "PREEMPTIBLE_" stands before it for spot.
_QUOTAS = {
    "T4": "NVIDIA_T4_GPUS",
    "P4": "NVIDIA_P4_GPUS",
    "P100": "NVIDIA_P100_GPUS",
    "V100": "NVIDIA_V100_GPUS",
    "L4": "NVIDIA_L4_GPUS",
    "A100": "NVIDIA_A100_GPUS",
    "A100-80GB": "NVIDIA_A100_80GB_GPUS",
    "H100": "NVIDIA_H100_GPUS",
    "H200": "NVIDIA_H200_GPUS",
    "B200": "NVIDIA_B200_GPUS",
}
_ALL_GPUS = "GPUS_ALL_REGIONS"


def check_compute(api: GcpApi, offers: Sequence[Offer]) -> list[Check]:
    checks = [*_project(api, offers), permissions(api, COMPUTE_PERMISSIONS), _image(api)]
    if api.settings.placement_groups and any(has_groups(offer) for offer in offers):
        checks.append(_placement(api))
    for region in api.settings.regions:
        there = [offer for offer in offers if offer.market.region == region]
        checks += [_subnetwork(api, region), *_region(api, region, there)]
    return checks


def permissions(api: GcpApi, wanted: Sequence[str]) -> Check:
    needed = [*wanted, *(["iam.serviceAccounts.actAs"] if api.settings.service_account else [])]

    def look() -> Check:
        missing = sorted(set(needed) - api.granted(needed))
        found = f"missing: {', '.join(missing)}" if missing else f"all {len(needed)}"
        return Check("gcp permissions", not missing, found, _grant(api, missing) if missing else "")

    return answered("gcp permissions", look)


def _placement(api: GcpApi) -> Check:
    def look() -> Check:
        missing = sorted(set(GROUP_PERMISSIONS) - api.granted(GROUP_PERMISSIONS))
        fix = f"{_grant(api, missing)}; or set `placement: {{groups: off}}`" if missing else ""
        found = f"missing: {', '.join(missing)}" if missing else "may be made for gangs"
        return Check("gcp placement groups", not missing, found, fix)

    return answered("gcp placement groups", look)


def answered(name: str, look: Callable[[], Check], fix: str = "") -> Check:
    """What a check finds, or why it could not look."""
    try:
        return look()
    except (AuthError, Throttled, Transient) as error:  # the error knows better what to do about these
        return Check(name, False, error.message, error.hint or fix)
    except ProviderError as error:
        return Check(name, False, error.message, fix or error.hint or "see the message")


def _grant(api: GcpApi, missing: Iterable[str]) -> str:
    project, needed = api.settings.project, ",".join(missing)
    return f"gcloud iam roles update tradewind --project={project} --add-permissions={needed}"


def _project(api: GcpApi, offers: Sequence[Offer]) -> list[Check]:
    """Reached at all; and a new project may have GPUs in no region, whatever its regions' quotas say."""
    found: list[Any] = []

    def look() -> Check:
        found.append(api.compute("ProjectsClient", "get"))
        return Check("gcp project", True, found[0].name or api.settings.project)

    there = answered("gcp project", look)
    quotas = [each for project in found for each in project.quotas if each.metric == _ALL_GPUS]
    has_gpus = any(offer.accelerator in _QUOTAS for offer in offers)
    return [there, *(_quota("all regions", each) for each in quotas if has_gpus)]


def _image(api: GcpApi) -> Check:
    project, _, rest = api.settings.image.removeprefix("projects/").partition("/global/images/")
    if not rest:
        project, rest = api.settings.project, api.settings.image

    def look() -> Check:
        if rest.startswith("family/"):
            family = rest.removeprefix("family/")
            image = api.compute("ImagesClient", "get_from_family", project=project, family=family)
        else:
            image = api.compute("ImagesClient", "get", project=project, image=rest)
        need_gib = int(image.disk_size_gb)
        ok = need_gib <= api.settings.disk_gib
        found = f"{image.name}, {need_gib} GiB" + ("" if ok else f", but disk_gib is {api.settings.disk_gib}")
        return Check("gcp image", ok, found, "" if ok else f"set disk_gib to {need_gib} or more")

    return answered("gcp image", look, f"choose one: gcloud compute images list --project={project}")


def _subnetwork(api: GcpApi, region: str) -> Check:
    name, project = api.settings.subnetwork.rpartition("/")[2], api.settings.project
    label = f"gcp subnetwork in {region}"

    def look() -> Check:
        subnetwork = api.compute("SubnetworksClient", "get", region=region, subnetwork=name)
        ok = bool(subnetwork.private_ip_google_access)
        fix = f"gcloud compute networks subnets update {name} --region={region} --enable-private-ip-google-access"
        found = f"{name}, {subnetwork.ip_cidr_range}"
        if ok:
            return Check(label, True, found)
        return Check(label, False, f"{found}: nodes without an external address cannot reach Google's APIs", fix)

    network = api.settings.network.rpartition("/")[2]
    create = f"gcloud compute networks subnets create {name} --network={network} --region={region} --range=10.0.0.0/16"
    return answered(label, look, f"{create} --enable-private-ip-google-access --project={project}")


def _region(api: GcpApi, region: str, offers: Sequence[Offer]) -> list[Check]:
    """Its quotas for what is offered there."""
    wanted = sorted({quota for offer in offers if (quota := quota_of(offer))})
    found: list[Any] = []

    def look() -> Check:
        found.append(api.compute("RegionsClient", "get", region=region))
        return Check(f"gcp region {region}", True, found[0].status or "UP")

    fix = "correct its name: gcloud compute regions list"
    up = answered(f"gcp region {region}", look, fix)
    quotas = {each.metric: each for each in found[0].quotas} if found else {}
    return [up, *(_quota(region, quotas[name]) for name in wanted if name in quotas)]


def quota_of(offer: Offer) -> str:
    name = _QUOTAS.get(offer.accelerator, "" if offer.accelerator else "CPUS")
    return f"PREEMPTIBLE_{name}" if name and is_spot(offer) else name


def _quota(region: str, quota: Any) -> Check:
    name = quota.metric
    ok = quota.limit > quota.usage
    found = f"{quota.usage:.0f} of {quota.limit:.0f} in use"
    fix = f"ask for more {name} in {region}: console.cloud.google.com/iam-admin/quotas"
    return Check(f"gcp quota {name} in {region}", ok, found, "" if ok else fix)
