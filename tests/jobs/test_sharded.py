"""Parts of sharded training that one process can show: cutting stages, refusing what cannot work, copies, choices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tradewind.errors import JobError
from tradewind.jobs import named_state
from tradewind.jobs.layout import Layout
from tradewind.jobs.mesh import make_mesh
from tradewind.jobs.peer_memory import Holding, PeerMemory, Snapshot, every_steps, exposed, partners
from tradewind.jobs.pipeline import blocks, largest_divisor, partition, split
from tradewind.jobs.sharded import ShardedModel

CPU = torch.device("cpu")


def net() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.fixture
def alone() -> Iterator[None]:
    """A worker without others: the group of one is made by `make_mesh`."""
    assert not dist.is_initialized()
    yield
    dist.destroy_process_group()


# --- one worker


def test_a_worker_alone_trains_as_without_us(alone: None) -> None:
    models = [net(), net()]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]
    plain, sharded = models[0], ShardedModel(models[1], Layout(whole=True), CPU)
    sharded.attach(make_mesh(sharded.layout, CPU, 1))
    sharded.adopt(optimizers[1])  # after the model was attached is as good as before
    x = torch.randn(6, 4)
    for _ in range(3):
        loss = plain(x).square().mean()
        loss.backward()
        ours = sharded(x).square().mean()
        sharded.backward(ours)
        assert ours.item() == pytest.approx(loss.item(), rel=1e-6)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_state_has_the_same_names_and_values_as_that_of_a_plain_model(alone: None) -> None:
    kept = []
    for wrap in (False, True):
        model: Any = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if wrap:
            model = ShardedModel(model, Layout(whole=True), CPU)
            model.adopt(optimizer)
            model.attach(make_mesh(model.layout, CPU, 1))
        kept.append({"0:Net": model, "1:SGD": optimizer})
    plain, sharded = kept
    nn.functional.mse_loss(plain["0:Net"](torch.ones(3, 4)), torch.zeros(3, 2)).backward()
    plain["1:SGD"].step()
    named_state.put(sharded, named_state.local(plain))
    ours, theirs = named_state.local(sharded), named_state.local(plain)
    assert set(ours) == set(theirs)
    assert "1:SGD/0.weight/momentum_buffer" in ours
    assert "0:Net/1.running_mean" in ours
    for name, value in theirs.items():
        assert torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value, name


def test_gradients_are_added_up_until_they_are_cleared(alone: None) -> None:
    model = ShardedModel(net(), Layout(whole=True), CPU)
    model.attach(make_mesh(model.layout, CPU, 1))
    x = torch.randn(6, 4)

    def norm() -> float:
        model.backward(model(x).square().mean())
        return float(model.clip(1e9))

    once, twice = norm(), norm()
    assert twice == pytest.approx(2 * once, rel=1e-5)
    model.zero_grad()
    assert norm() == pytest.approx(once, rel=1e-5)


def test_a_mode_and_buffers_survive_a_new_mesh(alone: None) -> None:
    model = ShardedModel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), Layout(whole=True), CPU)
    model.attach(make_mesh(model.layout, CPU, 1))
    model(torch.randn(5, 4))
    mean = model.parallel[1].running_mean.clone()
    model.eval()
    assert model.attach(make_mesh(model.layout, CPU, 2))
    assert torch.equal(model.parallel[1].running_mean, mean)
    assert not model.parallel[1].training


# --- what is refused


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)


class Staged(Odd):
    def stages(self) -> list[nn.Module]:
        return [self.a, self.b]


def test_models_that_cannot_be_cut_are_told_so() -> None:
    with pytest.raises(JobError, match="Odd has 0 parts"):
        split(Odd(), 2)
    with pytest.raises(JobError, match="has 3 parts"):
        split(net(), 4)
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(JobError, match="shared by two stages"):
        split(tied, 2)
    with pytest.raises(JobError, match="does not say how to cut it"):
        ShardedModel(Odd(), Layout(tp=2), CPU)
    with pytest.raises(JobError, match=r"names \['c'\]"):
        ShardedModel(Odd(), Layout(tp=2), CPU, tp_plan={"c": None})


def test_optimizers_of_other_models_and_used_ones_are_refused() -> None:
    model = net()
    sharded = ShardedModel(model, Layout(whole=True), CPU)
    with pytest.raises(JobError, match="none of the sharded model's"):
        sharded.adopt(torch.optim.SGD(net().parameters(), lr=0.1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(JobError, match="taken steps already"):
        sharded.adopt(optimizer)


def test_state_of_another_part_is_refused() -> None:
    kept = {"0:Net": net()}
    with pytest.raises(JobError, match=r"0:Net/0\.weight has the shape"):
        named_state.put(kept, {"0:Net/0.weight": torch.zeros(3, 3)})


# --- stages


def test_stages_keep_the_names_of_the_model() -> None:
    names = [name for stage in split(net(), 2) for name, _ in stage.named_parameters()]
    assert names == [name for name, _ in net().named_parameters()]
    assert list(blocks(Staged())) == ["a", "b"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=7), st.integers(1, 4))
def test_the_heaviest_stage_is_as_light_as_possible(weights: list[int], parts: int) -> None:
    parts = min(parts, len(weights))
    spans = partition(weights, parts)
    assert [index for span in spans for index in range(*span)] == list(range(len(weights)))
    assert all(start < end for start, end in spans)
    best = min(
        max(sum(weights[a:b]) for a, b in itertools.pairwise((0, *cuts, len(weights))))
        for cuts in itertools.combinations(range(1, len(weights)), parts - 1)
    )
    assert max(sum(weights[start:end]) for start, end in spans) == best


def test_chunks_are_equal() -> None:
    assert [largest_divisor(size, 4) for size in (12, 7, 6, 1)] == [4, 1, 3, 1]


# --- peers


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=9))
def test_partners_are_on_other_hosts_where_there_are_any(hosts: list[str]) -> None:
    found = partners(hosts)
    assert all(partner is not None and partner != rank for rank, partner in enumerate(found))
    if len(set(hosts)) > 1:
        assert all(hosts[partner] != hosts[rank] for rank, partner in enumerate(found) if partner is not None)
    if max(map(hosts.count, hosts)) * 2 <= len(hosts):
        assert len(set(found)) == len(hosts)  # each holds one part beside its own


def test_who_is_alone_has_no_partner() -> None:
    assert partners(["a"]) == (None,)


def test_copies_are_made_only_where_a_node_has_the_only_one() -> None:
    assert exposed([0, 1], ["a", "b"])
    assert not exposed([0, 1, 0, 1], ["a", "a", "b", "b"])  # two replicas on two nodes
    assert exposed([0, 1, 0, 1], ["a", "b", "a", "b"])  # two replicas, both spread over the two nodes alike


def test_copies_cost_at_most_a_hundredth_and_less_where_losses_are_rare() -> None:
    assert every_steps(cost_s=0.001, step_s=1.0) == 1
    assert every_steps(cost_s=0.1, step_s=1.0) == 10
    assert every_steps(cost_s=0.1, step_s=1.0, loss_per_s=1.0) == 10  # the budget counts
    assert every_steps(cost_s=0.1, step_s=1.0, loss_per_s=1 / 5000) == 32  # sqrt(2 * 0.1 * 5000) = 31.6


def test_a_snapshot_is_a_copy_and_its_buffer_is_used_again() -> None:
    state = {
        "w": torch.arange(5.0),
        "n": torch.tensor(3),
        "b": torch.ones(3, dtype=torch.bool),
        "groups": [{"lr": 0.1}],
    }
    snapshot = Snapshot()
    snapshot.take(Holding(0, 1, 7), state)
    place = snapshot.buffer.data_ptr()
    state["w"].zero_()
    found = snapshot.state()
    assert torch.equal(found["w"], torch.arange(5.0))
    assert found["n"] == 3
    assert found["b"].all()
    assert found["groups"] == [{"lr": 0.1}]
    snapshot.take(Holding(0, 1, 9), state)
    assert snapshot.buffer.data_ptr() == place
    assert snapshot.holding == Holding(0, 1, 9)


def test_two_snapshots_take_turns() -> None:
    memory = PeerMemory()
    for step in (2, 4, 6):
        memory.exchange({"w": torch.tensor([step])}, Holding(0, 1, step), (None,), 0)
    assert {each.step for each in memory.supplies(None)} == {4, 6}
    assert memory.supplies(Holding(0, 1, 7))[0].step == 7
    found = memory.find(Holding(0, 1, 4))
    assert found
    assert found["w"].tolist() == [4]
    assert memory.find(Holding(0, 1, 2)) is None
