"""The policies under cluster-configs/iam against the calls that are really made: all of them are allowed, and nothing
beyond them that is not said here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulated import Clouds, clouds

from tradewind.autoscaler.placement import group_name, has_groups
from tradewind.autoscaler.providers.azure_preflight import GROUP_PERMISSIONS as AZURE_GROUPS
from tradewind.autoscaler.providers.azure_preflight import PERMISSIONS as AZURE_NEEDED
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.gcp_preflight import COMPUTE_PERMISSIONS, GROUP_PERMISSIONS, TPU_PERMISSIONS
from tradewind.clouds import CellCloud, open_cells
from tradewind.clouds.preflight import check_clouds
from tradewind.clouds.secret_stores import store_in
from tradewind.clouds.sweep import places_of, see
from tradewind.emulators.aws_books import Part
from tradewind.model import LABEL_LAUNCH_ID

pytestmark = pytest.mark.slow  # SDKs of all clouds, over HTTP

IAM = Path(__file__).parents[2] / "cluster-configs/iam"


@pytest.fixture(scope="module")
def world() -> Iterator[Clouds]:
    with clouds() as found:
        yield found


def allowed_by_aws(name: str) -> set[str]:
    statements = json.loads((IAM / name).read_text())["Statement"]
    assert all(statement["Effect"] == "Allow" for statement in statements)
    actions = (statement["Action"] for statement in statements)
    return {action for each in actions for action in ([each] if isinstance(each, str) else each)}


def live_once(cell: CellCloud) -> None:
    """Everything that a controller does with a node, once."""
    offer = cell.plan.offers[0]
    labels = {**offer.labels, LABEL_LAUNCH_ID: "tw-iam"}
    spec = LaunchSpec("tw-iam", "research", cell.plan.name, offer, "10.0.0.4:6379", labels)
    group = group_name("research", cell.plan.name, "gang", offer.market) if has_groups(offer) else ""
    cell.provider.launch(replace(spec, placement_group=group))
    cell.provider.list_nodes()
    cell.provider.console("tw-iam")
    cell.prices.offers(1_790_000_000.0)
    cell.provider.terminate(["tw-iam"])
    cell.provider.wait_terminated(["tw-iam"], 60.0)
    cell.provider.delete_debris(cell.provider.list_debris())


# --- AWS -----------------------------------------------------------------------------------------------------------


def aws_calls(world: Clouds) -> set[str]:
    """As IAM calls them, "ec2:RunInstances"."""
    called: set[str] = set()
    credentials = world.credentials
    credentials["aws"].events.register("before-call.*.*", lambda model, **_: called.add(_action(model)))
    config = world.config("aws", more="offers: [{accelerator: A10G, capacity: spot}]\n")
    tags = {"tradewind:fleet": "research", "tradewind:launch-id": "tw-gone"}
    region = world.aws.books.regions["us-east-1"]
    region.volumes["vol-00000001"] = Part("vol-00000001", "us-east-1a", tags)
    region.interfaces["eni-00000001"] = Part("eni-00000001", "us-east-1a", tags)
    check_clouds(config, credentials=credentials)
    cell = open_cells(config, lambda spec: spec.launch_id, credentials)["aws-us-east-1"]
    live_once(cell)
    see(places_of(config, credentials))
    store = store_in(config, cell.plan, credentials["aws"])
    store.put("tradewind/research/aws-us-east-1/node", "one")
    store.put("tradewind/research/aws-us-east-1/node", "two")
    assert store.get("tradewind/research/aws-us-east-1/node") == "two"
    store.delete("tradewind/research/aws-us-east-1/node")
    return called


def _action(model: Any) -> str:
    service = model.service_model.signing_name
    return f"{service}:{model.name}"


def test_aws_allows_the_calls_that_are_made_and_hardly_more(world: Clouds) -> None:
    called, allowed = aws_calls(world), allowed_by_aws("aws-controller.json")
    assert {"ec2:RunInstances", "ec2:DeleteVolume", "secretsmanager:PutSecretValue"} <= called
    assert called - allowed == set()
    unseen = {
        "ec2:CreateTags": "a launch with tags needs it",
        "iam:PassRole": "a launch with an instance profile needs it",
        "secretsmanager:RestoreSecret": "where somebody deleted it by hand",
    }
    assert allowed - called == set(unseen)


@pytest.mark.parametrize("role", ["node", "head"])
def test_aws_nodes_read_their_own_secret_and_the_data_and_cannot_provision(role: str) -> None:
    statements = json.loads((IAM / f"aws-{role}.json").read_text())["Statement"]
    assert {action.partition(":")[0] for action in allowed_by_aws(f"aws-{role}.json")} == {"secretsmanager", "s3"}
    secret = next(each for each in statements if each["Action"] == "secretsmanager:GetSecretValue")
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:tradewind/research/aws-us-east-1/{}-AbCdEf"
    assert fnmatchcase(arn.format(role), secret["Resource"])
    assert not fnmatchcase(arn.format({"node": "head", "head": "node"}[role]), secret["Resource"])


def test_aws_rights_to_change_are_bound_to_the_fleets_tag() -> None:
    for statement in json.loads((IAM / "aws-controller.json").read_text())["Statement"]:
        if statement["Sid"] in ("LaunchOnlyWithTheFleetsTag", "EndWhatHasTheFleetsTag", "GroupsOnlyWithTheFleetsTag"):
            assert "tradewind:fleet" in json.dumps(statement["Condition"])
        elif statement["Resource"] == "*":
            assert all(re.search(r":(Describe|Get|List)", action) for action in statement["Action"])


# --- Google Cloud --------------------------------------------------------------------------------------------------

# What a call needs, by https://cloud.google.com/compute/docs/reference/rest.
GCP_CALLS = [
    (r"POST .*/zones/[^/]+/instances", {"compute.instances.create", "compute.disks.create", "compute.subnetworks.use"}),
    (r"GET .*/aggregated/instances", {"compute.instances.list"}),
    (r"GET .*/aggregated/disks", {"compute.disks.list"}),
    (r"POST .*/regions/[^/]+/resourcePolicies", {"compute.resourcePolicies.create"}),
    (r"GET .*/aggregated/resourcePolicies", {"compute.resourcePolicies.list"}),
    (r"DELETE .*/resourcePolicies/[^/]+", {"compute.resourcePolicies.delete"}),
    (r"GET .*/regions/[^/]+/operations/[^/]+", {"compute.regionOperations.get"}),
    (r"GET .*/aggregated/operations", {"compute.globalOperations.list", "compute.zoneOperations.list"}),
    (r"GET .*/instances/[^/]+", {"compute.instances.get"}),
    (r"GET .*/instances/[^/]+/serialPort", {"compute.instances.getSerialPortOutput"}),
    (r"DELETE .*/instances/[^/]+", {"compute.instances.delete"}),
    (r"DELETE .*/disks/[^/]+", {"compute.disks.delete"}),
    (r"GET .*/zones/[^/]+/operations/[^/]+", {"compute.zoneOperations.get"}),
    (r"GET /compute/v1/projects/[^/]+", {"compute.projects.get"}),
    (r"GET .*/regions/[^/]+", {"compute.regions.get"}),
    (r"GET .*/subnetworks/[^/]+", {"compute.subnetworks.get"}),
    (r"GET .*/images/family/.+", {"compute.images.getFromFamily"}),
    (r"POST .*:testIamPermissions", set()),
    (r"POST .*/token", set()),
]


def test_google_allows_the_calls_that_are_made(world: Clouds) -> None:
    role = yaml.safe_load((IAM / "gcp-controller.yaml").read_text())
    allowed = set(role["includedPermissions"])
    assert {*COMPUTE_PERMISSIONS, *TPU_PERMISSIONS, *GROUP_PERMISSIONS} <= allowed
    config = world.config("gcp", more="offers: [{accelerator: L4, capacity: spot}]\n")
    world.gcp.calls.clear()
    cell = open_cells(config, lambda spec: spec.launch_id, world.credentials)["gcp-us-central1"]
    cell.provider.preflight()
    live_once(cell)
    for call in world.gcp.calls:
        path = call.partition("?")[0]
        needs = [needed for pattern, needed in GCP_CALLS if re.fullmatch(pattern, path)]
        assert needs, f"say in GCP_CALLS what {path} needs"
        assert set().union(*needs) <= allowed, path


@pytest.mark.parametrize("role", ["node", "head"])
def test_google_nodes_read_secrets_alone(role: str) -> None:
    found = yaml.safe_load((IAM / f"gcp-{role}.yaml").read_text())
    assert found["includedPermissions"] == ["secretmanager.versions.access"]


# --- Azure ---------------------------------------------------------------------------------------------------------

_VERBS = {"GET": "read", "PUT": "write", "DELETE": "delete"}


def azure_action(call: str) -> str:
    """Azure's actions are the paths of its calls without the names; the last part is what is done."""
    method, _, path = call.partition("?")[0].partition(" ")
    if "/providers/" not in path:
        return "Microsoft.Resources/subscriptions/resourceGroups/read"
    kind = path.rpartition("/providers/")[2].strip("/").split("/")
    parts = [kind[0], *kind[1::2]]
    verb = f"{parts.pop()}/action" if method == "POST" else _VERBS[method]
    return "/".join([*parts, verb])


def test_azure_allows_the_calls_that_are_made(world: Clouds) -> None:
    role = json.loads((IAM / "azure-controller.json").read_text())
    allowed = {action.lower() for action in role["Actions"]}
    assert {action.lower() for action in (*AZURE_NEEDED, *AZURE_GROUPS)} <= allowed
    assert role["NotActions"] == role["NotDataActions"] == []
    config = world.config("azure", more="offers: [{accelerator: T4, capacity: spot}]\n")
    world.azure.calls.clear()
    cell = open_cells(config, lambda spec: spec.launch_id, world.credentials)["azure-eastus"]
    cell.provider.preflight()
    live_once(cell)
    called = {azure_action(call).lower() for call in world.azure.calls if "/subscriptions/" in call}
    assert {f"microsoft.compute/{kind}/write" for kind in ("virtualmachines", "proximityplacementgroups")} <= called
    assert called - allowed == set()
    assert not any("*" in action for action in allowed)


def test_azure_nodes_have_no_right_to_provision() -> None:
    role = json.loads((IAM / "azure-node.json").read_text())
    assert role["Actions"] == []
    assert {action.split("/")[0] for action in role["DataActions"]} == {"Microsoft.KeyVault", "Microsoft.Storage"}
