"""What a cell still has in its cloud: nodes, what nodes left behind, secrets. For `down`, `reap`, `ray down`. Acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tradewind.autoscaler.clock import Clock, SystemClock
from tradewind.autoscaler.providers.base import CloudState
from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.clouds.providers import CellCloud
from tradewind.clouds.secret_stores import secrets_prefix
from tradewind.errors import Conflict, ProviderError

_SYSTEM = SystemClock()
DEBRIS_S, DEBRIS_LOOK_S = 60.0, 2.0  # how long debris may take to go, and when it is first looked at again


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is there, as its cloud calls it."""

    cell: str
    kind: str  # "node", "debris", "secret"
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.cell}: {self.kind} {self.name}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Sight:
    """What was found in a cell, and what could not be looked at: nothing may be concluded about that."""

    found: tuple[Leftover, ...] = ()
    blind: tuple[str, ...] = ()


def look(cell: CellCloud, secrets: SecretStore | None) -> Sight:
    found: list[Leftover] = []
    blind: list[str] = []
    questions: list[tuple[str, Callable[[], Iterator[Leftover]]]] = [
        ("nodes", lambda: _nodes(cell)),
        ("debris", lambda: _debris(cell)),
    ]
    if secrets is not None:
        questions.append(("secrets", lambda: _secrets(cell, secrets)))
    for what, ask in questions:
        try:
            found += ask()
        except ProviderError as error:
            blind.append(f"{cell.plan.name}: {what} could not be listed: {error}")
    return Sight(tuple(found), tuple(blind))


def _nodes(cell: CellCloud) -> Iterator[Leftover]:
    for node in cell.provider.list_nodes():
        if node.state is not CloudState.GONE:
            yield Leftover(cell.plan.name, "node", node.launch_id, f"{node.offer.market}, {node.state}")


def _debris(cell: CellCloud) -> Iterator[Leftover]:
    for name in cell.provider.list_debris():
        yield Leftover(cell.plan.name, "debris", name)


def _secrets(cell: CellCloud, store: SecretStore) -> Iterator[Leftover]:
    for name in store.list(secrets_prefix(cell.plan.settings.fleet, cell.plan.name)):
        yield Leftover(cell.plan.name, "secret", name)


def remove(
    cell: CellCloud,
    secrets: SecretStore | None,
    things: Sequence[Leftover],
    timeout_s: float,
    clock: Clock = _SYSTEM,
) -> list[str]:
    """Nodes first, since what they hold is debris only when they are gone. What could not be removed, and why."""
    mine = [thing for thing in things if thing.cell == cell.plan.name]
    failed: list[str] = []
    nodes = [thing.name for thing in mine if thing.kind == "node"]
    debris = [thing.name for thing in mine if thing.kind == "debris"]
    with _noted(failed, f"{cell.plan.name}: nodes"):
        if nodes:
            cell.provider.terminate(nodes)
            failed += [f"{cell.plan.name}: node {name}" for name in cell.provider.wait_terminated(nodes, timeout_s)]
            debris += cell.provider.list_debris()  # what they were in or held is free only now
    with _noted(failed, f"{cell.plan.name}: debris"):
        failed += _remove_debris(cell, debris, clock)
    for thing in mine:
        if thing.kind == "secret" and secrets is not None:
            with _noted(failed, f"{cell.plan.name}: secret {thing.name}"):
                secrets.delete(thing.name)
    return failed


def _remove_debris(cell: CellCloud, debris: Sequence[str], clock: Clock) -> list[str]:
    """Some of it is held by other debris until that is gone (a placement group by a machine that failed), and a cloud
    takes its time: so it is asked for again, less and less often. What is left in the end, and why."""
    until_s, pause_s, why = clock.steady_s() + DEBRIS_S, DEBRIS_LOOK_S, ""
    while debris:
        why = _ask(cell, debris)
        debris = [name for name in cell.provider.list_debris() if name in debris]
        if not debris or clock.steady_s() >= until_s:
            break
        clock.sleep(min(pause_s, until_s - clock.steady_s()))
        pause_s *= 2
    hint = "run `tradewind reap` in a few minutes"
    return [f"{cell.plan.name}: debris {name} is still there: {why} ({hint})" for name in debris]


def _ask(cell: CellCloud, debris: Sequence[str]) -> str:
    """Why it is not gone yet. What is going already, or in use for another moment, is no failure."""
    try:
        cell.provider.delete_debris(debris)
    except ProviderError as error:
        if not error.retryable and not isinstance(error, Conflict):
            raise
        return error.message
    return "its cloud takes its time"


@contextmanager
def _noted(failed: list[str], what: str) -> Iterator[None]:
    """One that cannot be removed does not keep the others."""
    try:
        yield
    except ProviderError as error:
        failed.append(f"{what}: {error}")
