"""Azure beyond the contract: what is asked for, how answers are read, and what the emulator refuses."""

from __future__ import annotations

import base64
import copy
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from cloud_world import BOOTED_S, ENDED_S, FLEET, make_spec
from contract import GANG
from worlds.azure_world import OFFERS, ON_DEMAND, SPOT, AzureWorld, user_data

from tradewind.autoscaler.providers import azure_log, azure_vm
from tradewind.autoscaler.providers.azure_api import AzureApi
from tradewind.autoscaler.providers.azure_groups import KIND, Groups
from tradewind.autoscaler.providers.azure_preflight import is_granted
from tradewind.autoscaler.providers.azure_prices import AzurePrices
from tradewind.autoscaler.providers.azure_settings import (
    TAG_FLEET,
    AzureRegion,
    AzureSettings,
    Names,
    zone_number,
    zone_of,
)
from tradewind.autoscaler.providers.azure_vm import Status
from tradewind.autoscaler.providers.base import CloudNode, CloudState
from tradewind.emulators.azure import AzureEmulator
from tradewind.errors import AmbiguousOutcome, AuthError, ConfigError, Conflict, InvalidRequest, QuotaExceeded, Stockout
from tradewind.model import EndReason, Market

SUBNET = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/default"
SETTINGS = AzureSettings(FLEET, "s", "tradewind", (AzureRegion("eastus", SUBNET), AzureRegion("westus2", SUBNET)))
KEY = "ssh-rsa AAAA"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AzureWorld]:
    world = AzureWorld(tmp_path)
    yield world
    world.close()


def body(settings: AzureSettings = SETTINGS, offer: Any = SPOT, **spec: Any) -> dict[str, Any]:
    return azure_vm.vm_body(make_spec("tw-1", offer, **spec), settings, "#!/bin/sh\n", KEY)


def only(nodes: Any) -> CloudNode:
    [node] = nodes
    assert isinstance(node, CloudNode)
    return node


# --- asking --------------------------------------------------------------------------------------------------------


def test_spot_is_deleted_when_it_is_evicted_and_costs_at_most_its_limit() -> None:
    spot = body(max_price_uusd_per_h=285_000)["properties"]
    assert (spot["priority"], spot["evictionPolicy"], spot["billingProfile"]) == ("Spot", "Delete", {"maxPrice": 0.285})
    assert body()["properties"]["billingProfile"] == {"maxPrice": -1}


def test_a_capacity_reservation_is_for_on_demand_alone() -> None:
    reserved = replace(SETTINGS, regions=(AzureRegion("eastus", SUBNET, capacity_reservation="/group"),))
    group = {"capacityReservationGroup": {"id": "/group"}}
    assert body(reserved, ON_DEMAND)["properties"]["capacityReservation"] == group
    assert "capacityReservation" not in body(reserved)["properties"]
    assert "evictionPolicy" not in body(reserved, ON_DEMAND)["properties"]


def test_a_zone_is_a_number_or_left_to_azure() -> None:
    anywhere = replace(SPOT, market=replace(SPOT.market, zone="eastus"))
    assert body()["zones"] == ["1"]
    assert "zones" not in body(offer=anywhere)
    assert (zone_number(SPOT.market), zone_number(anywhere.market)) == ("1", "")
    assert (zone_of("eastus", "1"), zone_of("eastus", "")) == ("eastus-1", "eastus")


def test_settings_reach_the_machine() -> None:
    region = AzureRegion("eastus", SUBNET, security_group="/nsg")
    settings = replace(
        SETTINGS, regions=(region,), image="/images/mine", identity="/id", disk_gib=64, tags={"team": "a"}
    )
    made, nic = body(settings), azure_vm.nic_body(make_spec("tw-1", SPOT), settings)
    assert made["identity"] == {"type": "UserAssigned", "userAssignedIdentities": {"/id": {}}}
    assert made["properties"]["storageProfile"]["imageReference"] == {"id": "/images/mine"}
    assert made["properties"]["storageProfile"]["osDisk"]["diskSizeGB"] == 64
    assert (made["tags"]["team"], nic["tags"]) == ("a", made["tags"])
    assert nic["properties"]["networkSecurityGroup"] == {"id": "/nsg"}
    assert "securityProfile" not in body(replace(SETTINGS, encryption_at_host=False))["properties"]


