"""The state machine of membership: by hand where the story matters, by hypothesis where order must not."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tradewind.jobs import membership
from tradewind.jobs.membership import NOTHING_YET, Arrival, Change, Fenced, Membership, Roster

NAMES = "abcdef"


def coming(name: str, epoch: int, step: int, broken: bool = False) -> Arrival:
    return Arrival(name, epoch, step, f"host-{name}", 1000 + ord(name), broken)


def standing(names: str, least: int = 1, step: int = 0) -> Membership:
    now = membership.enroll(membership.begin(1, least), names)
    for name in names:
        now = membership.arrive(now, coming(name, 0, step))
    return membership.settle(now)


def come(now: Membership, names: str, step: int, broken: bool = True) -> Membership:
    for name in names:
        now = membership.settle(membership.arrive(now, coming(name, now.epoch, step, broken)))
    return now


def roster(now: Membership) -> Roster:
    assert now.roster is not None
    return now.roster


def test_the_first_roster_waits_for_everyone() -> None:
    now = membership.enroll(membership.begin(7, 1), "abc")
    now = membership.settle(membership.arrive(now, coming("b", 0, 40)))
    assert now.roster is None
    now = come(come(now, "a", 40), "c", 40)
    assert (roster(now).epoch, roster(now).members, roster(now).host) == (7, ("a", "b", "c"), "host-a")


def test_a_starter_that_is_lost_is_not_waited_for() -> None:
    now = membership.enroll(membership.begin(1, 1), "abc")
    for name in "ab":
        now = membership.settle(membership.arrive(now, coming(name, 0, 0)))
    assert roster(membership.settle(membership.lose(now, "c"))).members == ("a", "b")


def test_two_losses_at_once_make_one_change() -> None:
    now = membership.lose(standing("abcd"), "ac")
    assert membership.change(now) is Change.HARD
    now = come(now, "bd", step=9)
    assert (roster(now).epoch, roster(now).members, membership.change(now)) == (2, ("b", "d"), Change.NONE)


def test_a_second_loss_while_the_first_is_mended() -> None:
    now = membership.lose(standing("abcd"), "a")
    now = come(now, "bc", step=9)  # d is missing, and is lost now
    assert now.epoch == 1
    assert roster(membership.settle(membership.lose(now, "d"))).members == ("b", "c")


def test_a_survivor_that_sees_it_first_calls_the_others() -> None:
    now = membership.arrive(standing("abc"), coming("b", 1, 5, broken=True))
    assert membership.change(now) is Change.HARD
    assert membership.settle(now).epoch == 1  # whether a and c live is not known yet


def test_the_most_advanced_leads() -> None:
    now = membership.lose(standing("abc"), "c")
    now = membership.arrive(now, coming("a", 1, 8, broken=True))
    now = membership.settle(membership.arrive(now, coming("b", 1, 9, broken=True)))
    assert (roster(now).givers, roster(now).step, roster(now).steps) == ((1,), 9, (8, 9))


def test_a_dead_worker_that_comes_back_late_is_kept_out() -> None:
    now = come(membership.lose(standing("abc"), "c"), "ab", step=3)
    with pytest.raises(Fenced):
        membership.arrive(now, coming("c", 1, 3))
    with pytest.raises(Fenced):
        membership.arrive(membership.enroll(now, "c"), coming("c", 1, 3))


def test_a_joiner_is_let_in_at_a_boundary_and_never_leads() -> None:
    now = membership.enroll(standing("ab", step=4), "x")
    assert membership.change(now) is Change.NONE  # it is still importing
    now = membership.arrive(now, coming("x", 0, NOTHING_YET))
    assert membership.change(now) is Change.SOFT
    now = come(now, "ab", step=6, broken=False)
    assert (roster(now).members, roster(now).givers, roster(now).step) == (("a", "b", "x"), (0,), 6)


def test_a_joiner_and_a_loss_at_once() -> None:
    now = membership.arrive(membership.enroll(standing("abc"), "x"), coming("x", 0, NOTHING_YET))
    now = come(membership.lose(now, "a"), "bc", step=2)
    assert (roster(now).members, roster(now).givers) == (("b", "c", "x"), (0,))


def test_joiners_alone_have_nothing_to_go_on_from() -> None:
    now = membership.arrive(membership.enroll(standing("ab"), "x"), coming("x", 0, NOTHING_YET))
    assert membership.settle(membership.lose(now, "ab")).epoch == 1


def test_a_leaving_member_goes_at_a_boundary_and_is_out() -> None:
    now = membership.release(standing("abc"), "a")
    assert membership.change(now) is Change.SOFT
    now = come(now, "abc", step=2, broken=False)
    assert roster(now).members == ("b", "c")
    with pytest.raises(Fenced):
        membership.arrive(now, coming("a", 1, 2))


def test_the_last_one_with_state_stays_until_it_has_handed_over() -> None:
    now = membership.arrive(membership.enroll(standing("a", step=3), "x"), coming("x", 0, NOTHING_YET))
    now = come(membership.release(now, "a"), "a", step=5, broken=False)
    assert (roster(now).members, roster(now).step, membership.change(now)) == (("a", "x"), 5, Change.NONE)
    now = come(membership.release(now, "a"), "ax", step=6, broken=False)
    assert roster(now).members == ("x",)


def test_below_the_least_number_nobody_goes_and_no_roster_is_formed() -> None:
    assert membership.release(standing("ab", least=2), "a").leaving == frozenset()
    now = come(membership.lose(standing("ab", least=2), "b"), "a", step=1)
    assert now.epoch == 1
    now = membership.enroll(now, "x")
    assert roster(membership.settle(membership.arrive(now, coming("x", 0, NOTHING_YET)))).members == ("a", "x")


def part(name: str, epoch: int, step: int, held: int, *copies: tuple[int, int]) -> Arrival:
    return Arrival(name, epoch, step, f"host-{name}", 1, True, held, copies)


def pairs(names: str, least: int = 2) -> Membership:
    """Replicas of two workers each."""
    now = membership.enroll(membership.begin(1, least, replica=2), names)
    for name in names:
        now = membership.arrive(now, coming(name, 0, 0))
    return membership.settle(now)


def test_replicas_come_and_go_as_a_whole_and_the_rest_waits() -> None:
    now = membership.lose(pairs("abcd"), "a")
    for name, held in (("b", 1), ("c", 0), ("d", 1)):
        now = membership.settle(membership.arrive(now, part(name, 1, 7, held)))
    assert (roster(now).members, roster(now).step, roster(now).givers) == (("c", "d"), 7, (0, 1))
    assert membership.change(now) is Change.NONE  # b alone is no replica
    now = membership.arrive(membership.enroll(now, "x"), coming("x", 0, NOTHING_YET))
    assert membership.change(now) is Change.SOFT
    for name, held in (("c", 0), ("d", 1)):
        now = membership.settle(membership.arrive(now, part(name, 2, 9, held)))
    assert roster(now).members == ("c", "d", "x", "b")  # b sits where its part is, though it is out of date
    assert (roster(now).steps, roster(now).givers) == ((9, 9, NOTHING_YET, 7), (0, 1))


def test_halves_of_two_replicas_make_one() -> None:
    now = membership.lose(pairs("abcd"), "ad")
    for name, held in (("b", 1), ("c", 0)):
        now = membership.settle(membership.arrive(now, part(name, 1, 7, held)))
    assert (roster(now).members, roster(now).givers) == (("c", "b"), (0, 1))


def test_a_lost_part_comes_from_a_peers_memory() -> None:
    now = membership.lose(pairs("ab"), "b")
    now = membership.arrive(membership.enroll(now, "x"), coming("x", 0, NOTHING_YET))
    now = membership.settle(membership.arrive(now, part("a", 1, 12, 0, (0, 10), (1, 10))))
    assert (roster(now).members, roster(now).step, roster(now).givers) == (("a", "x"), 10, (0, 0))


def test_a_part_that_nobody_has_means_storage() -> None:
    now = membership.lose(pairs("ab"), "b")
    now = membership.arrive(membership.enroll(now, "x"), coming("x", 0, NOTHING_YET))
    now = membership.settle(membership.arrive(now, part("a", 1, 12, 0)))
    assert (roster(now).step, roster(now).givers) == (NOTHING_YET, ())


def test_one_copy_over_all_members_has_as_many_parts_as_members() -> None:
    now = membership.enroll(membership.begin(1, 1, whole=True), "abc")
    for name in "abc":
        now = membership.arrive(now, coming(name, 0, 0))
    now = membership.lose(membership.settle(now), "b")
    now = membership.settle(membership.arrive(now, part("a", 1, 6, 0, (0, 4), (2, 4))))
    now = membership.settle(membership.arrive(now, part("c", 1, 6, 2, (2, 4), (1, 4))))
    assert (roster(now).members, roster(now).step, roster(now).givers) == (("a", "c"), 4, (0, 1, 0))


def test_a_leaving_member_stays_while_only_it_has_its_part() -> None:
    now = membership.enroll(pairs("ab"), "x")
    now = membership.arrive(now, coming("x", 0, NOTHING_YET))
    now = membership.release(now, "b")
    now = membership.settle(membership.arrive(now, part("a", 1, 5, 0)))
    now = membership.settle(membership.arrive(now, part("b", 1, 5, 1)))
    assert roster(now).members == ("a", "b")
    now = membership.release(now, "b")
    now = membership.settle(membership.arrive(now, part("a", 2, 8, 0, (1, 8))))
    now = membership.settle(membership.arrive(now, part("b", 2, 8, 1)))
    assert (roster(now).members, roster(now).givers) == (("a", "x"), (0, 0))


def test_who_waits_in_reserve_leaves_at_once() -> None:
    now = membership.enroll(pairs("ab"), "x")
    now = membership.release(membership.arrive(now, coming("x", 0, NOTHING_YET)), "x")
    assert "x" in now.gone


@dataclass
class Worker:
    epoch: int = 0
    step: int = NOTHING_YET
    waits: bool = False
    dead: bool = False
    fenced: bool = False


@dataclass
class World:
    now: Membership = field(default_factory=lambda: membership.begin(1, 1))
    workers: dict[str, Worker] = field(default_factory=dict)


class Story(RuleBasedStateMachine):
    """Workers that train, die, are taken for dead, come, leave, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.rosters: list[Roster] = []
        self.world.now = membership.enroll(self.world.now, "abc")
        for name in "abc":
            self.world.workers[name] = Worker(step=0)

    def _settle(self) -> None:
        before, now = self.world.now, membership.settle(self.world.now)
        self.world.now = now
        if now.epoch == before.epoch:
            return
        self.rosters.append(roster(now))
        for name, worker in self.world.workers.items():
            if worker.waits and not worker.dead:
                worker.waits = False
                worker.fenced = name not in roster(now).members
                worker.epoch, worker.step = now.epoch, roster(now).step

    @rule(name=strategies.sampled_from(NAMES), broken=strategies.booleans())
    def comes(self, name: str, broken: bool) -> None:
        worker = self.world.workers.get(name)
        if worker is None or worker.dead or worker.fenced or worker.waits:
            return
        try:
            self.world.now = membership.arrive(self.world.now, coming(name, worker.epoch, worker.step, broken))
        except Fenced:
            worker.fenced = True
            return
        worker.waits = True
        self._settle()

    @rule(ahead=strategies.booleans())
    def steps(self, ahead: bool) -> None:
        """The whole group takes a step; or a part of it only, while the others are interrupted."""
        now = self.world.now
        if now.roster is None or membership.change(now) is Change.HARD:
            return
        members = [self.world.workers[name] for name in now.roster.members]
        if len({member.step for member in members}) > 1 or any(member.waits or member.dead for member in members):
            return
        for member in members[: 1 if ahead else None]:
            member.step += 1

    @rule(name=strategies.sampled_from(NAMES), really=strategies.booleans())
    def is_lost(self, name: str, really: bool) -> None:
        if name in self.world.workers:
            self.world.workers[name].dead |= really
            self.world.now = membership.lose(self.world.now, [name])
            self._settle()

    @rule(name=strategies.sampled_from(NAMES))
    def joins(self, name: str) -> None:
        if name not in self.world.workers:
            self.world.workers[name] = Worker()
            self.world.now = membership.enroll(self.world.now, [name])

    @rule(name=strategies.sampled_from(NAMES))
    def is_released(self, name: str) -> None:
        self.world.now = membership.release(self.world.now, [name])

    @precondition(lambda self: self.rosters)
    @invariant()
    def rosters_are_sound(self) -> None:
        last = self.rosters[-1]
        assert [found.epoch for found in self.rosters] == list(range(1, len(self.rosters) + 1))
        assert len(set(last.members)) == len(last.members) == len(last.steps)
        assert last.step == max(last.steps) >= 0
        assert last.first or last.steps[last.givers[0]] == last.step
        assert last.port == 1000 + ord(last.members[0])

    @invariant()
    def steps_never_go_back(self) -> None:
        taken = [found.step for found in self.rosters]
        assert taken == sorted(taken)

    @invariant()
    def the_lost_are_never_let_in_again(self) -> None:
        now = self.world.now
        assert not now.gone & now.enrolled
        assert not now.gone & now.arrived.keys()
        for before, after in zip(self.rosters, self.rosters[1:], strict=False):
            newcomers = set(after.members) - set(before.members)
            earlier = {name for found in self.rosters[: before.epoch] for name in found.members}
            assert not newcomers & earlier

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        """When all that are expected wait, the roster was formed."""
        now = self.world.now
        with_state = [found for found in now.arrived.values() if found.step >= 0]
        assert not (membership.expected(now) and membership.expected(now) <= now.arrived.keys() and with_state)


Story.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStory = Story.TestCase
