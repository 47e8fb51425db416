"""A fleet file against all three emulators: each cell launches, sees and ends its own nodes, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated import Clouds, clouds

from tradewind.autoscaler.providers.base import CloudState, LaunchSpec
from tradewind.clouds import CellCloud, cells_of, open_cells
from tradewind.clouds.preflight import check_clouds
from tradewind.clouds.secret_stores import store_in
from tradewind.clouds.sweep import places_of, remove_all, see
from tradewind.model import LABEL_LAUNCH_ID, Offer, Role

pytestmark = pytest.mark.slow  # SDKs of all clouds, over HTTP


@pytest.fixture
def world() -> Iterator[Clouds]:
    with clouds() as found:
        yield found


def user_data(spec: LaunchSpec) -> str:
    return f"#!/bin/bash\n# {spec.cell} {spec.role}\n"


def spec_of(cell: CellCloud, launch_id: str, offer: Offer, **more: object) -> LaunchSpec:
    labels = {**offer.labels, LABEL_LAUNCH_ID: launch_id}
    return LaunchSpec(launch_id, "research", cell.plan.name, offer, "10.0.0.4:6379", labels, **more)  # type: ignore[arg-type]


def living(cell: CellCloud) -> set[str]:
    return {node.launch_id for node in cell.provider.list_nodes() if node.state is not CloudState.GONE}


def test_cells_of_one_cloud_do_not_see_each_others_nodes(world: Clouds) -> None:
    config = world.config("aws", "gcp", "azure", more="offers: [{accelerator: T4, capacity: spot}]\n")
    cells = open_cells(config, user_data, world.credentials)
    assert len(cells) == 6
    for number, cell in enumerate(cells.values()):
        cell.provider.launch(spec_of(cell, f"tw-{number}", cell.plan.offers[0]))
    assert world.machines() == 6
    assert [living(cell) for cell in cells.values()] == [{f"tw-{number}"} for number in range(6)]
    for number, cell in enumerate(cells.values()):
        cell.provider.terminate([f"tw-{number}"])
        assert list(cell.provider.wait_terminated([f"tw-{number}"], timeout_s=60.0)) == []
        assert list(cell.provider.list_debris()) == []
    assert world.machines() == 0


def test_a_head_has_an_identity_of_its_own(world: Clouds) -> None:
    cell = open_cells(world.config("aws", more="offers: [{accelerator: T4}]\n"), user_data, world.credentials)[
        "aws-us-east-1"
    ]
    cell.provider.launch(spec_of(cell, "tw-head", cell.plan.heads[0], role=Role.HEAD))
    cell.provider.launch(spec_of(cell, "tw-worker", cell.plan.offers[0]))
    profiles = {machine.tags["tradewind:launch-id"]: machine.profile for machine in world.aws.machines()}
    assert profiles == {"tw-head": "tradewind-head", "tw-worker": "tradewind-node"}
    cell.provider.terminate(["tw-head", "tw-worker"])


def test_prices_of_a_cell(world: Clouds) -> None:
    config = world.config("aws", "gcp", "azure", more="offers: [{accelerator: T4}]\n")
    for cell in open_cells(config, user_data, world.credentials).values():
        offers = cell.prices.offers(1_790_000_000.0)
        assert {offer.market for offer in offers} == {offer.market for offer in cell.plan.offers} | (
            {offer.market for offer in cell.plan.heads} if cell.plan.cloud == "gcp" else set()
        )


def test_all_clouds_pass_their_checks_and_keep_secrets_that_are_found_and_removed(world: Clouds) -> None:
    types = ["g5.xlarge", "Standard_NC4as_T4_v3", "g2-standard-4"]
    more = f"offers: [{', '.join(f'{{instance_type: {each}}}' for each in types)}]\n"
    more += "head: {instance_type: {aws: m7i.large, gcp: e2-standard-4, azure: Standard_D2s_v5}}\n"
    config = world.config("aws", "gcp", "azure", more=more)
    checks = check_clouds(config, credentials=world.credentials)
    assert [f"{check.name}: {check.found}" for check in checks if not check.ok] == []
    assert {check.name.split()[0] for check in checks} == {"aws", "gcp", "azure"}
    plans = cells_of(config)
    for plan in plans:
        store_in(config, plan, world.credentials[plan.cloud]).put(f"tradewind/research/{plan.name}/node", "text")
    places = places_of(config, world.credentials)
    seen = see(places)
    assert seen.blind == ()
    assert {str(thing) for thing in seen.found} == {
        f"{plan.name}: secret tradewind/research/{plan.name}/node" for plan in plans
    }
    assert remove_all(places, seen.found, 60.0) == []
    assert see(places).found == ()