def test_user_data_that_is_too_long_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidRequest, match="longer than"):
        azure_vm.vm_body(make_spec("tw-1", SPOT), SETTINGS, "x" * 60_000, KEY)


def test_a_name_tells_the_launch_and_the_fleet() -> None:
    ours, theirs = Names("ours"), Names("theirs")
    assert ours.launch_id(ours.vm("tw-1").upper()) == "tw-1"
    assert theirs.launch_id(ours.vm("tw-1")) == ""
    assert len({ours.vm("tw-1"), ours.nic("tw-1"), ours.disk("tw-1"), theirs.vm("tw-1")}) == 4


def test_settings_tell_all_mistakes_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        AzureSettings("A B", "", "", (AzureRegion("eastus", "default"),), image="ubuntu", disk_gib=1, timeout_s=0)
    fields = [problem.field for problem in caught.value.problems]
    named = ["fleet", "subscription", "resource_group", "regions.eastus.subnet", "image", "disk_gib"]
    assert fields == [*named, "answer_wait_s, timeout_s"]


# --- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provisioning", "power", "state", "is_leftover", "is_billed"),
    [
        ("Creating", "", CloudState.PENDING, False, False),
        ("Creating", "starting", CloudState.PENDING, False, False),
        ("Succeeded", "running", CloudState.RUNNING, False, True),
        ("Succeeded", "", CloudState.RUNNING, False, True),  # the listing of power states was older
        ("Updating", "running", CloudState.RUNNING, False, True),
        ("Succeeded", "stopping", CloudState.STOPPING, False, True),
        ("Succeeded", "stopped", CloudState.STOPPING, True, True),  # shut down from inside: billed all the same
        ("Succeeded", "deallocated", CloudState.STOPPING, True, True),
        ("Failed", "", CloudState.GONE, True, False),
        ("Failed", "running", CloudState.STOPPING, False, True),
        ("Deleting", "running", CloudState.STOPPING, False, True),
    ],
)
def test_the_state_of_a_machine(
    provisioning: str, power: str, state: CloudState, is_leftover: bool, is_billed: bool
) -> None:
    vm = {**body(), "name": "x"}
    vm["properties"] |= {"provisioningState": provisioning, "vmId": "1", "timeCreated": "2026-08-01T00:00:00Z"}
    status = Status(power)
    node = azure_vm.node_of(vm, status, {SPOT.market: SPOT})
    assert (node.state, azure_vm.is_leftover(vm, status)) == (state, is_leftover)
    assert (node.billed_from_s is not None) is is_billed
    assert node.offer is SPOT


def test_a_status_tells_why_a_machine_failed() -> None:
    failed = {"code": "ProvisioningState/failed/AllocationFailed", "message": "no", "time": "2026-08-01T00:00:00Z"}
    told = Status.of({"statuses": [failed, {"code": "PowerState/stopped"}]})
    assert (told.code, told.message, told.power, told.since_s) == ("AllocationFailed", "no", "stopped", 1785542400.0)
    fine = {"code": "ProvisioningState/succeeded", "message": "hello"}
    assert Status.of({"statuses": [fine]}) == Status()


def event(vm: str, operation: str, status: str, minute: int) -> dict[str, Any]:
    return {
        "eventTimestamp": f"2026-08-01T00:{minute:02}:00.0000000Z",
        "operationName": {"value": f"Microsoft.Compute/virtualMachines/{operation}"},
        "status": {"value": status},
        "resourceId": f"/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/{vm.upper()}",
    }


def ends(*events: dict[str, Any]) -> list[CloudNode]:
    return azure_log.ended_nodes(azure_log.happenings(events), Names(FLEET), {})


