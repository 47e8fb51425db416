"""The boot plan and its user-data: pure, so everything is tried without a machine but what bash makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.certificates import Authority
from tradewind.errors import ConfigError, InvalidRequest
from tradewind.model import Capacity, Market, Offer
from tradewind.node.boot_plan import MAX_BYTES, TOLD, BootPlan, failure_in, user_data
from tradewind.node.plans import CellBoot, head_plan, worker_plan

CA = Authority.make("cell", 1_800_000_000.0)
PLAN = BootPlan(
    fleet="f",
    cell="aws-us-east-1",
    launch_id="f-1",
    cloud="aws",
    region="us-east-1",
    role="worker",
    secret="tradewind/f/aws-us-east-1/node",
    ca_pem=CA.cert_pem,
    head_address="10.0.0.4:6379",
    join_url="https://10.0.0.4:8441",
    labels={"tradewind.io/launch-id": "f-1"},
)
HOSTILE = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    [
        "'; touch owned; '",
        "$(touch owned)",
        "`touch owned`",
        "TRADEWIND_PLAN",
        "x\nTRADEWIND_PLAN\ntouch owned",
        "\\",
        "!",
    ]
)


def read_plan(text: str) -> BootPlan:
    line = next(line for line in text.split("\n") if line.startswith("{"))
    return BootPlan.from_json(line)


def test_the_same_plan_gives_the_same_text() -> None:
    again = replace(PLAN, labels=dict(reversed(PLAN.labels.items())))
    assert user_data(PLAN) == user_data(again)


def test_the_plan_comes_out_of_the_text_as_it_went_in() -> None:
    plan = replace(PLAN, resources={"TPU": 4.0}, num_cpus=3.5, setup=("a", "b"), endpoints={"secrets": "http://x"})
    assert read_plan(user_data(plan)) == replace(plan, setup=())


def test_it_is_short_and_says_no_secret() -> None:
    head = replace(PLAN, role="head", controller_url="https://c:8440", controller_ca_pem=CA.cert_pem)
    text = user_data(head)
    assert len(text.encode()) < MAX_BYTES / 2
    assert "PRIVATE KEY" not in text


@settings(max_examples=10, deadline=None)
@given(value=HOSTILE)
def test_hostile_values_are_data_to_bash(value: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In every place where a user's text can stand. It runs up to the interpreter, which writes down what it got."""
    box = tmp_path_factory.mktemp("box")
    fake = box / "python"
    fake.write_text('#!/bin/bash\n[ "$1" = -c ] && exit 0\nprintf "%s\\n" "$@" > "$OUT"\n')
    fake.chmod(0o755)
    plan = replace(
        PLAN,
        fleet=value or "f",
        labels={"k": value},
        storage=value,
        python=str(fake),
        setup=(f"printf %s {_quoted(value)}",),
    )
    script = box / "user-data"
    script.write_text(user_data(plan))
    subprocess.run(["bash", "-n", str(script)], check=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(box), "TRADEWIND_NODE_DIR": str(box / "n"), "OUT": str(box / "out")}
    # Its timer sleeps on; it must not hold the test's pipe.
    with (box / "console").open("wb") as console:
        process = subprocess.Popen(
            ["bash", str(script)], env=env, stdout=console, stderr=console, start_new_session=True
        )
    try:
        assert process.wait(60) == 0, (box / "console").read_text()
    finally:
        _end_group(process.pid)
    assert (box / "out").read_text().split() == ["-m", "tradewind.node", "boot", "--plan", "plan.json"]
    assert BootPlan.from_json((box / "n" / "plan.json").read_text()) == replace(plan, setup=())
    assert not list(box.rglob("owned"))


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"


def _end_group(leader: int) -> None:
    import signal

    os.killpg(leader, signal.SIGKILL)  # the timer of the user-data


def run_script(plan: BootPlan, box: Path, **env: str) -> tuple[int, str]:
    """The user-data, with a `shutdown` that only leaves a mark."""
    (box / "bin").mkdir()
    (box / "bin" / "shutdown").write_text('#!/bin/bash\necho "$@" > "$HOME/shut-down"\n')
    (box / "bin" / "shutdown").chmod(0o755)
    (box / "user-data").write_text(user_data(plan))
    given = {"PATH": f"{box / 'bin'}:{os.environ['PATH']}", "HOME": str(box), **env}
    with (box / "console").open("wb") as console:
        process = subprocess.Popen(
            ["bash", str(box / "user-data")], env=given, stdout=console, stderr=console, start_new_session=True
        )
    try:
        status = process.wait(60)
    finally:
        _end_group(process.pid)
    return status, (box / "console").read_text()


def test_a_set_up_command_that_fails_ends_the_machine_with_its_reason(tmp_path: Path) -> None:
    status, console = run_script(replace(PLAN, setup=("echo one", "echo two; exit 7", "echo three")), tmp_path)
    assert status == 1
    assert "one" in console
    assert "set-up: echo three" not in console
    assert failure_in(console) == "set-up command ended with status 7: echo two; exit 7"
    assert (tmp_path / "shut-down").read_text() == "-h now\n"


