"""The coordinator's protocol, without Ray: it is a plain object with async methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tradewind.events import CheckpointCommitted, PhaseChanged, StepCommitted, decode
from tradewind.jobs.checkpoint import Checkpoints, Part
from tradewind.jobs.coordinator import Coordinator, Stall
from tradewind.jobs.membership import Arrival
from tradewind.jobs.outbox import Outbox
from tradewind.jobs.progress import line
from tradewind.model import Phase, Wish


def phase(at_s: float) -> PhaseChanged:
    return PhaseChanged(at_s=at_s, job_id="j", attempt=1, sequence=0, phase=Phase.TRAINING, workers=1)


def run(body: Callable[[Coordinator], Any]) -> Any:
    return asyncio.run(body(Coordinator("j", clock=lambda: 50.0)))


async def poll(coordinator: Coordinator, after: int) -> list[Any]:
    return [decode(event) for event in (await coordinator.poll(after))["events"]]


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=30), st.integers(0, 1000))
def test_every_report_arrives_with_increasing_numbers_until_it_is_acknowledged(
    script: list[int | None], start: int
) -> None:
    """Numbers: that many reports are made. None: the agent polls, and every other answer is lost on the way."""
    box, made, log, answers = Outbox(), 0, {}, 0
    known = start
    for entry in [*script, None, None, None]:
        if entry is not None:
            for _ in range(entry):
                made += 1
                box.put(phase(float(made)))
            continue
        answers += 1
        events = [decode(event) for event in box.read(known)]
        if answers % 2:
            log.update({event.sequence: event.at_s for event in events})  # type: ignore[union-attr]
            known = max(log, default=start)
    assert list(log) == sorted(log) == list(range(start + 1, start + made + 1))
    assert list(log.values()) == [float(number) for number in range(1, made + 1)]
    box.read(known)
    assert box.empty


def test_without_an_agent_old_reports_fall_out_and_nobody_is_waited_for() -> None:
    box = Outbox(limit=3)
    for number in range(5):
        box.put(phase(float(number)))
    assert not box.ever_read
    assert [decode(event).at_s for event in box.read(0)] == [2.0, 3.0, 4.0]


def test_the_higher_epoch_wins() -> None:
    async def body(coordinator: Coordinator) -> Any:
        taken = [await coordinator.set_target(epoch, replicas) for epoch, replicas in ((2, 3), (1, 9), (2, 9), (3, 4))]
        return taken, (await coordinator.look())["target"]

    taken, target = run(body)
    assert taken == [True, False, False, True]
    assert target == {"epoch": 3, "replicas": 4, "deadline_s": None, "replica_workers": 1}


def test_the_wish_is_told_and_withdrawn() -> None:
    async def body(coordinator: Coordinator) -> Any:
        wish = asdict(Wish("j", 2, 4, {"GPU": 1.0}))
        await coordinator.declare(wish)
        before = (await coordinator.poll(0))["wish"]
        await coordinator.declare(None)
        return before == wish, (await coordinator.poll(0))["wish"]

    assert run(body) == (True, None)


def test_a_job_that_waits_for_its_first_node_tells_it_once() -> None:
    """It looks four times a second, and a node may take an hour."""

    async def body(coordinator: Coordinator) -> list[Any]:
        for _ in range(5):
            await coordinator.phase("starting", "", 0)  # as it is before anything was told
        for _ in range(5):
            await coordinator.phase("starting", "room for 0 of 1 to 1 workers", 0)
        return await poll(coordinator, 0)

    assert [told.reason for told in run(body)] == ["", "room for 0 of 1 to 1 workers"]


def test_steps_checkpoints_and_phases_reach_the_agent(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(1, 4)
        await coordinator.phase("starting", "workers start")
        await coordinator.phase("starting", "workers start")  # no news
        await coordinator.training(1, 0, 300)
        await coordinator.committed(1, 4, 10.0, 11.0, 1, 20, 1200, 0.5)
        await coordinator.keep_checkpoints(str(tmp_path), 3, "ddp")
        outcomes = await asyncio.gather(
            *(coordinator.saved(Part(20, 1, rank, 2, f"rank-{rank}.bin"), None) for rank in (0, 1))
        )
        assert {(outcome["step"], outcome["why"]) for outcome in outcomes} == {(20, "")}
        return await poll(coordinator, 0)

    starting, training, steps, saved = run(body)
    assert (starting.phase, training.phase, training.workers) == (Phase.STARTING, Phase.TRAINING, 4)
    assert isinstance(steps, StepCommitted)
    assert (steps.first_step, steps.last_step, steps.total_steps, steps.samples) == (1, 20, 300, 1200)
    assert isinstance(saved, CheckpointCommitted)
    assert (saved.step, Checkpoints.at(tmp_path).newest().name) == (20, saved.path.rsplit("/", 1)[1])  # type: ignore[union-attr]
    assert [event.sequence for event in (starting, training, steps, saved)] == [1, 2, 3, 4]


def test_a_checkpoint_is_given_up_when_a_worker_is_lost_before_its_part_is_there(tmp_path: Path) -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(1, 2)
        await coordinator.keep_checkpoints(str(tmp_path), 3, "ddp")
        await coordinator.enroll(["a", "b"])
        await asyncio.gather(*(coordinator.meet(asdict(Arrival(name, 0, 0, "here", 1))) for name in "ab"))
        first = asyncio.create_task(coordinator.saved(Part(20, 1, 0, 2, "rank-0.bin"), None))
        await asyncio.sleep(0)
        await coordinator.lose(["b"])
        return (await first)["why"]

    assert "lost" in run(body)
    assert Checkpoints.at(tmp_path).newest() is None


def test_a_stall_is_called_after_the_timeout_and_four_times_what_was_normal() -> None:
    now = Stall(0.0)
    assert not now.is_over(40.0, 10.0)  # the first step may take five times as long
    assert now.is_over(51.0, 10.0)
    now = now.step(20.0).step(21.0)
    assert (now.is_over(30.0, 10.0), now.is_over(32.0, 10.0)) == (False, True)
    now = now.step(29.0)  # a step of 8 s is normal here
    assert (now.is_over(60.0, 10.0), now.is_over(62.0, 10.0)) == (False, True)
    assert not now.pause(62.0).is_over(100.0, 10.0)


def test_who_does_not_answer_the_roll_is_lost() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(1, 2)
        await coordinator.enroll(["a", "b"])
        await asyncio.gather(*(coordinator.meet(asdict(Arrival(name, 0, 0, "here", 1))) for name in "ab"))
        await coordinator.training(1, 0, 10)
        asyncio.create_task(coordinator.watch_for_hangs(0.05))  # noqa: RUF006
        change = await coordinator.watch_group(1, "none", 30.0)
        roster = await coordinator.meet(asdict(Arrival("a", 1, 3, "here", 1, broken=True)))
        return change, roster["members"], (await coordinator.members())["lost"]

    assert run(body) == ("hard", ("a",), {"b"})


def test_late_news_of_an_ended_group_keeps_its_attempt_and_moves_nothing() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(2, 3)
        await coordinator.training(2, 20, 300)
        await coordinator.committed(1, 4, 10.0, 11.0, 21, 30, 600, 0.5)
        await coordinator.training(1, 0, 300)
        return (await poll(coordinator, 0))[-1], (await coordinator.look())["progress"]

    late, now = run(body)
    assert (late.attempt, late.last_step, late.workers) == (1, 30, 4)
    assert (now["step"], now["attempt"]) == (20, 2)


def test_rank_0_is_woken_by_a_handover_of_its_attempt_only() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(5, 2)
        waiting = asyncio.create_task(coordinator.watch(5, 0, 10.0))
        await asyncio.sleep(0)
        number = await coordinator.ask(5, "a node leaves")
        old = await coordinator.watch(4, 0, 0.01)
        again = await coordinator.watch(5, number, 0.01)
        return number, await waiting, old, again

    assert run(body) == (1, (1, "a node leaves", False), None, None)


def test_a_request_to_rest_is_told_as_such() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(5, 2)
        await coordinator.ask(5, "nothing is granted", rest=True)
        return await coordinator.watch(5, 0, 0.01)

    assert run(body) == (1, "nothing is granted", True)


def test_a_rest_that_nobody_has_heard_of_is_off_when_something_is_granted_again() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(5, 2)
        await coordinator.set_target(1, 0)
        await coordinator.ask(5, "nothing is granted", rest=True)
        await coordinator.set_target(2, 3)
        return await coordinator.watch(5, 0, 0.01), (await coordinator.poll(0))["target"]["replicas"]

    assert run(body) == ((1, "nothing is granted", False), 3)


def test_survivors_that_are_too_few_meet_to_save_what_they_hold() -> None:
    async def body(coordinator: Coordinator, rest: bool) -> Any:
        await coordinator.begin_attempt(1, 2, least=2)
        await coordinator.enroll(["a", "b"])
        first = [arrival(name, 0) for name in ("a", "b")]
        await asyncio.gather(*(coordinator.meet(each) for each in first))
        await coordinator.lose(["b"])
        waiting = asyncio.create_task(coordinator.meet(arrival("a", 1)))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await coordinator.ask(1, "something", rest=rest)
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        waiting.cancel()
        return [task.result()["members"] for task in done]

    assert run(lambda coordinator: body(coordinator, True)) == [("a",)]
    assert run(lambda coordinator: body(coordinator, False)) == []


def test_a_rest_that_is_called_off_leaves_no_group_below_its_minimum() -> None:
    """One is left of four, and has met alone to save and end; then four are granted again."""

    async def body(coordinator: Coordinator, ended: bool) -> Any:
        await coordinator.begin_attempt(1, 4, least=4)
        await coordinator.enroll(list("abcd"))
        await asyncio.gather(*(coordinator.meet(arrival(name, 0)) for name in "abcd"))
        await coordinator.lose(list("bcd"))
        await coordinator.set_target(1, 0)
        await coordinator.ask(1, "nothing is granted", rest=True)
        alone = await coordinator.meet(arrival("a", 1))
        await coordinator.training(2, 5, None)
        if ended:
            await coordinator.finished()
        await coordinator.set_target(2, 4)
        change = await coordinator.watch_group(2, "none", 0.01)
        if ended:
            return change
        await coordinator.enroll(list("efg"))
        coming = [asyncio.create_task(coordinator.meet(arrival(name, 2 * (name == "a")))) for name in "aef"]
        await asyncio.wait(coming, timeout=0.01)
        progress = (await coordinator.look())["progress"]
        whole = await coordinator.meet(arrival("g", 0))
        return alone["members"], change, (progress["phase"], progress["reason"]), whole["members"]

    waits = (Phase.RESTARTING, "1 of at least 4 workers are left")
    assert run(lambda coordinator: body(coordinator, False)) == (("a",), "hard", waits, tuple("aefg"))
    assert run(lambda coordinator: body(coordinator, True)) == "none", "it has saved, and ends"


def test_a_late_request_to_rest_does_not_overrule_a_newer_grant() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(1, 2, least=2)
        await coordinator.enroll(["a", "b"])
        await asyncio.gather(*(coordinator.meet(arrival(name, 0)) for name in "ab"))
        await coordinator.set_target(1, 0)
        await coordinator.set_target(2, 2)
        await coordinator.ask(1, "nothing is granted", rest=True)  # by who looked before the second grant
        found = await coordinator.watch(1, 0, 0.01)
        await coordinator.lose(["b"])
        waiting = asyncio.create_task(coordinator.meet(arrival("a", 1)))
        await asyncio.wait([waiting], timeout=0.01)
        met = waiting.done()
        waiting.cancel()
        return found, met

    assert run(body) == ((1, "nothing is granted", False), False)


def arrival(name: str, epoch: int) -> dict[str, Any]:
    return asdict(Arrival(name, epoch, 5 if epoch else 0, "127.0.0.1", 1, broken=bool(epoch)))


def test_why_a_save_failed_is_told_with_the_training_that_goes_on() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(1, 2)
        await coordinator.saving(1, on=True)
        await coordinator.saving(1, False, "the disk is full")
        return [(event.phase, event.reason) for event in await poll(coordinator, 0)]

    assert run(body) == [(Phase.CHECKPOINTING, ""), (Phase.TRAINING, "the disk is full")]


def test_the_end_waits_only_for_an_agent_that_was_there() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.phase("done")
        nobody = await coordinator.drained()
        last = (await poll(coordinator, 0))[-1].sequence
        unread = await coordinator.drained()
        await coordinator.poll(last)
        return nobody, unread, await coordinator.drained()

    assert run(body) == (True, False, True)


def test_the_progress_line_says_what_matters() -> None:
    async def body(coordinator: Coordinator) -> Any:
        await coordinator.begin_attempt(1, 4)
        await coordinator.training(1, 0, 100)
        await coordinator.committed(1, 4, 10.0, 12.0, 1, 20, 1200, 0.51234)
        training = line((await coordinator.look())["progress"])
        await coordinator.interval("every 90 s: a save costs 0.1 s")
        saving = line((await coordinator.look())["progress"])
        await coordinator.phase("resizing", "1 node leaving")
        return training, saving, line((await coordinator.look())["progress"])

    assert run(body) == (
        "step 20/100  loss 0.5123  4 workers  10.0 steps/s  8 s left",
        "step 20/100  loss 0.5123  4 workers  10.0 steps/s  8 s left  saved every 90 s",
        "step 20/100  loss 0.5123  4 workers  resizing: 1 node leaving",
    )