def test_the_log_tells_evictions_from_deletions() -> None:
    vm = Names(FLEET).vm("tw-1")
    began, ran = event(vm, "write", "Started", 1), event(vm, "write", "Succeeded", 2)
    asked, deleted = event(vm, "delete", "Started", 5), event(vm, "delete", "Succeeded", 6)
    evicted = only(ends(event(vm, "evictSpotVM/action", "Succeeded", 4), ran, began))
    assert (evicted.launch_id, evicted.end, evicted.state) == ("tw-1", EndReason.PREEMPTED, CloudState.GONE)
    assert (evicted.billed_until_s or 0) - (evicted.billed_from_s or 0) == 120
    assert only(ends(deleted, asked, ran, began)).end is EndReason.TERMINATED
    assert ends(began, ran, asked) == []  # not yet
    assert ends(event("somebodys", "delete", "Succeeded", 1), event(vm, "restart/action", "Succeeded", 1)) == []


def test_a_machine_that_never_ran_is_not_billed() -> None:
    vm = Names(FLEET).vm("tw-1")
    node = only(ends(event(vm, "write", "Failed", 2), event(vm, "delete", "Succeeded", 6)))
    assert (node.end, node.billed_from_s, node.billed_until_s) == (EndReason.CRASHED, None, None)


@pytest.mark.parametrize(
    ("roles", "granted"),
    [
        ([{"actions": ["*"]}], True),
        ([{"actions": ["Microsoft.Compute/*/write"]}], True),
        ([{"actions": ["microsoft.compute/virtualmachines/*"]}], True),
        ([{"actions": ["*/read"]}], False),
        ([{"actions": ["*"], "notActions": ["Microsoft.Compute/*"]}], False),
        ([{"actions": ["*"], "notActions": ["*"]}, {"actions": ["Microsoft.Compute/*"]}], True),
        ([], False),
    ],
)
def test_a_permission_is_granted_by_one_role_at_least(roles: list[dict[str, Any]], granted: bool) -> None:
    assert is_granted("Microsoft.Compute/virtualMachines/write", roles) is granted


# --- with the emulator ---------------------------------------------------------------------------------------------


def test_a_refusal_that_comes_late_is_listed_as_an_end_and_is_debris(world: AzureWorld) -> None:
    provider = world.azure(replace(world.settings(), answer_wait_s=0))
    world.stock_out(SPOT)
    assert provider.launch(make_spec("tw-1", SPOT)).state is CloudState.PENDING
    world.advance(BOOTED_S)
    node = only(provider.list_nodes())
    assert (node.state, node.end, node.billed_from_s) == (CloudState.GONE, EndReason.CRASHED, None)
    assert "ZonalAllocationFailed" in node.detail
    assert isinstance(node.refusal, Stockout)
    assert list(provider.list_debris()) == world.debris() != []
    provider.delete_debris(world.debris())
    world.advance(ENDED_S)
    assert (world.debris(), world.emulator.compute.nics, world.emulator.compute.disks) == ([], {}, {})


@pytest.mark.parametrize("refuse", ["stock_out", "limit_quota"])
def test_a_refused_launch_cleans_up_behind_itself(world: AzureWorld, refuse: str) -> None:
    """Whether Azure says no at once, or accepts and leaves a failed machine."""
    world.stock_out(SPOT) if refuse == "stock_out" else world.limit_quota(0)
    with pytest.raises((Stockout, QuotaExceeded)):
        world.provider().launch(make_spec("tw-1", SPOT))
    world.advance(ENDED_S)
    compute = world.emulator.compute
    assert (compute.vms, compute.nics, compute.disks) == ({}, {}, {})


def test_a_refused_launch_id_never_gets_a_machine_later(world: AzureWorld) -> None:
    """It has had its machine, if only a failed one: the loop takes a new id for the next attempt."""
    provider = world.provider()
    world.stock_out(SPOT)
    with pytest.raises(Stockout):
        provider.launch(make_spec("tw-1", SPOT))
    world.restock()
    world.advance(ENDED_S)
    assert provider.launch(make_spec("tw-1", SPOT)).state is CloudState.GONE
    assert world.instances() == []


