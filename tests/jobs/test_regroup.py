"""Real processes over gloo: one is killed, the others take the next step without being started again; one joins."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tradewind.jobs import membership, regroup
from tradewind.jobs.membership import Arrival

SCRIPT = Path(__file__).with_name("regroup_script.py")


class Stage:
    """Plays the coordinator: the same state machine, with files instead of calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = membership.begin(1, least=1)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.end_at("inf")

    def end_at(self, step: int | str) -> None:
        aside = self.folder / "steps.tmp"
        aside.write_text(str(step))
        aside.rename(self.folder / "steps")

    def start(self, *names: str, joins: bool = False) -> None:
        self.now = membership.enroll(self.now, names)
        for name in names:
            command = [sys.executable, str(SCRIPT), name, str(self.folder), *["joins"] * joins]
            self.processes[name] = subprocess.Popen(command)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        self.now = membership.lose(self.now, [name])

    def run_until(self, holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end, what
            assert not any(process.poll() for process in self.processes.values()), what
            self._tick()
            time.sleep(0.002)

    def _tick(self) -> None:
        for name in self.processes:
            for path in self.folder.glob(f"arrive-{name}-*"):
                if path.suffix == "":
                    epoch = int(path.name.rsplit("-", 1)[1])
                    found = json.loads(path.read_text())
                    path.unlink()
                    self.now = membership.arrive(
                        self.now, Arrival(name, epoch, found["step"], "127.0.0.1", found["port"], broken=True)
                    )
        if membership.change(self.now) is not membership.Change.NONE:
            (self.folder / f"hard-{self.now.epoch}").touch()
        settled = membership.settle(self.now)
        if settled is not self.now and settled.roster:
            for arrival in self.now.arrived.values():  # each finds the answer to its own question
                aside = self.folder / "roster.tmp"
                aside.write_text(json.dumps(asdict(settled.roster)))
                aside.rename(self.folder / f"roster-{arrival.member}-{arrival.epoch}")
        self.now = settled

    def told(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"told-{name}"
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def last(self, name: str) -> dict[str, Any]:
        return (self.told(name) or [{"epoch": 0, "step": 0}])[-1]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path)
    yield found
    for process in found.processes.values():
        process.kill()
        process.wait(10)


def alone(folder: Path, steps: int) -> float:
    """The same training in one process, without a group."""
    code = f"""
import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})
from regroup_script import make
import torch
x, y, model, optimizer = make()
for _ in range({steps}):
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step(); optimizer.zero_grad()
print(sum(float(p.detach().sum()) for p in model.parameters()))
"""
    return float(subprocess.check_output([sys.executable, "-c", code], cwd=folder, env=os.environ))


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_survivors_go_on_and_a_joiner_takes_over_their_state(stage: Stage) -> None:
    stage.start("a", "b", "c")
    stage.run_until(lambda: all(stage.last(name)["step"] >= 20 for name in "abc"), "20 steps of three")
    pids = {name: stage.last(name)["pid"] for name in "ab"}
    stage.kill("c")
    stage.run_until(lambda: all(stage.last(name)["epoch"] == 2 for name in "ab"), "two go on")
    stage.run_until(lambda: stage.last("a")["step"] >= stage.told("a")[0]["step"] + 60, "steps of two")
    stage.start("d", joins=True)
    stage.run_until(lambda: all(stage.last(name)["epoch"] == 3 for name in "abd"), "three again")
    steps = stage.last("a")["step"] + 100
    stage.end_at(steps)
    stage.run_until(lambda: all("total" in stage.last(name) for name in "abd"), "the end")
    assert {name: stage.last(name)["pid"] for name in "ab"} == pids
    totals = [stage.last(name)["total"] for name in "abd"]
    assert totals == pytest.approx([alone(stage.folder, steps)] * 3, rel=1e-9)
    assert [stage.last(name)["connections"] for name in "abd"] == [2, 2, 2]  # others' sockets were left alone


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_nobody_stays_behind_in_a_sum_when_all_are_called_away(stage: Stage) -> None:
    """gloo forgets to wake the sender of a piece that failed on its way: seen about once in twenty calls."""
    stage.start("a", "b", "c")
    stage.run_until(lambda: all(stage.last(name)["step"] >= 5 for name in "abc"), "steps of three")
    for _ in range(15):
        stage.now = membership.call(stage.now)
        epoch = stage.now.epoch + 1
        stage.run_until(lambda: all(stage.last(name)["epoch"] == epoch for name in "abc"), f"epoch {epoch}")  # noqa: B023
        step = stage.last("a")["step"] + 3
        stage.run_until(lambda: all(stage.last(name)["step"] >= step for name in "abc"), f"step {step}")  # noqa: B023


def test_a_child_lets_go_of_the_connections_of_its_parent() -> None:
    """A DataLoader's worker lives on for seconds when its parent is killed: the others must notice at once."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        ours, port = socket.create_connection(server.getsockname()), server.getsockname()[1]
        theirs, _ = server.accept()
        copy = theirs.dup()  # as a child has it
        theirs.detach()
        regroup.forget({port})
        assert all(_is_closed(each.fileno()) for each in (ours, copy, server))
        assert not _is_closed(other.fileno())
        for each in (ours, copy, server):
            each.detach()


def _is_closed(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False
