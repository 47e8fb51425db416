"""Members meet in the coordinator: rosters, changes, and lifelines that break. Real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tradewind.jobs.meeting import Meeting
from tradewind.jobs.membership import Arrival, Change


class Hall:
    """A meeting, and what it has told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.meeting = Meeting(lambda roster: self.told.append(roster.members), self.told.append)

    async def comes(self, name: str, epoch: int = 0, step: int = 0, broken: bool = False) -> Any:
        return await self.meeting.meet(Arrival(name, epoch, step, "127.0.0.1", 1, broken))

    async def stands(self, names: str) -> None:
        self.meeting.begin(1, 1)
        self.meeting.enroll(names)
        await asyncio.gather(*(self.comes(name) for name in names))


def run(body: Callable[[Hall], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(body(Hall()), 20)

    return asyncio.run(main())


def test_all_get_the_same_roster() -> None:
    async def body(hall: Hall) -> Any:
        hall.meeting.begin(4, 1)
        hall.meeting.enroll("ab")
        return await asyncio.gather(hall.comes("b"), hall.comes("a"))

    first, second = run(body)
    assert first == second
    assert (first["epoch"], first["members"]) == (4, ("a", "b"))


def test_a_lifeline_that_breaks_calls_the_others_at_once() -> None:
    async def body(hall: Hall) -> Any:
        host, port, word = await hall.meeting.listen("127.0.0.1")
        _, stranger = await asyncio.open_connection(host, port)
        stranger.write(b"wrong a\n")
        stranger.close()  # means nothing
        await hall.stands("abc")
        _, writer = await asyncio.open_connection(host, port)
        writer.write(f"{word} c\n".encode())
        await writer.drain()
        watching = asyncio.create_task(hall.meeting.watch(1, Change.NONE, 15.0))
        await asyncio.sleep(0)
        writer.close()
        change = await watching
        found = await asyncio.gather(hall.comes("a", 1, 5, True), hall.comes("b", 1, 5, True))
        return change, found[0]["members"], await hall.comes("c", 1, 5), hall.told

    assert run(body) == (Change.HARD, ("a", "b"), None, [("a", "b", "c"), [2], ("a", "b")])


def test_who_ends_after_the_last_save_is_not_lost() -> None:
    async def body(hall: Hall) -> Any:
        await hall.stands("ab")
        hall.meeting.close()
        hall.meeting.lose("a")
        return await hall.meeting.watch(1, Change.NONE, 0.01)

    assert run(body) is Change.NONE


def test_a_watch_ends_with_its_roster() -> None:
    async def body(hall: Hall) -> Any:
        await hall.stands("ab")
        watching = asyncio.create_task(hall.meeting.watch(1, Change.HARD, 15.0))
        await asyncio.gather(hall.comes("a", 1, 1), hall.comes("b", 1, 1))
        return await hall.meeting.watch(1, Change.NONE, 15.0), await watching

    assert run(body) == (None, Change.NONE)