def test_one_that_runs_but_never_comes_up_is_billed_until_it_is_ended(world: AzureWorld) -> None:
    world.fail_boot(1)
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    node = only(provider.list_nodes())
    assert (node.state, node.billed_from_s is not None) == (CloudState.STOPPING, True)
    assert "OSProvisioningTimedOut" in node.detail
    assert list(provider.list_debris()) == []  # it works, for all that Azure knows


def test_one_that_went_down_by_itself_is_told_and_is_debris(world: AzureWorld) -> None:
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    [vm] = world.emulator.compute.vms.values()
    vm.power = "stopped"
    node = only(provider.list_nodes())
    assert node.state is CloudState.STOPPING
    assert "stopped" in node.detail
    assert list(provider.list_debris()) == [f"virtualMachines/{vm.name}"]


def test_an_eviction_is_missing_until_the_activity_log_tells(world: AzureWorld) -> None:
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    running = only(provider.list_nodes())
    world.emulator.faults.log_lag_s = 300
    world.preempt("tw-1", 0)
    gone_at_s = world.now_s()
    assert list(provider.list_nodes()) == []
    world.advance(300)
    node = only(provider.list_nodes())
    assert (node.end, node.billed_until_s) == (EndReason.PREEMPTED, pytest.approx(gone_at_s))
    assert (node.instance_id, node.offer, node.billed_from_s) == (running.instance_id, SPOT, running.billed_from_s)


def test_the_activity_log_is_asked_only_when_one_is_missing(world: AzureWorld) -> None:
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    provider.list_nodes()

    def asked() -> int:
        return sum("eventtypes" in call for call in world.emulator.calls)

    before = asked()
    provider.list_nodes()
    assert asked() == before
    world.preempt("tw-1", 0)
    provider.list_nodes()
    provider.list_nodes()
    assert asked() == before + 1


def test_an_interface_without_its_machine_is_debris_or_is_used_again(world: AzureWorld) -> None:
    """The controller died between the two calls."""
    provider, settings, spec = world.provider(), world.settings(), make_spec("tw-1", SPOT)
    nic = Names(FLEET).nic("tw-1")
    AzureApi(settings, world.emulator.credential()).put_nic(nic, azure_vm.nic_body(spec, settings))
    assert list(provider.list_debris()) == [f"networkInterfaces/{nic}"]
    provider.launch(spec)
    assert (list(provider.list_debris()), len(world.emulator.compute.nics)) == ([], 1)


def test_the_group_of_a_launch_that_is_under_way_is_no_debris(world: AzureWorld) -> None:
    """It is made before the first machine in it."""
    provider, spec = world.provider(), make_spec("tw-1", SPOT, placement_group=GANG)
    with provider._under_way((spec.launch_id, GANG)):
        provider._groups.ensure(spec)
        assert list(provider.list_debris()) == []
    assert list(provider.list_debris()) == [f"{KIND}/{GANG}"]


def test_debris_that_may_not_be_deleted_does_not_keep_the_rest(world: AzureWorld) -> None:
    provider, settings, spec = world.provider(), world.settings(), make_spec("tw-1", SPOT, placement_group=GANG)
    nic = Names(FLEET).nic("tw-1")
    AzureApi(settings, world.emulator.credential()).put_nic(nic, azure_vm.nic_body(spec, settings))
    provider._groups.ensure(spec)
    world.emulator.faults.denied.add("Microsoft.Network/networkInterfaces/delete")
    with pytest.raises(AuthError):
        provider.delete_debris(provider.list_debris())
    assert list(provider.list_debris()) == [f"networkInterfaces/{nic}"]


def test_the_end_of_a_launch_that_came_no_further_takes_its_interface(world: AzureWorld) -> None:
    provider = world.provider()
    world.cut_before_doing(1)
    with pytest.raises(AmbiguousOutcome):
        provider.launch(make_spec("tw-1", SPOT))
    assert world.debris() != []
    provider.terminate(["tw-1"])
    assert world.debris() == []


