"""`tradewind demo`: the whole path in two minutes, with no account.

Three pretend clouds, a real model on real Ray nodes, two preemptions, and the receipt.

This file is the stage: it starts a fleet of its own in a temporary folder, plays the cloud that takes nodes away, and
cleans up. What is shown is in demo_screen.py.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NoReturn

from tradewind.api import EventLine, FleetStatus, JobInfo, NodeInfo
from tradewind.client import Fleet, Job, connect
from tradewind.controller_process import CONTROLLER
from tradewind.demo_screen import Scene, Screen, open_screen, write
from tradewind.model import Capacity, JobSpec, Phase
from tradewind.states import JobState, NodeState, is_over

# Four T4s a node, two a worker. Every market holds one node, so that the fleet must spread over the clouds.
FLEET_YAML = """\
name: demo
offers:
  - {cloud: azure, region: eastus2, instance_type: Standard_NC64as_T4_v3}
  - {cloud: aws, zone: use2-az1, instance_type: g4dn.12xlarge}
  - {cloud: gcp, zone: us-west4-a, instance_type: n1-standard-32+t4x4}
limits: {max_nodes: 4, max_usd_per_hour: 10}
timing: {tick: 500ms, idle_timeout: 20s, boot_timeout: 3m, min_node_life: 10s}
local:
  seed: 7
  stock: 1
  launch_delay: [0.2s, 1s]
  cpus_per_node: 2
"""
STEPS = 170
STEP_S = 0.48  # of work in a step, shared by the workers: the model is pretended to be larger than it is
NOTICE_S = 12.0
NEXT = """\
Real: Ray, its nodes, the training, the kills, the checkpoints. Simulated: the clouds, and so the dollars.

Next:  {activate}tradewind up                                 a fleet that stays
       tradewind submit --watch -- python -m tradewind.jobs.examples.digits --workers 2..4 --steps 300
       tradewind status; tradewind cost; tradewind down"""
REFRESH_S = 0.25
PATIENCE = 0.3  # of all steps: how long an act waits for the full size (a slow machine must not miss it)
LAST_CALL = 0.42  # of all steps: an act that cannot have what it needs is played all the same, and says so
WORKERS_OF_A_NODE = 2
LIMIT_S = 420.0  # never longer, whatever happens


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that the pretend cloud does to the job, when it has come so far."""

    title: str
    at_fraction: float
    notice_s: float | None


ACTS = (
    Act(f"the cloud announces that it takes a node in {NOTICE_S:.0f} s", 0.15, NOTICE_S),
    Act("the cloud takes a node without a word", 0.50, None),
)


def next_act(done: int, job: JobInfo, nodes: Sequence[NodeInfo]) -> Act | None:
    """The next act, once the job trains, has come far enough, and the act before is over. Pure."""
    if done >= len(ACTS) or job.phase is not Phase.TRAINING:
        return None
    act = ACTS[done]
    is_calm = not any(node.state in (NodeState.DRAINING, NodeState.TERMINATING) for node in nodes)
    return act if is_calm and _lateness(act, job) >= 0.0 and not waits_for(done, job) else None


def waits_for(done: int, job: JobInfo) -> str:
    """What an act whose time has come still needs; "": nothing, or it is not its time, or there is none. It waits for
    the full size; then, if it comes without a word, for a worker that survives it and holds the state."""
    if done >= len(ACTS) or (late := _lateness(ACTS[done], job)) < 0.0 or job.workers >= job.max_workers:
        return ""
    needed = WORKERS_OF_A_NODE + 1
    if late < PATIENCE:
        return f"the job trains with {job.max_workers} workers"
    if ACTS[done].notice_s is None and job.workers < needed and late < LAST_CALL:
        return f"the job trains with {needed} workers: one must be left that holds the state"
    return ""


def _lateness(act: Act, job: JobInfo) -> float:
    """Of all steps, how many were taken since the act's time."""
    return job.step / (job.total_steps or STEPS) - act.at_fraction


def warning_of(act: Act, job: JobInfo) -> str:
    """Of an act that could not have what its claim needs."""
    if act.notice_s is not None or job.workers > WORKERS_OF_A_NODE:
        return ""
    return "; the job never got a second node in time, so nobody is left with its state: it goes back to its last save"


def victim(job: JobInfo, nodes: Sequence[NodeInfo]) -> NodeInfo | None:
    """The dearest spot node that the job trains on: what a cloud would rather sell to somebody else."""
    held = [
        node
        for node in nodes
        if node.launch_id in job.nodes and node.state is NodeState.READY and node.capacity is Capacity.SPOT
    ]
    return max(held, key=lambda node: (node.price_uusd_per_h or 0, node.launch_id), default=None)


