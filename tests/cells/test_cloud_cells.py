"""From a fleet file to cells: on the emulated AWS, whose machines do not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from door_world import until

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.view import LoopSettings
from tradewind.cells.calls import Hello
from tradewind.cells.cloud_cells import CloudCells, open_cloud_cells
from tradewind.config_models import FleetConfig
from tradewind.config_yaml import parse
from tradewind.errors import Transient
from tradewind.journal import Journal
from tradewind.model import LABEL_LAUNCH_ID, Role
from tradewind.states import NodeState
from tradewind.store import EventLog

FLEET = """\
name: f
cloud: aws
offers: [{{instance_type: g4dn.xlarge}}]
controller: {{listen: "127.0.0.1:0"}}
aws:
  endpoint_url: {url}
  instance_profile: tradewind-node
  head_instance_profile: tradewind-head
  regions:
    - {{name: us-east-1, image: ami-0123456789abcdef0, subnets: {{us-east-1a: subnet-00000000000000001}}}}
    - {{name: us-west-2, image: ami-0123456789abcdef0, subnets: {{us-west-2a: subnet-00000000000000001}}}}
"""
EAST = "aws-us-east-1"


class AwsSite:
    def __init__(self, folder: Path, cloud: Any) -> None:
        import boto3

        from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY

        self.folder, self.cloud = folder, cloud
        self.config = parse(FLEET.format(url=cloud.url), "fleet.yaml", FleetConfig)
        self.credentials = {"aws": boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)}
        self.journal = Journal.load(EventLog.open(folder / "events.db"))

    def open(self) -> Any:
        settings = LoopSettings(fleet="f", answer_wait_s=5.0)
        return open_cloud_cells(self.config, self.folder, self.journal, settings, self.credentials)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AwsSite]:
    from tradewind.emulators.aws import AwsEmulator

    with AwsEmulator() as cloud:
        made = AwsSite(tmp_path, cloud)
        yield made
        made.journal.log.close()


def spec_for(cells: CloudCells, launch_id: str, role: Role) -> LaunchSpec:
    loop = cells.cells[EAST].loop
    offer = (loop.settings.head.offers if loop.settings.head and role is Role.HEAD else loop._offers)[0]
    return LaunchSpec(launch_id, "f", EAST, offer, "10.0.0.4:6379", {LABEL_LAUNCH_ID: launch_id}, role=role)


def test_each_region_is_a_cell_that_buys_its_head(site: AwsSite) -> None:
    with site.open() as found:
        assert list(found.cells) == [EAST, "aws-us-west-2"]
        assert found.url.startswith("https://127.0.0.1:")
        for cell in found.cells.values():
            cell.tick()
        heads = site.journal.fleet.alive_nodes
        assert [(node.cell, node.role) for node in heads] == [(EAST, Role.HEAD), ("aws-us-west-2", Role.HEAD)]
        machines = site.cloud.machines()
        assert len(machines) == 2
        secrets = [text for secret in site.cloud.vault.secrets.values() for text in str(vars(secret)).split('"')]
        tokens = [text for text in secrets if len(text) == 64]
        assert tokens, "the store has them"
        assert not any(token in machine.user_data for token in tokens for machine in machines)
        assert all(found.url in machine.user_data for machine in machines)


@pytest.mark.slow
def test_a_worker_boots_only_for_a_head_that_is_heard(site: AwsSite) -> None:
    with site.open() as found:
        cell = found.cells[EAST]
        cell.tick()
        provider, line = cell.providers["aws"], cell.line
        assert line is not None
        with pytest.raises(Transient, match="is not heard"):
            provider.launch(spec_for(found, "tw-w", Role.WORKER))
        assert len(site.cloud.machines()) == 1
        [head] = cell.fleet.alive_nodes
        until(lambda: cell.tick() or cell.fleet.nodes[head.launch_id].state is NodeState.BOOTING, "it runs")
        line.hello(Hello(head.launch_id, "10.0.0.4:6379", join_url="https://10.0.0.4:8441", versions=_versions()))
        provider.launch(spec_for(found, "tw-w", Role.WORKER))
        worker = next(each for each in site.cloud.machines() if "tw-w" in str(each.tags))
        assert "https://10.0.0.4:8441" in worker.user_data
        cell._keep_head(line)
        assert cell.fleet.nodes[head.launch_id].state is NodeState.READY
        assert cell.loop.settings.head_address == "10.0.0.4:6379"


def _versions() -> dict[str, str]:
    from tradewind import __version__

    return {"tradewind": __version__}


def test_after_a_start_heads_find_the_same_door_and_the_same_token(site: AwsSite) -> None:
    with site.open() as found:
        url, tokens = found.url, [dict(site.cloud.vault.secrets)]
    with site.open() as again:
        assert again.url == url
        assert list(site.cloud.vault.secrets) == list(tokens[0])
        assert again.forget() == []
    assert all(secret.deleted_at_s for secret in site.cloud.vault.secrets.values())
