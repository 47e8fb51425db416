"""A checkpoint is whole, or it is not there; what is in it comes back; training is never stopped by it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.errors import JobError
from tradewind.jobs.checkpoint import META_FILE, CheckpointDamaged, Checkpoints, Part
from tradewind.jobs.committer import Committer, Outcome
from tradewind.jobs.shards import Layout
from tradewind.jobs.storage import LocalStore

torch = pytest.importorskip("torch")

from tradewind.jobs.dcp import Reader, restore  # noqa: E402  (need torch)
from tradewind.jobs.saver import Saver  # noqa: E402


def data_of(folder: Path) -> Path:
    """The data file of rank 0."""
    return next(folder.glob("rank-00000-*.bin"))


def index_of(folder: Path) -> Path:
    return next(folder.glob("index-*.json"))


def state_at(step: int) -> dict[str, Any]:
    torch.manual_seed(step)
    return {
        "0:Net/weight": torch.randn(300, 40),
        "0:Net/half": torch.randn(7).to(torch.bfloat16),
        "0:Net/turned": torch.randn(20, 30).t(),
        "0:Net/mask": torch.rand(33) > 0.5,
        "0:Net/nothing": torch.empty(0, 4),
        "1:Adam/weight/step": torch.tensor(float(step)),
        "1:Adam/weight/exp_avg": torch.randn(300, 40, dtype=torch.float64),
        "1:Adam//groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
    }


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        for key, value in one.items()
    )


def empty(contents: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: torch.zeros(shape.shape, dtype=shape.dtype) if shape is not None else None
        for key, shape in contents.items()
    }


def write(checkpoints: Checkpoints, step: int, *, world: int = 1, attempt: int = 1) -> list[Part]:
    """What all ranks of a data-parallel group say of their parts."""
    parts = []
    for rank in range(world):
        saver = Saver(checkpoints.store)
        assert saver.begin(state_at(step), step=step, attempt=attempt, layout=Layout(rank, world))
        part = saver.wait()
        assert part is not None
        parts.append(part)
        saver.close()
    return parts


def save(checkpoints: Checkpoints, step: int, *, world: int = 1, attempt: int = 1) -> Path:
    meta = checkpoints.commit(write(checkpoints, step, world=world, attempt=attempt), order={"seed": 7})
    return Path(checkpoints.store.where) / meta.name


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints.at(tmp_path / "run")


@pytest.mark.parametrize("world", [1, 3])
def test_what_was_saved_comes_back(checkpoints: Checkpoints, world: int) -> None:
    save(checkpoints, 20, world=world)
    meta, state = restore(checkpoints, empty) or pytest.fail("nothing found")
    assert (meta.step, meta.attempt, meta.world, meta.order) == (20, 1, world, {"seed": 7})
    assert same(state, state_at(20))
    assert checkpoints.verify(meta.name) == meta


def test_replicas_share_the_writing(checkpoints: Checkpoints) -> None:
    parts = write(checkpoints, 20, world=2)
    written = [{entry.key for entry in part.entries} for part in parts]
    assert written[0].isdisjoint(written[1])
    assert written[0] | written[1] == state_at(20).keys()
    sizes = [sum(entry.num_bytes for entry in part.entries) for part in parts]
    assert max(sizes) < 0.7 * sum(sizes)  # one tensor is two thirds of all


def test_only_what_is_asked_for_is_loaded_and_what_is_missing_is_named(checkpoints: Checkpoints) -> None:
    save(checkpoints, 20)
    reader = Reader(checkpoints, checkpoints.newest() or pytest.fail("none"))
    part = {"0:Net/weight": torch.zeros(300, 40)}
    reader.fill(part)
    assert torch.equal(part["0:Net/weight"], state_at(20)["0:Net/weight"])
    with pytest.raises(JobError, match="has no '2:Other/x'"):
        reader.fill({"2:Other/x": torch.zeros(1)})
    with pytest.raises(JobError, match="does not fit"):
        reader.fill({"0:Net/weight": torch.zeros(2, 2)})


# --- damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "data cut off": (lambda folder: os.truncate(data_of(folder), 4000), "rank-00000-.*.bin has 4000 bytes of"),
    "data flipped": (lambda folder: flip(data_of(folder)), "rank-00000-.*, '.*', block 0 has another checksum"),
    "data gone": (lambda folder: data_of(folder).unlink(), "rank-00000-.* is missing"),
    "index flipped": (lambda folder: flip(index_of(folder)), "index-.*.json has another checksum"),
    "index gone": (lambda folder: index_of(folder).unlink(), "index-.*.json is missing"),
    "meta flipped": (lambda folder: flip(folder / META_FILE), META_FILE),
    "meta cut off": (lambda folder: (folder / META_FILE).write_bytes(b'{"meta": {"st'), META_FILE),
    "meta gone": (lambda folder: (folder / META_FILE).unlink(), "was never finished"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_is_used(
    checkpoints: Checkpoints, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(checkpoints, 20)
    hurt, words = DAMAGES[damage]
    hurt(save(checkpoints, 40))
    with pytest.raises(CheckpointDamaged, match=words):
        checkpoints.verify("step-00000040-attempt-001")
    meta, state = restore(checkpoints, empty) or pytest.fail("nothing found")
    assert meta.step == 20
    assert same(state, state_at(20))
    assert "step-00000040" in caplog.text
    assert "the checkpoint before it is used" in caplog.text
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 20  # nobody tries the damaged one again


def test_all_ranks_take_the_one_before_when_one_finds_damage(checkpoints: Checkpoints) -> None:
    """This rank could read it; another one could not."""
    save(checkpoints, 20)
    save(checkpoints, 40)
    answers = iter([False, True])
    meta, state = restore(checkpoints, empty, agree=lambda _: next(answers)) or pytest.fail("nothing found")
    assert (meta.step, same(state, state_at(20))) == (20, True)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew_in_silence(checkpoints: Checkpoints) -> None:
    flip(data_of(save(checkpoints, 20)))
    flip(data_of(save(checkpoints, 40)))
    with pytest.raises(JobError, match=r"none of 2 checkpoints .* is whole"):
        restore(checkpoints, empty)


def test_a_run_that_was_killed_in_its_first_save_begins_anew(checkpoints: Checkpoints) -> None:
    write(checkpoints, 20)  # never committed
    assert restore(checkpoints, empty) is None
    assert checkpoints.prune(3) == []  # it may be in the making
    assert checkpoints.prune(3, idle=True) == ["step-00000020-attempt-001"]


# --- the commit


def test_nothing_is_committed_that_would_not_be_whole(checkpoints: Checkpoints) -> None:
    one, other = write(checkpoints, 20, world=2)
    with pytest.raises(JobError, match="not the parts of 2 ranks"):
        checkpoints.commit([one])
    lost = other.entries[0].key
    with pytest.raises(JobError, match=f"{lost} would not be whole"):
        checkpoints.commit([one, replace(other, entries=other.entries[1:])])
    changed = replace(one.entries[0], sums=(1,), file=other.file)
    with pytest.raises(JobError, match="hold different values"):
        checkpoints.commit([one, replace(other, entries=(*other.entries, changed))])
    (Path(checkpoints.store.where) / other.name / other.file).unlink()
    with pytest.raises(JobError, match=f"{other.file} is missing .all machines must see the same folder"):
        checkpoints.commit([one, other])
    assert checkpoints.newest() is None


def test_meta_is_readable_by_people(checkpoints: Checkpoints) -> None:
    meta = json.loads((save(checkpoints, 20) / META_FILE).read_text())["meta"]
    assert (meta["step"], meta["order"], len(meta["files"])) == (20, {"seed": 7}, 2)


def test_a_lost_rank_blocks_nothing(checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture) -> None:
    committer = Committer(checkpoints)
    one, late = write(checkpoints, 20, world=2)
    assert committer.add(one) is None
    assert committer.pending
    outcome = committer.add(*write(checkpoints, 30, attempt=2))  # the survivor goes on alone
    assert outcome is not None
    assert outcome.meta is not None
    assert "step-00000020-attempt-001 is given up" in caplog.text
    told = committer.add(late)  # who comes late does not wait for ever
    assert told is not None
    assert "given up: a later one was begun" in told.why
    assert checkpoints.names() == ["step-00000030-attempt-002"]


@pytest.mark.parametrize("when", ["before any part", "before the last part", "after its part"])
def test_a_rank_is_lost_while_the_others_write(checkpoints: Checkpoints, when: str) -> None:
    committer = Committer(checkpoints)
    parts = write(checkpoints, 20, world=3)
    arriving = {"before any part": [], "before the last part": parts[:1], "after its part": parts[:2]}[when]
    for part in arriving:
        assert committer.add(part) is None
    told = [committer.lose(1, [1])]
    told += [committer.add(part) for part in parts if part not in arriving and part.rank != 1]
    outcomes = [outcome for outcome in told if outcome is not None]
    if when == "after its part":
        assert [outcome.meta is not None for outcome in outcomes] == [True]  # what it wrote is as good as any
    else:
        assert len(outcomes) == {"before any part": 2, "before the last part": 2}[when]
        assert {outcome.why for outcome in outcomes} == {"it was given up: a worker was lost while it was written"}
        assert checkpoints.names() == []
    (next_one,) = write(checkpoints, 30, attempt=2)
    outcome = committer.add(next_one)
    assert outcome is not None
    assert outcome.meta is not None


def test_of_two_lost_ranks_one_had_brought_its_part(checkpoints: Checkpoints) -> None:
    committer = Committer(checkpoints)
    committer.add(write(checkpoints, 20, world=3)[1])
    assert committer.lose(1, [1]) is None  # rank 2 may still come,
    outcome = committer.lose(1, [2])  # but it does not
    assert outcome is not None
    assert "a worker was lost" in outcome.why
    assert not committer.pending


def test_a_rank_is_lost_after_the_group_has_changed(checkpoints: Checkpoints) -> None:
    """It may be one that has not brought its part, under another number."""
    committer = Committer(checkpoints)
    parts = write(checkpoints, 20, world=3)
    assert committer.add(parts[0]) is None
    outcomes = [committer.lose(2, [0]), committer.add(parts[1])]
    assert ["a worker was lost" in outcome.why for outcome in outcomes if outcome] == [True, True]
    committer = Committer(checkpoints)
    committer.lose(2, [0])
    late = committer.add(parts[1])  # the first part that comes
    assert late is not None
    assert "a worker was lost" in late.why


def test_a_step_that_is_saved_again_does_not_harm_what_is_there(checkpoints: Checkpoints) -> None:
    committer = Committer(checkpoints)
    first = committer.add(*write(checkpoints, 20))
    assert first is not None
    assert committer.add(*write(checkpoints, 20)) == first  # it is there already
    assert checkpoints.verify("step-00000020-attempt-001") == first.meta
    (failed,) = write(checkpoints, 20)
    again = Committer(checkpoints).add(replace(failed, error="no luck"))  # the committer was started again
    assert again is not None
    assert again.meta is None
    assert checkpoints.verify("step-00000020-attempt-001") == first.meta
    assert len(checkpoints.store.listing("step-00000020-attempt-001")) == 3
    second = checkpoints.commit(write(checkpoints, 20))  # takes its place at once
    assert checkpoints.verify("step-00000020-attempt-001") == second
    assert same((restore(checkpoints, empty) or pytest.fail("nothing found"))[1], state_at(20))


def test_a_step_that_failed_can_be_saved_again(checkpoints: Checkpoints) -> None:
    committer = Committer(checkpoints)
    (part,) = write(checkpoints, 20)
    failed = committer.add(replace(part, error="no luck"))
    assert failed is not None
    assert (failed.meta, failed.why) == (None, "rank 0: no luck")
    assert checkpoints.names() == []
    outcome = committer.add(*write(checkpoints, 20))
    assert outcome is not None
    assert outcome.meta is not None


# --- bad days


class FullStore(LocalStore):
    """The disk is full when certain files are written: the kernel says so itself."""

    full: str = "nothing"

    def write(self, path: str, content: memoryview) -> None:
        self._fill_up(path, path)
        super().write(path, content)

    def put(self, path: str, content: bytes) -> None:
        folder, _, file = path.rpartition("/")
        self._fill_up(path, f"{folder}/.{file}.tmp")
        super().put(path, content)

    def _fill_up(self, path: str, target: str) -> None:
        if self.full in path:
            (self.root / target).parent.mkdir(parents=True, exist_ok=True)
            (self.root / target).symlink_to("/dev/full")


def test_a_full_disk_costs_one_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Outcome | None] = []
    store, root = FullStore(tmp_path), tmp_path
    checkpoints = Checkpoints(store)
    committer = Committer(checkpoints)
    saver = Saver(store, lambda part: outcomes.append(committer.add(part)))
    for step, full in ((20, "nothing"), (40, "rank-"), (60, "index-"), (70, "meta"), (80, "nothing")):
        store.full = full
        saver.begin(state_at(step), step=step, attempt=1, layout=Layout())
        saver.wait()
    saver.close()
    assert [outcome and outcome.meta and outcome.meta.step for outcome in outcomes] == [20, None, None, None, 80]
    assert checkpoints.names() == ["step-00000020-attempt-001", "step-00000080-attempt-001"]
    assert f"{root} is full (No space left on device): make room, or keep fewer checkpoints" in caplog.text
    assert "training goes on" in caplog.text
    checkpoints.verify("step-00000080-attempt-001")
    store.full = "attempt"
    assert checkpoints.next_attempt(above=4) == 5  # a change of the group needs no disk


class SlowStore(LocalStore):
    """Writes nothing before it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.open = threading.Event()

    def write(self, path: str, content: memoryview) -> None:
        assert self.open.wait(30)
        super().write(path, content)


