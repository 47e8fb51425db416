"""What the contract does not ask of Google Cloud: the shapes of its machines and slices, its queue, its late refusals,
and what the emulator itself refuses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cloud_world import FLEET, make_spec
from worlds.gcp_world import GcpWorld, user_data
from worlds.tpu_queue_world import TpuQueueWorld
from worlds.tpu_world import SPOT as SLICE
from worlds.tpu_world import TpuWorld

from tradewind.autoscaler.providers import gcp_instance, gcp_slice
from tradewind.autoscaler.providers.base import CloudState
from tradewind.autoscaler.providers.gcp_cloud import GcpProvider
from tradewind.autoscaler.providers.gcp_settings import GcpSettings, Names, request_id
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.emulators.gcp_rules import compile_filter
from tradewind.emulators.gcp_tpu import hosts_of
from tradewind.errors import AuthError, ConfigError, InvalidRequest, PriceTooHigh, Scope, Stockout, Transient
from tradewind.model import Capacity, EndReason, Market, Offer

SETTINGS = GcpSettings(FLEET, "p", ("us-central1",), service_account="nodes@p")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[GcpWorld]:
    world = GcpWorld(tmp_path)
    yield world
    world.close()


@pytest.fixture
def slices(tmp_path: Path) -> Iterator[TpuWorld]:
    world = TpuWorld(tmp_path)
    yield world
    world.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[TpuQueueWorld]:
    world = TpuQueueWorld(tmp_path)
    yield world
    world.close()


def offer(instance_type: str, capacity: Capacity = Capacity.SPOT, accelerator: str = "T4") -> Offer:
    return Offer(Market("gcp", "us-central1", "us-central1-a", instance_type, capacity), 8, 30, accelerator, 1)


def body(wanted: Offer, settings: GcpSettings = SETTINGS, text: str = "#!/bin/sh") -> dict[str, Any]:
    spec, names = make_spec("tw-1", wanted), Names.of(FLEET, [wanted])
    return gcp_instance.instance_body(spec, names.name(spec), names, settings, text)


# --- machines ------------------------------------------------------------------------------------------------------


def test_cards_are_added_to_machines_without_gpus_of_their_own() -> None:
    found = body(offer("n1-standard-8+t4x2"))
    assert found["machine_type"].endswith("/n1-standard-8")
    [card] = found["guest_accelerators"]
    assert (card["accelerator_type"].rpartition("/")[2], card["accelerator_count"]) == ("nvidia-tesla-t4", 2)
    assert body(offer("a2-highgpu-1g", accelerator="A100"))["guest_accelerators"] == []


@pytest.mark.parametrize("name", ["n1-standard-8+t4x2", "n1-standard-64+v100x8", "g2-standard-8", "e2-standard-4"])
def test_a_type_is_read_back_as_it_was_asked_for(name: str) -> None:
    assert gcp_instance.instance_type_of(*gcp_instance.machine_of(name)) == name


def test_built_in_cards_are_not_part_of_the_name() -> None:
    assert gcp_instance.instance_type_of("a2-highgpu-1g", {"nvidia-tesla-a100": 1}) == "a2-highgpu-1g"


def test_an_accelerator_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        gcp_instance.machine_of("n1-standard-8+abacusx2")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (offer("g2-standard-8"), {"on_host_maintenance": "TERMINATE", "provisioning_model": "SPOT"}),
        (offer("g2-standard-8", Capacity.ON_DEMAND), {"on_host_maintenance": "TERMINATE"}),
        (offer("e2-standard-4", Capacity.ON_DEMAND, ""), {"on_host_maintenance": "MIGRATE"}),
    ],
)
def test_scheduling(wanted: Offer, expected: dict[str, str]) -> None:
    scheduling = body(wanted)["scheduling"]
    assert expected.items() <= scheduling.items()
    assert scheduling["automatic_restart"] is False
    is_spot = wanted.market.capacity is Capacity.SPOT
    assert scheduling.get("instance_termination_action") == ("DELETE" if is_spot else None)


def test_a_reservation_is_for_on_demand_alone() -> None:
    reserved = replace(SETTINGS, reservation="mine")
    assert body(offer("g2-standard-8", Capacity.ON_DEMAND), reserved)["reservation_affinity"]["values"] == ["mine"]
    affinity = body(offer("g2-standard-8"), reserved)["reservation_affinity"]
    assert affinity == {"consume_reservation_type": "NO_RESERVATION"}


def test_new_machines_take_hyperdisks_only() -> None:
    kinds = [
        body(offer(name))["disks"][0]["initialize_params"]["disk_type"] for name in ("a4-highgpu-8g", "g2-standard-8")
    ]
    assert [kind.rpartition("/")[2] for kind in kinds] == ["hyperdisk-balanced", "pd-balanced"]


def test_a_script_is_for_googles_agent_and_the_rest_for_cloud_init() -> None:
    assert gcp_instance.metadata_of("#!/bin/sh")["startup-script"] == "#!/bin/sh"
    assert gcp_instance.metadata_of("#cloud-config\n")["user-data"] == "#cloud-config\n"


def test_a_name_tells_whose_it_is_and_what() -> None:
    spot, on_demand = offer("g2-standard-8"), offer("g2-standard-8", Capacity.ON_DEMAND)
    names = Names.of(FLEET, [spot, on_demand])
    for wanted in (spot, on_demand):
        assert names.whose(names.name(make_spec("tw-1", wanted)), "us-central1-a") == ("tw-1", wanted)
    strangers = Names.of("neighbour", [spot])
    assert names.whose(strangers.name(make_spec("tw-1", spot)), "us-central1-a") is None


@pytest.mark.parametrize(
    "change",
    [
        {"fleet": "Upper Case"},
        {"project": ""},
        {"regions": ()},
        {"regions": ("us-central1", "us-central1")},
        {"image": ""},
        {"labels": {"tradewind-fleet": "x"}},
        {"labels": {"Team": "x"}},
        {"disk_gib": 1},
        {"tpu_queue_s": -1.0},
    ],
)
def test_wrong_settings_are_refused_when_built(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(SETTINGS, **change)


def test_a_machine_that_went_down_by_itself_is_told_and_debris_until_it_is_deleted(world: GcpWorld) -> None:
    world.fail_boot(1)
    provider = world.provider()
    provider.launch(make_spec("tw-1", world.spot))
    world.advance(60)
    [node] = provider.list_nodes()
    assert node.state is CloudState.STOPPING
    assert "guestTerminate" in node.detail
    assert len(provider.list_debris()) == 1
    provider.delete_debris(provider.list_debris())
    world.advance(60)
    assert (world.debris(), list(provider.list_debris())) == ([], [])


@pytest.mark.parametrize("kind", ["world", "slices"])
def test_a_dead_region_leaves_the_others_visible(kind: str, request: pytest.FixtureRequest) -> None:
    chosen: GcpWorld = request.getfixturevalue(kind)
    provider = chosen.provider()
    provider.launch(make_spec("tw-1", chosen.spot))
    provider.launch(make_spec("tw-2", chosen.other_region))
    chosen.advance(60)
    chosen.blackout(chosen.other_region.market.region)
    with pytest.raises(PartialListing) as caught:
        provider.list_nodes()
    assert [node.launch_id for node in caught.value.nodes] == ["tw-1"]
    assert caught.value.blind == {chosen.other_region.market.region}
    assert (
        provider.launch(make_spec("tw-3", chosen.other_zone)).offer == chosen.other_zone
    )  # bought where there is life
    with pytest.raises(Transient):
        provider.launch(make_spec("tw-4", chosen.other_region))


def test_a_request_id_differs_by_zone_and_attempt() -> None:
    assert len({request_id("a", zone, attempt) for zone in "xy" for attempt in range(2)}) == 4
    assert request_id("a", "x", 0) == request_id("a", "x", 0)


def test_a_price_limit_is_held_before_anything_is_asked(world: GcpWorld) -> None:
    with pytest.raises(PriceTooHigh):
        world.provider().launch(make_spec("tw-1", world.spot, max_price_uusd_per_h=1))
    assert world.emulator.calls == []


def test_a_refusal_that_comes_late_is_listed_as_an_end(world: GcpWorld) -> None:
    """Google says no only after the launch has stopped waiting."""
    world.emulator.compute.provision_s = 60.0
    world.stock_out(world.spot)
    provider = world.provider()
    assert provider.launch(make_spec("tw-1", world.spot)).state is CloudState.PENDING
    world.advance(60)
    [node] = provider.list_nodes()
    assert (node.state, node.end, node.billed_from_s) == (CloudState.GONE, EndReason.CRASHED, None)
    assert "does not have enough resources" in node.detail
    assert isinstance(node.refusal, Stockout)


def test_a_refusal_of_a_slice_that_comes_late_is_listed_with_its_reason(slices: TpuWorld) -> None:
    slices.emulator.tpu.answer_s = 60.0
    slices.stock_out(SLICE)
    provider = slices.provider()
    assert provider.launch(make_spec("tw-1", SLICE)).state is CloudState.PENDING
    slices.advance(60)
    [node] = provider.list_nodes()
    assert (node.state, node.end) == (CloudState.GONE, EndReason.CRASHED)
    assert isinstance(node.refusal, Stockout)


def test_an_internal_error_is_tried_again_with_a_new_request_id(world: GcpWorld) -> None:
    """The old one would be answered with the old error."""
    provider = world.provider()
    world.refuse_unknown("INTERNAL_ERROR")
    for _ in range(2):
        with pytest.raises(Transient):
            provider.launch(make_spec("tw-1", world.spot))
        provider = world.provider()  # a controller that starts again learns of the old error first
    assert provider.launch.__self__._attempts == {}
    with pytest.raises(Transient):
        provider.launch(make_spec("tw-1", world.spot))
    assert provider.launch(make_spec("tw-1", world.spot)).state is CloudState.PENDING
    assert len(world.instances()) == 1


def test_the_metadata_service_tells_of_a_preemption(world: GcpWorld) -> None:
    provider = world.provider()
    node = provider.launch(make_spec("tw-1", world.spot))
    world.advance(60)
    url = f"{world.emulator.metadata_url(node.instance_id)}/computeMetadata/v1/instance"

    def ask(key: str) -> str:
        request = urllib.request.Request(f"{url}/{key}", headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return str(answer.read().decode())

    assert (ask("preempted"), ask("attributes/startup-script")) == ("FALSE", user_data(make_spec("tw-1", world.spot)))
    world.preempt("tw-1", 30)
    assert (ask("preempted"), ask("maintenance-event")) == ("TRUE", "NONE")
    [noticed] = provider.list_nodes()
    assert noticed.notice_deadline_s == pytest.approx(world.now_s() + 30)
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{url}/preempted", timeout=5)  # without the header


def test_boots_and_ends_are_told_to_hooks(world: GcpWorld) -> None:
    told: list[str] = []
    world.emulator.compute.on_boot = lambda vm: told.append(f"boot {vm.name}")
    world.emulator.compute.on_end = lambda vm: told.append(f"end {vm.name}")
    provider = world.provider()
    name = provider.launch(make_spec("tw-1", world.spot)).instance_id
    world.advance(60)
    provider.terminate(["tw-1"])
    world.advance(60)
    assert told == [f"boot {name}", f"end {name}"]


@pytest.mark.parametrize("kind", ["world", "slices"])
def test_a_pool_follows_a_trace(kind: str, request: pytest.FixtureRequest) -> None:
    """Two can be had for ten minutes, then one: what is too much is taken back, with notice."""
    chosen: GcpWorld = request.getfixturevalue(kind)
    market, began_s = chosen.spot.market, chosen.now_s()
    pool = (market.zone, market.instance_type.removeprefix("tpu-"), True)
    chosen.emulator.faults.capacity[pool] = lambda now_s: 2 if now_s < began_s + 600 else 1
    provider = chosen.provider()
    provider.launch(make_spec("tw-1", chosen.spot))
    provider.launch(make_spec("tw-2", chosen.spot))
    with pytest.raises(Stockout):
        provider.launch(make_spec("tw-3", chosen.spot))
    chosen.advance(600)
    assert len(chosen.instances()) == 2
    chosen.advance(31)
    assert [truth.launch_id for truth in chosen.instances()] == ["tw-1"]
    ends = {node.launch_id: node.end for node in provider.list_nodes()}
    assert (ends["tw-1"], ends["tw-2"]) == (None, EndReason.PREEMPTED)


# --- slices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "hosts"),
    [("v2-8", 1), ("v3-32", 4), ("v4-16", 2), ("v5p-128", 16), ("v5litepod-8", 1), ("v5litepod-16", 4), ("v6e-64", 16)],
)
def test_hosts_of_a_slice(kind: str, hosts: int) -> None:
    assert hosts_of(kind) == hosts


def test_a_slice_is_one_node_with_all_its_hosts(slices: TpuWorld) -> None:
    provider = slices.provider()
    provider.launch(make_spec("tw-1", SLICE))
    slices.advance(60)
    [node] = provider.list_nodes()
    [truth] = slices.emulator.tpu.nodes.values()
    assert (node.offer.hosts, len(truth.body["networkEndpoints"])) == (SLICE.hosts, SLICE.hosts)


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [("tpu-v4-8", "tpu-ubuntu2204-base"), ("tpu-v5litepod-4", "v2-alpha-tpuv5-lite"), ("tpu-v6e-8", "v2-alpha-tpuv6e")],
)
def test_the_runtime_goes_by_generation(kind: str, runtime: str) -> None:
    assert gcp_slice.runtime_of(kind, SETTINGS) == runtime
    assert gcp_slice.runtime_of(kind, replace(SETTINGS, tpu_runtime="mine")) == "mine"


def test_a_right_that_is_missing_for_tpus_does_not_block_machines(slices: TpuWorld) -> None:
    slices.deny()
    with pytest.raises(AuthError) as caught:
        slices.provider().launch(make_spec("tw-1", SLICE))
    assert caught.value.scope is Scope.REGION
    slices.expire_credentials()
    with pytest.raises(AuthError) as caught:
        slices.provider().launch(make_spec("tw-1", SLICE))
    assert caught.value.scope is Scope.CLOUD


def test_a_preempted_slice_is_debris_until_it_is_deleted(slices: TpuWorld) -> None:
    provider = slices.provider()
    provider.launch(make_spec("tw-1", SLICE))
    slices.advance(60)
    slices.preempt("tw-1", 0)
    [node] = provider.list_nodes()
    assert (node.state, node.end) == (CloudState.GONE, EndReason.PREEMPTED)
    found = provider.list_debris()
    assert len(found) == 1
    provider.delete_debris(found)
    slices.advance(60)
    assert (slices.debris(), provider.list_debris()) == ([], [])


def test_a_queued_slice_waits_for_its_turn(queue: TpuQueueWorld) -> None:
    provider = queue.provider()
    queue.stock_out(SLICE)
    assert provider.launch(make_spec("tw-1", SLICE)).state is CloudState.PENDING
    queue.advance(60)
    [node] = provider.list_nodes()
    assert (node.state, node.billed_from_s) == (CloudState.PENDING, None)
    assert "WAITING_FOR_RESOURCES" in node.detail
    queue.restock()
    queue.advance(60)
    [node] = provider.list_nodes()
    assert node.state is CloudState.RUNNING


def test_a_queued_slice_whose_time_is_over_has_ended(queue: TpuQueueWorld) -> None:
    provider = queue.provider()
    queue.stock_out(SLICE)
    provider.launch(make_spec("tw-1", SLICE))
    queue.advance(queue.queue_s + 60)
    [node] = provider.list_nodes()
    assert (node.state, node.end) == (CloudState.GONE, EndReason.CRASHED)
    assert "no more capacity" in node.detail
    provider.delete_debris(provider.list_debris())
    queue.advance(60)
    assert (queue.debris(), queue.emulator.tpu.queued) == ([], {})


def test_a_queued_slice_is_ended_while_it_waits(queue: TpuQueueWorld) -> None:
    provider = queue.provider()
    queue.stock_out(SLICE)
    provider.launch(make_spec("tw-1", SLICE))
    provider.terminate(["tw-1"])
    queue.restock()
    assert list(provider.wait_terminated(["tw-1"], 60)) == []
    assert (queue.instances(), queue.emulator.tpu.queued) == ([], {})


# --- both ----------------------------------------------------------------------------------------------------------


def test_one_provider_for_machines_and_slices(world: GcpWorld) -> None:
    login = world.emulator.credentials()
    cloud = GcpProvider(
        world.settings(),
        user_data,
        offers=[world.spot, SLICE],
        credentials=login,
        clock=world.now_s,
        sleep=world.advance,
    )
    cloud.launch(make_spec("tw-1", world.spot))
    cloud.launch(make_spec("tw-2", SLICE))
    world.advance(60)
    assert {node.launch_id: node.offer for node in cloud.list_nodes()} == {"tw-1": world.spot, "tw-2": SLICE}
    assert [check for check in cloud.preflight() if not check.ok] == []
    world.blackout("europe-west4")
    with pytest.raises(PartialListing) as caught:
        cloud.list_nodes()
    assert {node.launch_id for node in caught.value.nodes} == {"tw-1", "tw-2"}
    world.emulator.faults.dead_regions.clear()
    cloud.terminate(["tw-1", "tw-2"])
    assert list(cloud.wait_terminated(["tw-1", "tw-2"], 120)) == []
    assert (world.emulator.compute.vms, world.emulator.tpu.nodes, list(cloud.list_debris())) == ({}, {}, [])


def test_a_fleet_without_tpus_does_not_ask_for_them(world: GcpWorld) -> None:
    login = world.emulator.credentials()
    cloud = GcpProvider(world.settings(), user_data, offers=[world.spot], credentials=login, clock=world.now_s)
    cloud.list_nodes()
    assert [call for call in world.emulator.calls if "/v2/" in call] == []


# --- the emulator --------------------------------------------------------------------------------------------------


def _post(world: GcpWorld, path: str, sent: dict[str, Any], token: str) -> tuple[int, str]:
    request = urllib.request.Request(
        f"{world.emulator.url}{path}", json.dumps(sent).encode(), {"Authorization": f"Bearer {token}"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _token(world: GcpWorld) -> str:
    from google.auth.transport.requests import Request

    login = world.emulator.credentials()
    login.refresh(Request())
    return str(login.token)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"colour": "red"}, "colour"),
        ({"name": "Upper"}, "resource.name"),
        ({"machineType": ""}, "resource.machineType"),
        ({"machineType": "zones/us-central1-a/machineTypes/x9-huge-1"}, "does not exist"),
        ({"disks": []}, "resource.disks"),
        ({"labels": {"Fleet": "x"}}, "Label"),
        ({"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "MIGRATE"}}, "live migration"),
        ({"scheduling": {"onHostMaintenance": "TERMINATE", "instanceTerminationAction": "DELETE"}}, "SPOT"),
        ({"networkInterfaces": [{"subnetwork": "projects/p/regions/us-east1/subnetworks/default"}]}, "subnetwork"),
    ],
)
def test_the_emulator_refuses_what_google_refuses(world: GcpWorld, change: dict[str, Any], told: str) -> None:
    good = {
        "name": "good",
        "machineType": "zones/us-central1-a/machineTypes/g2-standard-8",
        "scheduling": {"onHostMaintenance": "TERMINATE"},
        "disks": [
            {"boot": True, "initializeParams": {"sourceImage": f"projects/{next(iter(world.emulator.compute.images))}"}}
        ],
        "networkInterfaces": [{"subnetwork": "projects/p/regions/us-central1/subnetworks/default"}],
    }
    token, path = _token(world), "/compute/v1/projects/emulated/zones/us-central1-a/instances"
    code, text = _post(world, path, {**good, **change}, token)
    assert (code, told in text) == (400, True), text
    assert world.instances() == []
    assert _post(world, path, good, "somebody")[0] == 401
    assert _post(world, path, good, token)[0] == 200


def test_filters_of_listings() -> None:
    item = {"labels": {"a": "1"}, "operationType": "insert", "targetLink": "x/instances/tw-1"}
    for text, expected in {
        "": True,
        'labels.a = "1"': True,
        '(labels.a = "1") AND (operationType = "delete")': False,
        '(operationType = "insert") OR (operationType = "delete")': True,
        "labels.a != 1": False,
        "targetLink:instances/tw-1": True,
    }.items():
        assert compile_filter(text)(item) is expected, text
    for wrong in ("labels.a", "a = 1 AND b = 2 OR c = 3", "labels.a ~ 1"):
        with pytest.raises(Exception, match="filter"):
            compile_filter(wrong)
