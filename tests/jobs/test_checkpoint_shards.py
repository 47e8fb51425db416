"""Who writes what, whether it is whole, and that a slice is read without reading the rest."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import JobError
from tradewind.jobs.checkpoint import BLOCK_BYTES, Checkpoints
from tradewind.jobs.shards import Entry, Item, Layout, merge, mine
from tradewind.jobs.storage import LocalStore

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.metadata import ChunkStorageMetadata  # noqa: E402
from torch.distributed.checkpoint.planner import LoadPlan  # noqa: E402
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list  # noqa: E402

from tradewind.jobs.dcp import Reader  # noqa: E402
from tradewind.jobs.saver import Saver  # noqa: E402


def held_by(layout: Layout, sizes: list[int]) -> list[Item]:
    """A state in which every stage of a pipeline has its own keys."""
    stage = layout.rank % layout.replica_size
    return [Item(f"{stage}/{number}", None, layout.same_keys(), size) for number, size in enumerate(sizes)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=12), st.integers(1, 4), st.integers(1, 3))
def test_everything_is_written_once_and_evenly(sizes: list[int], replicas: int, stages: int) -> None:
    world = replicas * stages
    written: list[list[Item]] = []
    for rank in range(world):
        layout = Layout(rank, world, replica_size=stages, stage=(rank,))
        written.append(mine(held_by(layout, sizes), rank))
    keys = sorted(item.key for part in written for item in part)
    assert keys == sorted(f"{stage}/{number}" for stage in range(stages) for number in range(len(sizes)))
    for stage in range(stages):
        loads = [sum(item.num_bytes for item in part) for part in written[stage::stages]]
        # The greedy rule is never worse than a fair share and one largest item.
        assert max(loads) <= sum(loads) / replicas + max(sizes, default=0) + len(sizes)


def test_the_same_place_in_every_replica_holds_the_same() -> None:
    assert Layout(1, 4).same_keys() == (0, 1, 2, 3)  # data parallel
    assert Layout(3, 4, replica_size=2).same_keys() == (0, 1, 2, 3)  # tensor parallel: plain tensors are everywhere
    assert Layout(3, 4, replica_size=2, stage=(3,)).same_keys() == (1, 3)  # pipeline
    assert Layout(3, 8, replica_size=4).over_replicas([2]) == (2, 6)
    assert Layout(3, 8, replica_size=2).over_replicas([1, 3, 5]) == (1, 3, 5)  # a mesh over replicas knows them all


cuts = st.lists(st.integers(1, 5), min_size=1, max_size=3)  # sizes of pieces along a dimension


def grid(dimensions: list[list[int]]) -> list[Entry]:
    spans = [list(zip(itertools.accumulate([0, *sizes]), sizes, strict=False)) for sizes in dimensions]
    shape = tuple(map(sum, dimensions))
    return [
        Entry("x", "f", 0, 0, (), "float32", shape, tuple(at for at, _ in box), tuple(size for _, size in box))
        for box in itertools.product(*spans)
    ]


@settings(deadline=None)
@given(st.lists(cuts, max_size=3), st.data())
def test_a_tensor_is_whole_only_with_all_its_pieces(dimensions: list[list[int]], data: st.DataObject) -> None:
    pieces = data.draw(st.permutations(grid(dimensions)))
    assert len(merge([pieces], ["x"])) == len(pieces)
    assert len(merge([pieces, pieces[:1]], ["x"])) == len(pieces)  # the same piece twice is no harm
    with pytest.raises(JobError, match="x would not be whole"):
        merge([pieces[1:]], ["x"])
    if len(pieces) > 1 and dimensions:
        moved = replace(pieces[0], offsets=tuple(at + 1 for at in pieces[0].offsets))
        with pytest.raises(JobError):  # the volumes still add up
            merge([[moved, *pieces[1:]]], ["x"])


class CountingStore(LocalStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_bytes = 0

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        found = super().read_into(path, start, target)
        self.num_bytes += found
        return found


class OneTarget:
    """As much of a LoadPlanner as the reader calls."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def resolve_tensor(self, item: Any) -> Any:
        places = tuple(slice(at, at + size) for at, size in zip(item.dest_offsets, item.lengths, strict=True))
        return self.target[places]

    def commit_tensor(self, item: Any, target: Any) -> None:
        pass


SHAPE = (37, 50, 1500)  # 21 MiB in double precision: six blocks


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[CountingStore, Reader, Any]:
    whole = torch.arange(math.prod(SHAPE), dtype=torch.float64).view(SHAPE)
    store = CountingStore(tmp_path_factory.mktemp("run"))
    saver = Saver(store)
    saver.begin({"a": torch.ones(5), "x": whole}, step=1, attempt=1, layout=Layout())
    meta = Checkpoints(store).commit([saver.wait() or pytest.fail("nothing")])
    saver.close()
    return store, Reader(Checkpoints(store), meta), whole


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_slice_is_read_without_the_rest(saved: tuple[CountingStore, Reader, Any], data: st.DataObject) -> None:
    store, reader, whole = saved
    box = []
    for size in SHAPE:
        low = data.draw(st.just(0) | st.integers(0, size - 1))
        box.append((low, data.draw(st.just(size) | st.integers(low + 1, size))))
    chunk = ChunkStorageMetadata(torch.Size([low for low, _ in box]), torch.Size([high - low for low, high in box]))
    reader.set_up_storage_reader()
    items = create_read_items_for_chunk_list("x", reader.read_metadata().state_dict_metadata["x"], [chunk])
    target = torch.zeros(chunk.sizes, dtype=whole.dtype)
    store.num_bytes = 0
    reader.read_data(LoadPlan(items), OneTarget(target))
    wanted = whole[tuple(slice(low, high) for low, high in box)]
    assert torch.equal(target, wanted)
    assert store.num_bytes >= wanted.nbytes
    rows = box[0][1] - box[0][0]
    assert store.num_bytes <= rows * whole[0].nbytes + 2 * BLOCK_BYTES