def test_a_slow_disk_costs_checkpoints_and_not_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore(tmp_path)
    saver, state = Saver(store), state_at(20)
    saver.prepare(state, Layout())
    assert saver.begin(state, step=20, attempt=1, layout=Layout())
    with torch.no_grad():
        state["0:Net/weight"].zero_()  # training goes on, and does not touch what is being saved
    assert not saver.begin(state, step=30, attempt=1, layout=Layout())
    assert saver.poll() is None
    with pytest.raises(TimeoutError):
        saver.wait(0.01)
    store.open.set()
    part = saver.wait()
    assert part is not None
    assert saver.poll() is None  # told once
    assert (part.step, saver.skipped, saver.busy) == (20, 1, False)
    Checkpoints(store).commit([part])
    _, saved = restore(Checkpoints(store), empty) or pytest.fail("nothing found")
    assert same(saved, state_at(20))
    assert "no checkpoint at step 30: the one before is still being written" in caplog.text
    saver.close()


def test_a_commit_that_fails_is_told_and_does_not_end_training(checkpoints: Checkpoints) -> None:
    def refuse(_: Part) -> None:
        raise ConnectionError("the coordinator is gone")

    saver = Saver(checkpoints.store, refuse)
    saver.begin(state_at(20), step=20, attempt=1, layout=Layout())
    part = saver.wait()
    assert part is not None
    assert "the coordinator is gone" in part.error
    saver.close()


