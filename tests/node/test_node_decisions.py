"""What a node decides without touching anything: versions that fit, when it ends itself, how Ray is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus
from tradewind.autoscaler.slices import LABEL_TPU_WORKER
from tradewind.errors import ConfigError, RayError
from tradewind.node.boot import read_secret
from tradewind.node.boot_plan import BootPlan
from tradewind.node.dead_man import BUSY_HEAD_S, Watched, reason_to_drain, reason_to_end
from tradewind.node.ray_node import HeadPorts, NodeFiles, check_temp_folder, ray_command, ray_env
from tradewind.node.versions import Versions, mismatches, versions_here
from tradewind.node.worker import own_node

HEAD = Versions("0.1.0", "2.60.0", "3.11.9", "2.13.0+cpu")
YEAR_S = 365 * 86_400.0
PLAN = BootPlan(
    fleet="f",
    cell="c",
    launch_id="n1",
    cloud="aws",
    region="us-east-1",
    role="worker",
    secret="s",
    ca_pem="CA",
    head_address="10.0.0.4:6379",
    join_url="https://10.0.0.4:8441",
    labels={"tradewind.io/cloud": "aws"},
    resources={"TPU": 4.0},
    num_cpus=8.0,
    num_gpus=1.0,
    storage="s3://bucket/x",
)


# --- versions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        (HEAD, ()),
        (replace(HEAD, torch="2.13.0+cu126", python="3.11.2", driver="550.1"), ()),
        (replace(HEAD, torch=""), ()),  # trains by something else
        (replace(HEAD, ray="2.59.0"), ("ray 2.59.0 on the node, 2.60.0 on the head",)),
        (replace(HEAD, python="3.12.1"), ("python 3.12 on the node, 3.11 on the head",)),
        (replace(HEAD, tradewind=""), ("tradewind  on the node, 0.1.0 on the head",)),
        (
            replace(HEAD, torch="2.12.1", ray="3"),
            ("ray 3 on the node, 2.60.0 on the head", "torch 2.12.1 on the node, 2.13.0 on the head"),
        ),
    ],
)
def test_what_must_fit(node: Versions, wrong: tuple[str, ...]) -> None:
    assert mismatches(HEAD, node) == wrong


def test_the_versions_of_this_machine_are_found() -> None:
    found = versions_here()
    assert found.ray.startswith("2.60")
    assert found.tradewind
    assert found.python.startswith("3.")


# --- the dead-man's timer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        (Watched("worker", 899, 900, YEAR_S), False),
        (Watched("worker", 901, 900, YEAR_S), True),
        (Watched("worker", 901, 900, YEAR_S, is_busy=True), True),  # without a head there is no work
        (Watched("head", 901, 900, YEAR_S), False),
        (Watched("head", 3601, 900, YEAR_S), True),
        (Watched("head", 3601, 900, YEAR_S, is_busy=True), False),
        (Watched("head", BUSY_HEAD_S + 1, 900, YEAR_S, is_busy=True), True),
        (Watched("worker", 0, 900, 3500), True),  # its certificate
        (Watched("worker", 0, 900, 3700), False),
    ],
)
def test_when_a_machine_ends_itself(now: Watched, ends: bool) -> None:
    assert bool(reason_to_end(now)) is ends


def test_a_worker_drains_a_day_before_its_certificate_ends() -> None:
    assert reason_to_drain(Watched("worker", 0, 900, 86_000))
    assert not reason_to_drain(Watched("worker", 0, 900, 87_000))
    assert not reason_to_drain(Watched("head", 0, 900, 86_000))


def test_the_reason_names_whom_it_missed() -> None:
    assert reason_to_end(Watched("worker", 1000, 900, YEAR_S)).startswith("its head has not answered for")
    assert reason_to_end(Watched("head", 9000, 900, YEAR_S)).startswith("its controller has not answered for")


# --- Ray's command and environment ------------------------------------------------------------------------------


def test_a_workers_command() -> None:
    command = ray_command(PLAN, "10.0.0.7", Path("/tmp/ray"))
    assert "--address=10.0.0.4:6379" in command
    assert "--num-cpus=8" in command
    assert "--num-gpus=1" in command
    assert '--resources={"TPU": 4.0}' in command
    assert "--labels=tradewind.io/cloud=aws,tradewind.io/launch-id=n1" in command
    assert "--head" not in command


def test_a_heads_command() -> None:
    plan = replace(PLAN, role="head")
    command = ray_command(plan, "10.0.0.4", Path("/tmp/ray"), HeadPorts(6379, 10001, 8265))
    assert {"--head", "--no-monitor", "--num-cpus=0", "--dashboard-host=127.0.0.1"} <= set(command)
    assert not any(each.startswith("--address") for each in command)


def test_secrets_are_files_and_files_are_private(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.write("t0k3n", "CA")
    env = ray_env(PLAN, files)
    assert env["RAY_AUTH_MODE"] == "token"
    assert env["RAY_USE_TLS"] == "1"
    assert "t0k3n" not in " ".join(env.values())
    assert Path(env["RAY_AUTH_TOKEN_PATH"]).read_text() == "t0k3n"
    assert Path(env["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o777 == 0o600
    assert env["RAY_CLOUD_INSTANCE_ID"] == "n1"
    assert env["TRADEWIND_STORAGE"] == "s3://bucket/x"
    assert env["AWS_DEFAULT_REGION"] == "us-east-1"


def test_a_folder_too_long_for_sockets_is_told() -> None:
    check_temp_folder(Path("/tmp/ray"))
    with pytest.raises(RayError, match="too long"):
        check_temp_folder(Path("/tmp/" + "x" * 60))


# --- secrets and nodes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t0p-s3cret",
        "[1]",
        '"t0p-s3cret"',
        '{"other": "t0p-s3cret"}',
        '{"ray_token": ""}',
        '{"ray_token": "t0p\\n"}',
    ],
)
def test_a_secret_that_is_none_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_secret(text, PLAN)
    assert "t0p" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_node_takes_of_the_secret_what_its_role_needs() -> None:
    text = '{"ray_token": "a", "agent_token": "b", "ca_key_pem": "c"}'
    assert read_secret(text, PLAN) == {"ray_token": "a"}
    assert set(read_secret(text, replace(PLAN, role="head"))) == {"ray_token", "agent_token", "ca_key_pem"}


def test_the_hosts_of_a_slice_are_told_apart() -> None:
    def node(name: str, number: str, status: RayStatus = RayStatus.IDLE) -> RayNode:
        return RayNode(name, "n1", status, {}, {}, {LABEL_TPU_WORKER: number} if number else {})

    hosts = (node("dead", "1", RayStatus.DEAD), node("a", "0"), node("b", "1"))
    assert own_node(hosts, "n1", "1") == hosts[2]
    assert own_node((node("x", ""),), "n1") == node("x", "")
    assert own_node((node("x", ""),), "n2") is None
