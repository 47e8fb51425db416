"""Layouts are read as people write them, and the parts of a model tile it: nothing missing, nothing twice."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.errors import JobError
from tradewind.jobs.layout import Coordinate, Layout, box, chunk, cut, overlap, within

sizes = st.integers(1, 4)


@pytest.mark.parametrize(
    ("text", "least", "expected"),
    [
        (None, 3, Layout()),
        ("ddp", 3, Layout()),
        ("fsdp", 4, Layout(fsdp=4)),
        ("fsdp=4", 8, Layout(fsdp=4)),
        ("tp=2", 2, Layout(tp=2)),
        ("PP=2, tp=2", 4, Layout(pp=2, tp=2)),
        ("fsdp,tp=2", 8, Layout(fsdp=4, tp=2)),
        ("pp=2,tp=2,fsdp=2", 16, Layout(2, 2, 2)),
        ({"fsdp": 2, "tp": "2"}, 4, Layout(fsdp=2, tp=2)),
        ("fsdp=all", 3, Layout(whole=True)),
        (Layout(tp=2), 4, Layout(tp=2)),
    ],
)
def test_reads_what_people_write(text: object, least: int, expected: Layout) -> None:
    assert Layout.parse(text, least) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "least", "says"),
    [
        ("zero", 2, "knows no 'zero'"),
        ("tp=two", 2, "must be a number"),
        ("tp=0", 2, "must be a number"),
        ("tp=-2", 2, "must be a number"),
        ("tp=2", 3, "at least 3"),
        ("tp=2,tp=2", 4, "twice"),
        ("ddp,tp=2", 2, "stands alone"),
        ("fsdp=all,tp=2", 2, "cannot be combined"),
        ("tp=all", 2, "only fsdp can be all"),
        ("fsdp,tp", 4, "give a size"),
        ({"replicas": 2}, 2, "knows no 'replicas'"),
    ],
)
def test_says_what_is_wrong(text: object, least: int, says: str) -> None:
    with pytest.raises(JobError, match=says) as found:
        Layout.parse(text, least)  # type: ignore[arg-type]
    assert found.value.hint


@settings(deadline=None)
@given(sizes, sizes, sizes)
def test_what_is_printed_can_be_read(pp: int, fsdp: int, tp: int) -> None:
    layout = Layout(pp, fsdp, tp)
    assert Layout.parse(str(layout), layout.replica_size) == layout


def test_a_group_is_a_whole_number_of_replicas() -> None:
    assert Layout(tp=2).mesh_shape(6) == (3, 1, 1, 2)
    assert Layout(whole=True).mesh_shape(5) == (1, 1, 5, 1)
    with pytest.raises(JobError, match="3 workers"):
        Layout(tp=2).mesh_shape(3)


@settings(deadline=None)
@given(sizes, sizes, sizes, sizes)
def test_ranks_and_coordinates_are_one_to_one(replicas: int, pp: int, fsdp: int, tp: int) -> None:
    layout = Layout(pp, fsdp, tp)
    world = replicas * layout.replica_size
    ranks = np.arange(world).reshape(layout.mesh_shape(world))
    for replica, stage, shard, slice_ in itertools.product(*map(range, ranks.shape)):
        rank = int(ranks[replica, stage, shard, slice_])
        assert layout.coordinate(rank, world) == Coordinate(stage, shard, slice_)
        assert layout.data_rank(rank, world) == replica * fsdp + shard
    assert layout.data_world(world) == replicas * fsdp


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 9))
def test_chunks_are_those_of_torch(length: int, parts: int) -> None:
    pieces = [piece.tolist() for piece in torch.arange(length).chunk(parts)] if length else []
    ours = [list(range(*chunk(length, parts, index))) for index in range(parts)]
    assert [piece for piece in ours if piece] == pieces


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@settings(deadline=None)
@given(shapes, st.integers(1, 5), st.integers(1, 5), st.data())
def test_boxes_tile_the_tensor(shape: tuple[int, ...], tp: int, fsdp: int, data: st.DataObject) -> None:
    tp_dim = data.draw(st.sampled_from([None, *range(len(shape))]))
    seen = np.zeros(shape, dtype=int)
    for slice_, shard in itertools.product(range(tp if tp_dim is not None else 1), range(fsdp)):
        mine = box(shape, tp_dim, Coordinate(0, shard, slice_), tp, fsdp)
        seen[tuple(slice(start, end) for start, end in mine)] += 1
    assert (seen == 1).all()


@settings(deadline=None)
@given(shapes, st.integers(1, 7), st.integers(1, 7))
def test_cut_moves_every_row_to_its_new_shard(shape: tuple[int, ...], old: int, new: int) -> None:
    full = np.arange(math.prod(shape)).reshape(shape)
    old_boxes, new_boxes = (
        [box(shape, None, Coordinate(shard=index), 1, count) for index in range(count)] for count in (old, new)
    )
    parts = [full[tuple(slice(*span) for span in each)] for each in old_boxes]
    made = [np.full([end - start for start, end in each], -1) for each in new_boxes]
    for source, target, piece in cut(shape, old, new):
        made[target][within(piece, new_boxes[target])] = parts[source][within(piece, old_boxes[source])]
    for each, mine in zip(new_boxes, made, strict=True):
        assert (mine == full[tuple(slice(*span) for span in each)]).all()


def test_boxes_that_only_touch_have_nothing_in_common() -> None:
    assert overlap(((0, 2), (0, 3)), ((2, 4), (0, 3))) is None
    assert overlap(((0, 3), (0, 3)), ((2, 4), (1, 2))) == ((2, 3), (1, 2))
