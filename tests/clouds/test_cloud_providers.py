"""A fleet file against all three emulators: each cell launches, sees and ends its own nodes, and nobody else's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated import Clouds, clouds

from tradewind.autoscaler.providers.base import CloudState, LaunchSpec
from tradewind.clouds import CellCloud, open_cells
from tradewind.model import LABEL_LAUNCH_ID, Offer, Role


@pytest.fixture(scope="module")
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
