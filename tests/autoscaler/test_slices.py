"""Slices as values: what their hosts bring, as Ray itself says, and several Ray nodes seen as one."""

from __future__ import annotations

import pytest

from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus, alive_by_launch_id, as_one, living_hosts
from tradewind.autoscaler.slices import LABEL_TPU_WORKER, tpu_hosts
from tradewind.autoscaler.testing import make_offer
from tradewind.cost import catalog
from tradewind.model import Offer

IDLE, RUNNING, DRAINING, DEAD = RayStatus.IDLE, RayStatus.RUNNING, RayStatus.DRAINING, RayStatus.DEAD


def tpu_offers() -> list[Offer]:
    """One of each type in the catalogue."""
    offers = [offer for offer in catalog.load().find() if offer.accelerator.startswith("TPU")]
    return sorted(
        {offer.market.instance_type: offer for offer in offers}.values(), key=lambda o: o.market.instance_type
    )


# --- what a host brings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offer", tpu_offers(), ids=lambda offer: offer.market.instance_type)
def test_pod_type_and_topology_are_what_ray_makes_of_each_other(offer: Offer) -> None:
    from ray._private.accelerators import tpu as ray_tpu

    hosts = tpu_hosts(offer)
    pod_type, topology = hosts[0].pod_type, hosts[0].topology
    generation = pod_type.split("-")[0]
    assert (len(hosts), f"tpu-{pod_type}") == (offer.hosts, offer.market.instance_type)
    assert ray_tpu.infer_tpu_pod_type_from_topology(topology, offer.accelerator) == pod_type
    assert ray_tpu.get_chips_per_host(topology, generation) == offer.accelerator_count
    if offer.hosts > 1:
        assert topology in ray_tpu.VALID_TPU_TOPOLOGY[generation]


@pytest.mark.parametrize("number", [0, 1])
def test_labels_and_resources_are_those_that_ray_finds_on_such_a_machine(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    offer = next(offer for offer in tpu_offers() if offer.market.instance_type == "tpu-v4-16")
    host = tpu_hosts(offer, "tw-1")[number]
    for key, value in host.env.items():
        monkeypatch.setenv(key, value)
    assert TPUAcceleratorManager.get_current_node_accelerator_labels() == host.labels
    assert TPUAcceleratorManager.get_current_node_additional_resources() == host.resources
    assert TPUAcceleratorManager.get_current_node_accelerator_type() == offer.accelerator


def test_other_machines_have_none_of_it() -> None:
    assert tpu_hosts(make_offer(gpus=1)) == ()


# --- several Ray nodes as one ---------------------------------------------------------------------------------------


def host(number: int, status: RayStatus, idle_s: float = 0.0) -> RayNode:
    room = {} if status is DEAD else {"TPU": 4.0}
    labels = {} if status is DEAD else {LABEL_TPU_WORKER: str(number)}  # Ray forgets the labels of the dead
    return RayNode(f"{number:056x}", "n1", status, room, room, labels, idle_s)


@pytest.mark.parametrize(
    ("statuses", "seen"),
    [
        ((IDLE,), None),  # the other host has not joined
        ((IDLE, IDLE), IDLE),
        ((IDLE, RUNNING), RUNNING),
        ((DRAINING, RUNNING), RUNNING),  # so that the rest is asked again
        ((DRAINING, DRAINING), DRAINING),
        ((DEAD, DRAINING), DRAINING),  # the first has drained
        ((DEAD, RUNNING), DEAD),
        ((DEAD, IDLE), DEAD),
        ((DEAD,), DEAD),
        ((DEAD, DEAD), DEAD),
        ((DEAD, IDLE, RUNNING), RUNNING),  # a raylet was started again
    ],
)
def test_a_slice_is_as_busy_as_its_busiest_host_and_dead_with_any(
    statuses: tuple[RayStatus, ...], seen: RayStatus | None
) -> None:
    whole = as_one([host(number, status) for number, status in enumerate(statuses)], hosts=2)
    assert (whole.status if whole is not None else None) == seen


def test_a_slice_has_the_room_of_all_and_the_idle_time_of_the_last_used() -> None:
    nodes = [host(1, IDLE, 50.0), host(0, IDLE, 9.0)]
    whole = alive_by_launch_id(nodes, {"n1": 2})["n1"]
    assert (whole.total, whole.available, whole.idle_s) == ({"TPU": 8.0}, {"TPU": 8.0}, 9.0)
    assert whole.ray_node_id == nodes[1].ray_node_id  # the first host speaks for it
    assert living_hosts(nodes, {"n1": 2})["n1"] == (nodes[1], nodes[0])
    assert "n1" not in alive_by_launch_id(nodes, {"n1": 3})