def test_an_existing_machine_is_never_changed(world: AzureWorld) -> None:
    """Not even by a launch with other settings."""
    first = world.provider().launch(make_spec("tw-1", SPOT))
    before = copy.deepcopy(world.emulator.compute.vms)
    changed = world.azure(replace(world.settings(), disk_gib=500, tags={"a": "b"}))
    assert changed.launch(make_spec("tw-1", SPOT)).instance_id == first.instance_id
    assert [vm.body["tags"] for vm in world.emulator.compute.vms.values()] == [v.body["tags"] for v in before.values()]


def test_a_machine_is_made_only_if_there_is_none(world: AzureWorld) -> None:
    """Between the look and the call somebody else may have made it."""
    api, spec = AzureApi(world.settings(), world.emulator.credential()), make_spec("tw-1", SPOT)
    world.provider().launch(spec)
    with pytest.raises(Conflict):
        api.create_vm(Names(FLEET).vm("tw-1"), azure_vm.vm_body(spec, world.settings(), "", KEY))


def test_a_launch_is_sent_once_although_the_server_fails(world: AzureWorld) -> None:
    provider = world.provider()
    world.cut_after_sending(1)
    with pytest.raises(AmbiguousOutcome):
        provider.launch(make_spec("tw-1", SPOT))
    assert sum(call.startswith("PUT") and "virtualMachines" in call for call in world.emulator.calls) == 1


def test_prices_are_asked_for_every_ten_minutes_and_kept_while_there_is_no_answer(
    world: AzureWorld, caplog: pytest.LogCaptureFixture
) -> None:
    prices = AzurePrices(OFFERS, world.settings())
    now_s = world.now_s()
    first = {offer.market: offer for offer in prices.offers(now_s)}
    assert first[ON_DEMAND.market].price_uusd_per_h == 526_000  # neither Windows' nor that of "Low Priority"
    assert first[SPOT.market].price_source == "Azure retail prices"
    world.price_above(SPOT)
    assert prices.offers(now_s + 599)[0].price_uusd_per_h == SPOT.price_uusd_per_h
    assert prices.offers(now_s + 600)[0].price_uusd_per_h == 295_000
    deaf = AzurePrices(OFFERS, replace(world.settings(), prices_url=f"{world.emulator.url}/nowhere"))
    assert deaf.offers(now_s)[0].price_uusd_per_h == SPOT.price_uusd_per_h
    assert "prices are old" in caplog.text


# --- the emulator --------------------------------------------------------------------------------------------------


def ask(world: AzureWorld, method: str, path: str, sent: Any = None, **headers: str) -> tuple[int, str]:
    data = None if sent is None else json.dumps(sent).encode()
    request = urllib.request.Request(f"{world.emulator.url}{path}", data, headers, method=method)
    trust = ssl.create_default_context(cafile=world.emulator.ca_file)
    try:
        with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_metadata_service_gives_notice(world: AzureWorld) -> None:
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    path = f"/metadata/{Names(FLEET).vm('tw-1')}/scheduledevents?api-version=2020-07-01"

    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(ask(world, "GET", path, Metadata="true")[1])["Events"]
        return found

    assert ask(world, "GET", path)[0] == 400  # without the header
    assert events() == []
    world.preempt("tw-1", 30)
    [told] = events()
    assert (told["EventType"], told["Resources"]) == ("Preempt", [Names(FLEET).vm("tw-1")])
    ask(world, "POST", path, {"StartRequests": [{"EventId": told["EventId"]}]}, Metadata="true")  # ready to go
    assert world.instances() == []
    assert only(provider.list_nodes()).end is EndReason.PREEMPTED


def test_boots_and_ends_are_told_to_hooks(world: AzureWorld) -> None:
    told: list[str] = []
    world.emulator.compute.on_boot = lambda vm: told.append(f"boot {vm.user_data}")
    world.emulator.compute.on_end = lambda vm: told.append(f"end {vm.name}")
    provider, spec = world.provider(), make_spec("tw-1", SPOT)
    provider.launch(spec)
    world.advance(BOOTED_S)
    provider.terminate(["tw-1"])
    world.advance(ENDED_S)
    assert told == [f"boot {user_data(spec)}", f"end {Names(FLEET).vm('tw-1')}"]