def test_the_buffer_grows_with_the_state(checkpoints: Checkpoints) -> None:
    saver = Saver(checkpoints.store)
    for step, size in ((1, 10), (2, 3_000_000), (3, 20)):
        state = {"x": torch.arange(size), "o": "x" * (size // 2)}
        saver.prepare(state, Layout())
        saver.begin(state, step=step, attempt=1, layout=Layout())
        checkpoints.commit([saver.wait() or pytest.fail("nothing")])
        _, found = restore(checkpoints, empty) or pytest.fail("nothing found")
        assert same(found, state)
    saver.close()


def test_what_cannot_be_pickled_is_named(checkpoints: Checkpoints) -> None:
    with pytest.raises(JobError, match="'0:Net//lock' cannot be saved"):
        Saver(checkpoints.store).begin({"0:Net//lock": threading.Lock()}, step=1, attempt=1, layout=Layout())


# --- what is kept


def test_only_the_newest_are_kept_and_debris_is_removed(checkpoints: Checkpoints) -> None:
    for step in (10, 20, 30, 100):
        save(checkpoints, step)
    write(checkpoints, 50)  # its writer was killed
    write(checkpoints, 110)  # this one is being written
    checkpoints.prune(2)
    assert checkpoints.names() == [f"step-{step:08d}-attempt-001" for step in (30, 100, 110)]
    checkpoints.prune(0, idle=True)
    assert checkpoints.names() == ["step-00000100-attempt-001"]  # the newest stays, whatever is asked for


def test_the_newest_whole_one_is_kept_when_later_ones_are_damaged(checkpoints: Checkpoints) -> None:
    save(checkpoints, 10)
    data_of(save(checkpoints, 20)).unlink()
    flip(data_of(save(checkpoints, 30)))  # only seen by who loads it
    restore(checkpoints, empty)
    checkpoints.prune(1, idle=True)
    assert checkpoints.names() == ["step-00000010-attempt-001"]


def test_a_later_attempt_at_the_same_step_is_newer(checkpoints: Checkpoints) -> None:
    save(checkpoints, 20, attempt=2)
    save(checkpoints, 20, attempt=1)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.attempt == 2


def test_attempts_are_counted_over_drivers(checkpoints: Checkpoints) -> None:
    assert [checkpoints.next_attempt() for _ in range(3)] == [1, 2, 3]
    assert checkpoints.next_attempt(above=9) == 10


def test_attempts_that_could_not_be_written_down_are_known_by_their_checkpoints(checkpoints: Checkpoints) -> None:
    save(checkpoints, 20, attempt=7)
    assert checkpoints.next_attempt() == 8


def test_a_save_that_was_just_begun_is_told_before_the_end(checkpoints: Checkpoints) -> None:
    told: list[Part] = []
    for step in range(1, 21):
        saver = Saver(checkpoints.store, told.append)
        saver.begin(state_at(step), step=step, attempt=1, layout=Layout())
        saver.close()
    assert [(part.step, part.error) for part in told] == [(step, "") for step in range(1, 21)]