def test_what_cannot_be_installed_ends_the_machine_with_its_reason(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\n[ "$1" = -c ] && exit 1\necho "pip: $*"; exit 3\n')
    python.chmod(0o755)
    plan = replace(PLAN, python=str(python), install="tradewind==9 ray[default]==2.60.0")
    _, console = run_script(plan, tmp_path)
    assert "pip: -m pip install --quiet --disable-pip-version-check tradewind==9 ray[default]==2.60.0" in console
    assert failure_in(console) == f"cannot install tradewind with {python}"
    assert (tmp_path / "shut-down").exists()


def test_an_interpreter_that_has_both_is_found(tmp_path: Path) -> None:
    """Not an empty plan.python, but the first on PATH that can import Ray and tradewind."""
    (tmp_path / "bin2").mkdir()
    python = tmp_path / "bin2" / "python3.13"
    python.write_text('#!/bin/bash\n[ "$1" = -c ] && exit 0\necho "found by name: $*"\n')
    python.chmod(0o755)
    status, console = run_script(PLAN, tmp_path, PATH=f"{tmp_path / 'bin2'}:{os.environ['PATH']}")
    assert (status, console.strip()) == (0, "found by name: -m tradewind.node boot --plan plan.json")


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("exit 0", ""),
        (f"exit {TOLD}", ""),  # it has said why itself
        ("exit 1", "the node's process ended with status 1"),  # it could not even be imported
        ("kill -9 $$", "the node's process ended with status 137"),
    ],
)
def test_a_machine_whose_node_was_killed_ends_too(end: str, why: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/bash\n[ "$1" = -c ] && exit 0\n{end}\n')
    python.chmod(0o755)
    _, console = run_script(replace(PLAN, python=str(python)), tmp_path)
    assert failure_in(console) == why
    assert (tmp_path / "shut-down").exists() is bool(why)


def test_a_machine_that_goes_down_tells_its_node(tmp_path: Path) -> None:
    """The node's process gets the signal that the shell gets, and is waited for."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\n[ "$1" = -c ] && exit 0\ntrap "sleep 0.3; echo cleaned up; exit 0" TERM\n'
        "kill -TERM $PPID\nwhile true; do sleep 0.1; done\n"
    )
    python.chmod(0o755)
    status, console = run_script(replace(PLAN, python=str(python)), tmp_path)
    assert "cleaned up" in console
    assert status == 0
    assert not (tmp_path / "shut-down").exists()


def test_a_plan_that_cannot_be_read_ends_the_machine(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"fleet": "f"}')
    (tmp_path / "shutdown").write_text('#!/bin/bash\necho "$@" > "$TRADEWIND_NODE_DIR/shut-down"\n')
    (tmp_path / "shutdown").chmod(0o755)
    env = {**os.environ, "TRADEWIND_NODE_DIR": str(tmp_path / "n"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "tradewind.node", "boot", "--plan", str(tmp_path / "plan.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == TOLD
    assert "cell" in failure_in(done.stdout)
    assert (tmp_path / "n" / "shut-down").exists()


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than"):
        user_data(replace(PLAN, setup=("x" * MAX_BYTES,)))


def test_a_nul_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        user_data(replace(PLAN, setup=("a\0b",)))


def test_a_worker_without_a_head_is_no_plan() -> None:
    with pytest.raises(ConfigError, match="join_url"):
        replace(PLAN, join_url="")


def test_the_last_failure_on_a_console_counts() -> None:
    assert failure_in("boring\n[ 12.3] cloud-init: TRADEWIND BOOT FAILED: because\nShutting down") == "because"
    assert failure_in("all well") == ""


# --- from a launch to a plan -----------------------------------------------------------------------------------

CELL = CellBoot("f", "aws-us-east-1", "aws", "us-east-1", CA.cert_pem, controller_url="https://c:8440")


def spec(offer: Offer) -> LaunchSpec:
    return LaunchSpec("f-1", "f", "aws-us-east-1", offer, "10.0.0.4:6379", offer.labels)


def test_a_worker_brings_what_its_offer_says() -> None:
    offer = Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 4, 16, "A10G", 1)
    plan = worker_plan(CELL, spec(offer), "https://10.0.0.4:8441")
    assert (plan.num_cpus, plan.num_gpus, plan.memory_bytes) == (4, 1, 16 * 2**30)
    assert plan.resources == {"accelerator_type:A10G": 1.0}
    assert plan.secret == "tradewind/f/aws-us-east-1/node"
    assert plan.controller_url == ""  # workers know their head only
    assert plan.labels["ray.io/market-type"] == "spot"


def test_a_head_knows_its_controller_and_reads_its_own_secret() -> None:
    offer = Offer(Market("aws", "us-east-1", "us-east-1a", "m5.large", Capacity.ON_DEMAND), 2, 8)
    plan = head_plan(CELL, spec(offer))
    assert (plan.role, plan.controller_url) == ("head", "https://c:8440")
    assert plan.secret == "tradewind/f/aws-us-east-1/head"


def test_all_hosts_of_a_slice_boot_by_one_text() -> None:
    market = Market("gcp", "us-central2", "us-central2-b", "tpu-v4-16", Capacity.SPOT)
    plan = worker_plan(CELL, spec(Offer(market, 240, 400, "TPU-V4", 4, hosts=2)), "https://10.0.0.4:8441")
    assert plan.tpu["TPU_ACCELERATOR_TYPE"] == "v4-16"
    assert plan.resources["TPU"] == 4
    assert json.loads(plan.to_json())["tpu"] == dict(plan.tpu)