def test_a_pool_follows_a_trace(world: AzureWorld) -> None:
    """Two can be had for ten minutes, then one: what is too much is taken back, with notice."""
    market, began_s = SPOT.market, world.now_s()
    world.emulator.faults.capacity[market.zone, market.instance_type, True] = lambda now_s: (
        2 if now_s < began_s + 600 else 1
    )
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    provider.launch(make_spec("tw-2", SPOT))
    with pytest.raises(Stockout):
        provider.launch(make_spec("tw-3", SPOT))
    world.advance(600)
    assert len(world.instances()) == 2
    world.advance(31)
    assert [truth.launch_id for truth in world.instances()] == ["tw-1"]
    found = {node.launch_id: node.end for node in provider.list_nodes()}
    assert (found["tw-1"], found["tw-2"]) == (None, EndReason.PREEMPTED)


def _deep(good: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(good)
    *folders, last = path.split(".")
    inside = changed
    for name in folders:
        inside = inside[name]
    inside[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("colour", "red", "colour"),
        ("properties.hardwareProfile.vm_size", "x", "vm_size"),
        ("location", "", "location"),
        ("location", "atlantis", "atlantis"),
        ("zones", ["9"], "InvalidAvailabilityZone"),
        ("tags", {"a/b": "c"}, "InvalidTagNameCharacters"),
        ("tags", {"a": "c" * 300}, "InvalidTagValue"),
        ("properties.osProfile", {}, "osProfile"),
        ("properties.osProfile.adminUsername", "root", "adminUsername"),
        ("properties.osProfile.customData", "no base64!", "Base64"),
        ("properties.osProfile.linuxConfiguration.ssh", {}, "SSH must be configured"),
        ("properties.hardwareProfile.vmSize", "Standard_X", "not valid"),
        ("properties.priority", "Regular", "EvictionPolicyCanBeSetOnlyOnAzureSpot"),
        ("properties.billingProfile.maxPrice", 0, "MaxPriceValueInvalid"),
        ("properties.storageProfile.imageReference.sku", "none", "PlatformImageNotFound"),
        ("properties.networkProfile.networkInterfaces", [{"id": "/a/b/c/d/e"}], "InvalidResourceReference"),
    ],
)
def test_the_emulator_refuses_what_azure_refuses(world: AzureWorld, path: str, value: Any, told: str) -> None:
    spec, settings = make_spec("tw-1", SPOT), world.settings()
    token = world.emulator.credential().get_token().token
    nic = settings.path("Microsoft.Network/networkInterfaces", Names(FLEET).nic("tw-1"))
    login = {"Authorization": f"Bearer {token}"}
    assert ask(world, "PUT", f"{nic}?api-version=2024-07-01", azure_vm.nic_body(spec, settings), **login)[0] == 201
    good = azure_vm.vm_body(spec, settings, "", KEY)
    vm = settings.path("Microsoft.Compute/virtualMachines", "vm")
    status, text = ask(world, "PUT", f"{vm}?api-version=2024-07-01", _deep(good, path, value), **login)
    assert (status in (400, 404, 409), told in text) == (True, True), text
    assert world.instances() == []
    assert ask(world, "PUT", f"{vm}?api-version=2024-07-01", good, **login)[0] == 201


def test_the_emulator_wants_a_token_a_version_and_a_good_name(world: AzureWorld) -> None:
    vm = world.settings().path("Microsoft.Compute/virtualMachines", "vm")
    login = {"Authorization": f"Bearer {world.emulator.credential().get_token().token}"}
    assert ask(world, "GET", vm, **login) == (400, ask(world, "GET", vm, **login)[1])
    assert "MissingApiVersionParameter" in ask(world, "GET", vm, **login)[1]
    assert ask(world, "GET", f"{vm}?api-version=2024-07-01")[0] == 401
    assert ask(world, "GET", f"{vm}?api-version=2024-07-01", Authorization="Bearer x")[0] == 401
    bad = world.settings().path("Microsoft.Compute/virtualMachines", "-vm")
    good = azure_vm.vm_body(make_spec("tw-1", SPOT), world.settings(), "", KEY)
    assert "InvalidResourceName" in ask(world, "PUT", f"{bad}?api-version=2024-07-01", good, **login)[1]


