"""Why a worker group failed, and whether to try again: pure.

A node that was taken away is no failure of the job: it has no limit. An exception of the user's code is one, and has
the limit that the user gave (none by default). Between the two stand workers that crash on a healthy node (out of
memory, a segmentation fault) and broken communication that nobody explains: tried again as long as the job moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

MAX_WITHOUT_PROGRESS = 3

# What gloo, NCCL and torch's stores say when a peer is gone. Exceptions of torch.distributed are known by their type.
COMMUNICATION_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "PeerLost"})
BARRIER_RESET = "SynchronizationBarrierResetError"  # Ray Train's, also inside of the name of a RayTaskError
COMMUNICATION_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket closed",
    "gloo",
    "nccl",
    "timed out waiting",
    "application timeout caused pair closure",
)


class PeerLost(RuntimeError):
    """Another worker cannot be reached any more. Raised in the workers that are left."""


class StateLost(Exception):
    """Parts of a sharded model went with their workers, and nobody has a copy: the run begins anew."""


class Rested(Exception):
    """The group has saved and ended because it was told to. No failure: another one goes on from there."""


class Cause(StrEnum):
    RESTED = "rested"
    NODE_LOST = "node lost"
    WORKER_CRASHED = "worker crashed"
    COMMUNICATION = "communication broken"
    USER_ERROR = "user error"


@dataclass(frozen=True, slots=True)
class Tally:
    """Failures so far, by the budget that they count against."""

    losses: int = 0
    user_errors: int = 0
    without_progress: int = 0
    last_step: int = 0


def is_communication(error: BaseException) -> bool:
    """Whether an exception, or what caused it, says that a peer is gone."""
    return any(_says_peer_gone(link) for link in _chain(error))


def cause(failures: Mapping[int, Exception], dead_ranks: int, nodes_lost: int) -> Cause:
    """Why the group ended. A loss explains the errors of the survivors; a real bug comes up again without one."""
    if any(isinstance(link, Rested) for error in failures.values() for link in _chain(error)):
        return Cause.RESTED
    if nodes_lost or any(isinstance(link, StateLost) for error in failures.values() for link in _chain(error)):
        return Cause.NODE_LOST
    if dead_ranks:
        return Cause.WORKER_CRASHED
    if failures and all(is_communication(error) for error in failures.values()):
        return Cause.COMMUNICATION
    return Cause.USER_ERROR


def charge(tally: Tally, why: Cause, step: int, max_failures: int) -> tuple[Tally, bool]:
    """Count a failure at `step`; the new tally, and whether to try again. `max_failures` of -1 means no limit."""
    if why is Cause.RESTED:
        return tally, True
    stuck = tally.without_progress + 1 if step <= tally.last_step else 1
    user_errors = tally.user_errors + (why is Cause.USER_ERROR)
    losses = tally.losses + (why is Cause.NODE_LOST)
    new = Tally(losses, user_errors, stuck, max(step, tally.last_step))
    if why is Cause.NODE_LOST:
        return new, True
    if why is Cause.USER_ERROR:
        return new, max_failures < 0 or user_errors <= max_failures
    return new, stuck <= MAX_WITHOUT_PROGRESS


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__ or getattr(error, "_base_exc", None)


def _says_peer_gone(error: BaseException) -> bool:
    name = type(error).__name__
    if name in COMMUNICATION_TYPES or BARRIER_RESET in name or isinstance(error, ConnectionError):
        return True
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return any(word in text for word in COMMUNICATION_WORDS)
