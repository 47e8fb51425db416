"""The coordinator of a training job: a named actor of zero CPUs beside the driver.

It says who trains together (`meeting.py`), and stands between three parties that never talk to each other directly:
- the platform's agent polls it for events and the job's wish, and grants a target (`poll`, `set_target`);
- the job's control loop (`ray_train.py`) tells of worker groups, asks for saves (`begin_attempt`, `ask`, `look`);
- rank 0 of the workers tells it what was done, and waits in it to be asked for a save (`committed`, `watch`).

It works without any agent: events are then kept up to a limit and dropped, oldest first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tradewind.events import CheckpointCommitted, PhaseChanged, StepCommitted
from tradewind.jobs.commits import Commits
from tradewind.jobs.meeting import Meeting
from tradewind.jobs.membership import Arrival, Change, Roster
from tradewind.jobs.outbox import Outbox
from tradewind.model import COORDINATOR_PREFIX, RAY_NAMESPACE, Phase, Target, Wish


@dataclass(slots=True)
class Progress:
    """What is known of the job now; the progress line and the control loop read it."""

    phase: Phase = Phase.STARTING
    reason: str = ""
    attempt: int = 0
    workers: int = 0
    step: int = 0
    first_step: int = 0  # of this attempt
    total_steps: int | None = None
    loss: float | None = None
    checkpoint_step: int | None = None
    steps_per_s: float | None = None
    saves: str = ""  # how often, and why


@dataclass(slots=True)
class Handover:
    """A request to save at the next step boundary."""

    id: int = 0
    attempt: int = 0
    reason: str = ""
    rest: bool = False  # and end there
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Hazard:
    """How often this job has lost workers, and with how much notice: how often to save follows from it."""

    at_s: float
    worker_h: float = 0.0
    sudden: int = 0
    noticed: int = 0
    notice_s: float = 0.0  # the last one

    def pass_by(self, now_s: float, workers: int) -> Hazard:
        return replace(self, at_s=now_s, worker_h=self.worker_h + workers * (now_s - self.at_s) / 3600)

    def loss(self, count: int) -> Hazard:
        return replace(self, sudden=self.sudden + count)

    def notice(self, count: int, notice_s: float) -> Hazard:
        return replace(self, noticed=self.noticed + count, notice_s=notice_s)


@dataclass(frozen=True, slots=True)
class Stall:
    """For how long no step was taken. Steps differ: what has been normal so far is no sign of trouble."""

    last_s: float
    longest_s: float = 0.0  # between two reports of steps
    steps: int = 0

    FIRST_FACTOR, FACTOR = 5.0, 4.0  # the first step compiles, and loads what was not needed before

    def step(self, now_s: float) -> Stall:
        longest_s = max(self.longest_s, now_s - self.last_s) if self.steps else 0.0
        return Stall(now_s, longest_s, self.steps + 1)

    def pause(self, now_s: float) -> Stall:
        """Something else than steps is going on."""
        return Stall(now_s, self.longest_s, 0)

    def is_over(self, now_s: float, timeout_s: float) -> bool:
        patience_s = max(timeout_s, self.FACTOR * self.longest_s) if self.steps else self.FIRST_FACTOR * timeout_s
        return now_s - self.last_s > patience_s


class Coordinator:
    """See the module's docstring. An async actor: its methods run on one loop, so they need no locks."""

    def __init__(self, job_id: str, clock: Callable[[], float] = time.time) -> None:
        self._job_id = job_id
        self._clock = clock
        self._wish: Wish | None = None
        self._target: Target | None = None
        self._outbox = Outbox()
        self._progress = Progress()
        self._has_told = False  # of any phase
        self._handover = Handover()
        self._meeting = Meeting(self._formed, self._lost)
        self._least = 1
        self._commits: Commits | None = None
        self._stall = Stall(time.monotonic())
        self._hazard = Hazard(time.monotonic())
        self._noticed: set[str] = set()

    # --- the platform's agent

    async def poll(self, after_sequence: int) -> dict[str, Any]:
        """Reports after `after_sequence` (which acknowledges those up to it), what the job could use, and what it is
        granted: whoever grants sees whether it was heard."""
        return {
            "events": self._outbox.read(after_sequence),
            "wish": asdict(self._wish) if self._wish else None,
            "target": asdict(self._target) if self._target else None,
        }

    async def set_target(
        self, epoch: int, replicas: int, deadline_s: float | None = None, replica_workers: int = 1
    ) -> bool:
        """Grant a number of replicas. A lower or equal epoch than the last is out of date, and refused."""
        if self._target is not None and epoch <= self._target.epoch:
            return False
        self._target = Target(epoch, replicas, deadline_s, replica_workers)
        if replicas:  # a rest that nobody has heard of yet is off
            self._handover.rest = False
            self._meeting.need(self._least)
        return True

    # --- the control loop

    async def declare(self, wish: dict[str, Any] | None) -> None:
        self._wish = Wish(**wish) if wish else None

    async def begin_attempt(
        self, attempt: int, workers: int, least: int = 1, replica: int = 1, whole: bool = False
    ) -> None:
        self._progress.attempt, self._progress.workers, self._progress.steps_per_s = attempt, workers, None
        self._handover.attempt = 0
        self._least = least
        self._meeting.begin(attempt, least, replica, whole)

    def _formed(self, roster: Roster) -> None:
        """A group stands: its epoch is the number of the attempt."""
        self._progress.attempt, self._progress.workers = roster.epoch, len(roster.members)
        if self._commits and not roster.first:
            self._commits.count_attempt(roster.epoch)

    def _lost(self, ranks: list[int]) -> None:
        count = len(ranks)
        self._hazard = self._hazard.loss(count)
        if self._commits:
            self._commits.lose(self._meeting.now.epoch, ranks)
        self._turn(Phase.RESTARTING, f"{count} worker{'s' * (count != 1)} lost", self._progress.workers - count)

    # --- checkpoints: every rank brings its part, here they become a whole

    async def keep_checkpoints(self, where: str, keep: int, layout: str) -> None:
        self._commits = Commits(where, keep, layout, self._checkpointed)

    # --- workers that hang

    async def watch_for_hangs(self, timeout_s: float) -> None:
        """Call the roll when no step is taken for too long: who does not answer is taken for lost. Runs for ever."""
        while True:
            await asyncio.sleep(timeout_s / 10)
            if self._progress.phase is not Phase.TRAINING:
                self._stall = self._stall.pause(time.monotonic())
            elif self._stall.is_over(time.monotonic(), timeout_s):
                self._stall = self._stall.pause(time.monotonic())
                self._meeting.call_the_roll(timeout_s / 4)

    async def saved(self, part: Any, order: dict[str, Any] | None) -> dict[str, Any]:
        """A rank's part is durable, or failed. Waits until it is known what became of the whole."""
        assert self._commits is not None
        outcome = await self._commits.add(part, order)
        self._hazard = self._hazard.pass_by(time.monotonic(), self._progress.workers)
        return outcome | {"hazard": asdict(self._hazard)}

    async def interval(self, words: str) -> None:
        self._progress.saves = words

    # --- membership: the control loop tells of processes, members meet

    async def enroll(self, members: list[str]) -> None:
        self._meeting.enroll(members)

    async def lose(self, members: list[str]) -> None:
        self._meeting.lose(members)

    async def let_go(self, members: list[str], notice_s: float | None = None) -> None:
        """They leave at the next step boundary, if they can be spared; because their node will be taken away in
        `notice_s` seconds, or because they are too many."""
        if notice_s is not None:
            self._hazard = self._hazard.notice(len(set(members) - self._noticed), notice_s)
            self._noticed |= set(members)
        self._meeting.release(members)

    async def finished(self) -> None:
        self._meeting.close()

    async def members(self) -> dict[str, Any]:
        """Who stands in the group, by rank, and who is out for ever."""
        now = self._meeting.now
        members = now.roster.members if now.roster else ()
        return {"epoch": now.epoch, "members": members, "gone": now.gone, "lost": self._meeting.lost}

    async def meet(self, arrival: dict[str, Any]) -> dict[str, Any] | None:
        """A member waits for the next roster; None says that it is not part of the group any more."""
        if arrival["epoch"] and self._meeting.is_short:
            self._turn(Phase.RESTARTING, f"{self._progress.workers} of at least {self._least} workers are left")
        elif arrival["epoch"] and not arrival["broken"]:
            self._turn(Phase.RESIZING, "workers come or go")
        return await self._meeting.meet(Arrival(**arrival))

    async def resolve(self, member: str, step: int) -> tuple[float, ...] | None:
        return await self._meeting.resolve(member, step)

    async def watch_group(self, epoch: int, seen: str, timeout_s: float) -> str | None:
        found = await self._meeting.watch(epoch, Change(seen), timeout_s)
        return found.value if found else None

    async def lifeline(self) -> tuple[str, int, str]:
        """Where members hold a connection, to be missed when they are lost."""
        import ray

        return await self._meeting.listen(ray.util.get_node_ip_address())

    async def phase(self, phase: str, reason: str = "", workers: int | None = None) -> None:
        self._turn(Phase(phase), reason, workers)

    def _turn(self, phase: Phase, reason: str = "", workers: int | None = None) -> None:
        """The job is doing something else now. The same again is no news."""
        now = self._progress
        count = now.workers if workers is None else workers
        if (now.phase, now.reason, now.workers) == (phase, reason, count) and self._has_told:
            return
        self._has_told = True
        now.phase, now.reason, now.workers = phase, reason, count
        self._outbox.put(
            PhaseChanged(
                at_s=self._clock(),
                job_id=self._job_id,
                attempt=now.attempt,
                sequence=0,
                phase=now.phase,
                workers=count,
                reason=reason,
            )
        )

    async def ask(self, attempt: int, reason: str, rest: bool = False) -> int:
        """Ask the workers to save at a step boundary, and to end there (`rest`). Returns the number of the request.
        Who is to end need not be many: survivors that wait for others meet at once, and save what they hold. A request
        to rest may be older than the last grant: then that holds, and it is one to save."""
        rest = rest and not (self._target and self._target.replicas)
        self._handover.id += 1
        if rest:
            self._meeting.need(1)
        self._handover.attempt, self._handover.reason, self._handover.rest = attempt, reason, rest
        self._wake()
        return self._handover.id

    async def look(self) -> dict[str, Any]:
        """Target and progress, for the control loop and the progress line."""
        return {"target": asdict(self._target) if self._target else None, "progress": asdict(self._progress)}

    async def drained(self) -> bool:
        """Whether every report has been acknowledged, or nobody ever asked for one."""
        return self._outbox.empty or not self._outbox.ever_read

    # --- rank 0 of the workers

    async def watch(self, attempt: int, seen_id: int, timeout_s: float) -> tuple[int, str, bool] | None:
        """Wait for a handover request newer than `seen_id`: (id, reason, rest), or None when the time is over."""
        found = self._handover
        await self._until(lambda: found.attempt == attempt and found.id > seen_id, timeout_s)
        if found.attempt != attempt or found.id <= seen_id:
            return None
        return found.id, found.reason, found.rest

    async def training(self, attempt: int, after_step: int, total_steps: int | None) -> None:
        """The group stands and takes its first step now."""
        now = self._progress
        if attempt != now.attempt:
            return  # a group that is being ended
        now.step, now.first_step, now.total_steps = after_step, after_step + 1, total_steps
        await self.phase(Phase.TRAINING, f"from step {after_step + 1}")

    async def saving(self, attempt: int, on: bool, why: str = "") -> None:
        if attempt == self._progress.attempt:
            await self.phase(Phase.CHECKPOINTING if on else Phase.TRAINING, why)

    async def committed(
        self,
        attempt: int,
        workers: int,
        began_s: float,
        at_s: float,
        first_step: int,
        last_step: int,
        samples: int,
        loss: float | None,
    ) -> None:
        """Steps were taken. What a group that is being ended still tells is kept under its own attempt."""
        now = self._progress
        if attempt == now.attempt:
            self._stall = self._stall.step(time.monotonic())
            now.step, now.loss = last_step, loss
            if at_s - began_s >= 0.1:  # less says nothing: a report is also made when a group ends
                now.steps_per_s = (last_step - first_step + 1) / (at_s - began_s)
        self._outbox.put(
            StepCommitted(
                at_s=at_s,
                job_id=self._job_id,
                attempt=attempt,
                sequence=0,
                began_s=began_s,
                first_step=first_step,
                last_step=last_step,
                workers=workers,
                samples=samples,
                total_steps=now.total_steps,
                loss=loss,
            )
        )

    def _checkpointed(self, outcome: dict[str, Any]) -> None:
        self._progress.checkpoint_step = outcome["step"]
        self._outbox.put(
            CheckpointCommitted(
                at_s=self._clock(),
                job_id=self._job_id,
                attempt=outcome["attempt"],
                sequence=0,
                step=outcome["step"],
                path=outcome["path"],
                duration_s=outcome["stall_s"] + outcome["write_s"],
                size_bytes=outcome.get("size_bytes", 0),
            )
        )

    def _wake(self) -> None:
        self._handover.changed.set()
        self._handover.changed = asyncio.Event()

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not holds() and (left := end - time.monotonic()) > 0:
            try:
                await asyncio.wait_for(self._handover.changed.wait(), left)
            except TimeoutError:
                return


def start(job_id: str) -> Any:
    """Start the coordinator of a job on the driver's node. It lives as long as the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_concurrency=1000)(Coordinator)
    return actor.options(
        name=COORDINATOR_PREFIX + job_id, namespace=RAY_NAMESPACE, scheduling_strategy=here, get_if_exists=False
    ).remote(job_id)


def find(job_id: str) -> Any:
    """The coordinator of a running job. Raises ValueError where there is none."""
    import ray

    return ray.get_actor(COORDINATOR_PREFIX + job_id, namespace=RAY_NAMESPACE)