@pytest.mark.parametrize("sold_out", [False, True])
def test_the_sdks_own_poller_follows_an_operation(sold_out: bool) -> None:
    """We do not use it; that it works tells that operations are emulated well: a failed one has HTTP status 200."""
    from azure.core.exceptions import HttpResponseError
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.network import NetworkManagementClient

    emulator = AzureEmulator().start()
    try:
        emulator.compute.provision_s, emulator.compute.boot_s, emulator.compute.retry_after_s = 0.02, 0.04, 0
        login = (emulator.credential(), emulator.subscription, emulator.url)
        settings = replace(SETTINGS, subscription=login[1], regions=(AzureRegion("eastus", emulator.subnet("eastus")),))
        spec, names, hands = make_spec("tw-1", SPOT), Names(FLEET), {"connection_verify": emulator.ca_file}
        network, compute = NetworkManagementClient(*login, **hands), ComputeManagementClient(*login, **hands)
        nic = azure_vm.nic_body(spec, settings)
        network.network_interfaces.begin_create_or_update("tradewind", names.nic("tw-1"), nic).result()
        if sold_out:
            emulator.faults.sold_out.add(("eastus-1", SPOT.market.instance_type, True))
        poller = compute.virtual_machines.begin_create_or_update(
            "tradewind", names.vm("tw-1"), azure_vm.vm_body(spec, settings, "hi", KEY), polling_interval=0
        )
        if sold_out:
            with pytest.raises(HttpResponseError) as caught:
                poller.result()
            assert caught.value.error is not None
            assert caught.value.error.code == "ZonalAllocationFailed"
        else:
            assert poller.result().provisioning_state == "Succeeded"
            [vm] = emulator.compute.vms.values()
            assert base64.b64decode(vm.custom_data) == b"hi"
    finally:
        emulator.close()


def test_offers_that_are_no_longer_configured_are_known_by_their_market() -> None:
    vm = body()
    vm["properties"] |= {"provisioningState": "Succeeded", "vmId": "1"}
    node = azure_vm.node_of(vm, Status("running"), {})
    assert node.offer.market == Market("azure", "eastus", "eastus-1", SPOT.market.instance_type, SPOT.market.capacity)
    assert node.offer.price_uusd_per_h is None


def test_a_machine_that_is_down_again_when_its_launch_is_answered_is_no_refusal(world: AzureWorld) -> None:
    compute = world.emulator.compute
    compute.provision_s = compute.boot_s = 0.5  # it boots, fails and shuts itself down before anybody looks
    compute.on_boot = compute.stopped
    provider = world.provider()
    node = provider.launch(make_spec("tw-1", SPOT))
    assert node.launch_id == "tw-1"
    assert only(provider.list_nodes()).state is not CloudState.RUNNING
    assert "went down by itself" in only(provider.list_nodes()).detail


class OneGroup:
    """What is asked of AzureApi: one placement group of ours, with these machines."""

    settings = SETTINGS

    def __init__(self, *machines: str) -> None:
        self.inside = [{"id": f"/subscriptions/s/providers/c/virtualMachines/{name}"} for name in machines]

    def list_groups(self) -> list[dict[str, Any]]:
        tags, inside = {TAG_FLEET: SETTINGS.fleet}, {"virtualMachines": self.inside}
        return [{"name": "g", "location": SETTINGS.regions[0].name, "tags": tags, "properties": inside}]


@pytest.mark.parametrize(
    ("inside", "going", "empty"),
    [
        ([], [], ["g"]),
        (["VM-1"], ["vm-1", "vm-2"], ["g"]),  # Azure writes ids in any case
        (["vm-1", "vm-2"], ["vm-1"], []),
        (["vm-1"], [], []),
    ],
)
def test_a_group_is_left_over_with_the_last_machine_in_it(
    inside: list[str], going: list[str], empty: list[str]
) -> None:
    api = cast("AzureApi", OneGroup(*inside))
    assert Groups(api).empty(going) == empty
