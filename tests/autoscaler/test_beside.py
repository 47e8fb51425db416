"""Where calls are made: on the spot, or in threads that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import pytest

from tradewind.autoscaler.beside import Inline, Threads

SOON_S = 10.0  # far more than anything here takes


class Hang:
    """Work that waits until it is let go."""

    def __init__(self) -> None:
        self.began, self.go = threading.Semaphore(0), threading.Event()

    def __call__(self) -> str:
        self.began.release()
        assert self.go.wait(SOON_S)
        return "done"

    def wait_until_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.began.acquire(timeout=SOON_S)


@pytest.fixture
def hang() -> Iterator[Hang]:
    made = Hang()
    yield made
    made.go.set()


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_inline_gives_the_answer_at_once_and_lets_interrupts_through() -> None:
    inline = Inline()
    assert inline.submit("a", lambda: 7).result(0) == 7
    assert isinstance(inline.submit("a", failing(ValueError("x"))).exception(0), ValueError)
    with pytest.raises(KeyboardInterrupt):
        inline.submit("a", failing(KeyboardInterrupt()))


def test_a_lane_makes_so_many_calls_at_a_time_and_other_lanes_go_on(hang: Hang) -> None:
    threads = Threads(width=2)
    calls = [threads.submit("slow", hang) for _ in range(3)]
    hang.wait_until_begun(2)
    assert threads.submit("quick", lambda: 1).result(SOON_S) == 1
    assert not hang.began.acquire(blocking=False)  # the third one waits for its turn
    hang.go.set()
    assert [call.result(SOON_S) for call in calls] == ["done"] * 3


def test_a_call_that_has_not_begun_can_be_cancelled_and_is_never_made(hang: Hang) -> None:
    threads, made = Threads(width=1), []
    first = threads.submit("a", hang)
    hang.wait_until_begun()
    second = threads.submit("a", lambda: made.append(2))
    third = threads.submit("a", lambda: made.append(3))
    assert second.cancel()
    assert not first.cancel()
    hang.go.set()
    wait([third], SOON_S)
    assert made == [3]


def test_the_place_of_an_abandoned_call_goes_to_the_next_and_its_late_end_does_no_harm(hang: Hang) -> None:
    threads = Threads(width=1)
    stuck = threads.submit("a", hang)
    hang.wait_until_begun()
    behind = threads.submit("a", lambda: "next")
    threads.abandon("a", stuck)
    assert behind.result(SOON_S) == "next"
    hang.go.set()
    assert stuck.result(SOON_S) == "done"
    again = Hang()
    held = [threads.submit("a", again) for _ in range(2)]
    again.wait_until_begun()
    assert not again.began.acquire(timeout=0.05)  # still one at a time
    again.go.set()
    assert [call.result(SOON_S) for call in held] == ["done"] * 2


def test_there_is_an_end_to_making_up_for_calls_that_hang(hang: Hang) -> None:
    threads = Threads(width=1, most_abandoned=2)
    for _ in range(3):
        call = threads.submit("a", hang)
        hang.wait_until_begun()
        threads.abandon("a", call)
    behind = threads.submit("a", lambda: "next")
    wait([behind], 0.05)
    assert not behind.done()
    hang.go.set()
    assert behind.result(SOON_S) == "next"


def test_whatever_a_call_raises_reaches_whoever_asked() -> None:
    call: Future[None] = Threads().submit("a", failing(SystemExit(3)))
    assert isinstance(call.exception(SOON_S), SystemExit)


def test_waiting_ends_with_the_first_answer_or_with_the_time(hang: Hang) -> None:
    threads = Threads()
    slow, quick = threads.submit("a", hang), threads.submit("b", lambda: 1)
    assert threads.wait([slow, quick], SOON_S) < SOON_S
    assert quick.done()
    assert threads.wait([slow], 0.01) >= 0.01
    assert threads.wait([], SOON_S) < SOON_S


def test_close_waits_for_what_is_under_way_begins_nothing_more_and_does_not_wait_for_ever(hang: Hang) -> None:
    threads, made = Threads(width=1), []
    stuck = threads.submit("a", hang)
    hang.wait_until_begun()
    behind = threads.submit("a", lambda: made.append(1))
    threads.close(timeout_s=0.01)
    assert behind.cancelled()
    assert threads.submit("a", lambda: made.append(2)).cancelled()
    assert not stuck.done()
    hang.go.set()
    threads.close(timeout_s=SOON_S)
    assert stuck.result(0) == "done"
    assert made == []
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("a-")]
