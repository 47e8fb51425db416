"""Random histories of rests and stops: nobody is left with nothing granted and without somebody who wakes him, and
nothing is lost that could be saved."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from grant_world import GrantWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.events import DecisionRecorded
from tradewind.states import JobState

JOBS = 2
MEMORY = Path("/dev/shm")  # a log is written down at every event, and disks are slow
SAVE_S = 90  # what an agent gives the last save
SETTLED_S = 60  # a node boots within 12 s
FAULTS = ("restart", "lose an order", "clock ahead", "clock back", "epoch ahead", "busy", "stop twice")
STEPS = st.one_of(
    st.tuples(st.sampled_from(("rest", "wake", "stop", "disk full", "disk free")), st.integers(0, JOBS - 1)),
    st.tuples(st.sampled_from(FAULTS), st.integers(0, JOBS - 1)),
    st.tuples(st.just("kill"), st.integers(0, 9)),
    st.tuples(st.just("pass"), st.integers(1, 25)),
)


class History:
    def __init__(self, folder: Path) -> None:
        self.world = GrantWorld(folder, JOBS)
        self.names = list(self.world.trainees)
        self.stopped: set[str] = set()
        self.was_full: set[str] = set()  # jobs that were told to end, or ended, while they could not save
        self.ended = dict(self.world.trainees)  # also of those that are over

    def step(self, what: str, number: int) -> None:
        world = self.world
        if what == "pass":
            world.run(number)
            return
        if what == "kill":
            world.kill_in = number  # in the middle of a tick, as soon as there is something to record
            world.run(3)
            world.kill_in = None
            return
        name = self.names[number]
        match what:
            case "rest":
                world.resting[name] = "better hours come"
            case "wake":
                world.resting.pop(name, None)
            case "stop" | "stop twice":
                self.stopped.add(name)
                world.controller.stop(name)
                if what == "stop twice" and not world.is_over(name):
                    world.controller.stop(name)  # twice within one tick
            case "disk full" | "disk free":
                self.ended[name].storage_works = what == "disk free"
            case "restart":
                world.close()
                world.open()
            case "lose an order":
                world.coordinators.loses = 1 + number
            case "clock ahead" | "clock back":
                world.watch.ahead_s += 86_400.0 if what == "clock ahead" else -86_400.0
            case "epoch ahead" if name in world.trainees:  # by a controller whose clock was a day ahead
                told = asyncio.run(world.trainees[name].coordinator.look())["target"]
                epoch = int(time.time()) + 86_400
                if told and told["epoch"] < epoch:
                    asyncio.run(world.trainees[name].coordinator.set_target(epoch, 0))
            case "busy":
                world.coordinators.faults = {name: TimeoutError("busy")}
        world.run(1)
        world.coordinators.faults = {}
        self.was_full |= {each for each in self.stopped if not self.ended[each].storage_works}


@settings(deadline=None, max_examples=25)
@given(st.lists(STEPS, max_size=14))
def test_nobody_is_left_asleep_and_nothing_is_lost(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.exists() else None) as folder:
        history = History(Path(folder))
        world = history.world
        world.run(20)
        for what, number in steps:
            history.step(what, number)
        _check_nothing_is_lost(history)
        world.resting.clear()
        world.run(SETTLED_S)
        _check_all_are_awake(history)
        world.run(SAVE_S)
        _check_who_was_told_to_stop_has_ended(history)
        world.close()


def _check_nothing_is_lost(history: History) -> None:
    """Steps are lost by those alone that had to end, and could not save; and that is told. A rest never loses any."""
    told = {e.subject for e in history.world.events if isinstance(e, DecisionRecorded) and e.action == "unsaved"}
    for name, trainee in history.ended.items():
        assert not trainee.lost_steps or name in history.was_full & told, (name, trainee)


def _check_all_are_awake(history: History) -> None:
    world = history.world
    for name in set(history.names) - history.stopped:
        trainee = world.trainees[name]
        before = trainee.step
        assert asyncio.run(trainee.coordinator.look())["target"]["replicas"] == 1
        assert trainee.works
        world.run(2)
        assert trainee.step > before
        assert trainee.kept_steps == sorted(trainee.kept_steps), "it never goes on from before a save"


def _check_who_was_told_to_stop_has_ended(history: History) -> None:
    _check_nothing_is_lost(history)
    for name in history.stopped:
        assert history.world.journal.fleet.jobs[name].state is JobState.STOPPED
        assert history.ended[name].saved == history.ended[name].step or name in history.was_full