@dataclass(slots=True)
class Show:
    """The run of the demo: looks, plays the next act, draws."""

    fleet: Fleet
    job: Job
    screen: Screen
    acts_done: int = 0
    waited: str = ""  # what was told that the next act waits for
    seen: int = 0  # the last event that was shown
    began_s: float = field(default_factory=time.monotonic)
    refresh_s: float = REFRESH_S
    limit_s: float = LIMIT_S

    def play(self) -> JobInfo:
        while True:
            info, status = self.job.status(), self.fleet.status()
            self.screen.draw(self._scene(info, status, self._news()))
            if is_over(info.state):
                return info
            if time.monotonic() - self.began_s > self.limit_s:
                self.screen.say("This machine is too slow for the demo: it is stopped here.")
                return self.job.stop()
            self._act(info, status.nodes)
            time.sleep(self.refresh_s)

    def _act(self, info: JobInfo, nodes: Sequence[NodeInfo]) -> None:
        self._tell_wait(waits_for(self.acts_done, info))
        act = next_act(self.acts_done, info, nodes)
        node = victim(info, nodes) if act else None
        if act and node:
            self.acts_done += 1
            self.screen.say(f"Act {self.acts_done}: {act.title} ({node.cloud}, {node.zone})" + warning_of(act, info))
            self.fleet.preempt(node.launch_id, act.notice_s)

    def _tell_wait(self, text: str) -> None:
        if text and text != self.waited:
            self.waited = text
            self.screen.say(f"Act {self.acts_done + 1} waits until {text}")

    def _news(self) -> list[EventLine]:
        lines = self.fleet.events(self.seen)
        self.seen = lines[-1].sequence if lines else self.seen
        return lines

    def _scene(self, info: JobInfo, status: FleetStatus, news: Sequence[EventLine]) -> Scene:
        return Scene(job=info, status=status, news=tuple(news), elapsed_s=time.monotonic() - self.began_s)


def run(home: str | None = None) -> int:
    """Returns the exit status: 0 when the job came through everything."""
    signal.signal(signal.SIGTERM, _interrupt)  # so that `finally` cleans up
    with _stage(home) as folder:
        write("Tradewind demo: three pretend clouds on this machine, real Ray nodes, a real (small) model.")
        write("Starting a controller and a Ray head ...")
        config = folder / "fleet.yaml"
        config.write_text(FLEET_YAML)
        fleet = connect(home=folder, fleet="demo", config=config, command=(*CONTROLLER, "--ephemeral"))
        try:
            job = fleet.submit(_job(folder))
            with open_screen() as screen:
                info = Show(fleet, job, screen).play()
            _epilogue(job, info, folder)
            return 0 if info.state is JobState.SUCCEEDED else 1
        except KeyboardInterrupt:
            write("\nInterrupted: the job is stopped and its nodes are ended ...")
            raise
        finally:
            fleet.down()
            fleet.close()


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _stage(home: str | None) -> Iterator[Path]:
    """A folder that is gone afterwards, unless the user named one."""
    if home is not None:
        folder = Path(home).expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix="tradewind-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _job(folder: Path) -> JobSpec:
    options = {
        "--steps": STEPS,
        "--step-s": STEP_S,
        "--checkpoint-every": 30,
        "--settle-s": 6,
        "--storage": folder / "runs",
        "--ledger": folder / "samples",
        "--curve": folder / "loss.jsonl",
    }
    words = [sys.executable, "-m", "tradewind.jobs.examples.digits", *chain.from_iterable(options.items())]
    entrypoint = shlex.join(str(word) for word in words)
    return JobSpec(
        name="digits", entrypoint=entrypoint, min_workers=2, max_workers=4, worker_resources={"CPU": 1, "GPU": 2}
    )


def _epilogue(job: Job, info: JobInfo, folder: Path) -> None:
    """The receipt, what became of the samples, and what to try next."""
    from tradewind.cost.render import render_receipt
    from tradewind.jobs.sample_ledger import audit

    if info.state is not JobState.SUCCEEDED:
        write(f"The job ended as {info.state}: {info.reason}")
        write(job.logs(tail=30))
        return
    samples = audit(folder / "samples")
    write("\n" + render_receipt(job.receipt()))
    write(f"samples: {samples.samples} seen, skipped {samples.skipped}, repeated {samples.repeated}\n")
    write(what_is_next(shutil.which("tradewind")))


def what_is_next(program: str | None) -> str:
    """Commands that can be copied, also where `make demo` has just made a .venv that is not on the PATH."""
    activate = "" if program else f". {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}\n       "
    return NEXT.format(activate=activate)
