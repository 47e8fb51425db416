"""A way out of sums that gloo never ends.

When a connection breaks, gloo wakes whoever waits for data from the peer, and whoever waits for the peer's leave to
send. A piece that the peer had asked for and that did not get through in time is forgotten (`Pair::signalException` in
gloo/transport/tcp/pair.cc passes over `tx_`): its sender sleeps until the time-out of the group, in a thread of gloo
that nothing can wake. So gradients are summed by a hook of DDP that waits for gloo *or* for word that the group is
given up. The thread and its process group stay behind, out of everybody's way, until gloo's own time-out ends them.

NCCL has an abort that works; there nothing of this is needed.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.futures import Future

from tradewind.jobs.losses import PeerLost

if TYPE_CHECKING:
    from tradewind.jobs.regroup import Group

PATIENCE_S = 0.5  # gloo tells of a closed connection within milliseconds, if it does
LOOK_EVERY_S = 5.0  # at what was left behind


class Escape:
    """From the sums of one group. `open` may be called from any thread, the rest from the training thread."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._under_way: dict[Future[Any], Any] = {}  # the work of each sum that has not ended
        self._given_up = False

    def watch(self, work: Any, summed: torch.Tensor) -> Future[torch.Tensor]:
        """Ends as `work` does, or when it is opened."""
        end: Future[Any] = Future()
        with self._lock:
            self._under_way[end] = work
        if self._given_up:  # just before this sum began
            self.open_soon()
        outcome: Future[torch.Tensor] = end.then(partial(_outcome, summed))
        work.get_future().add_done_callback(partial(self._finish, end))
        return outcome

    def open_soon(self) -> None:
        """Every connection is shut down: what does not end by itself now never will."""
        self._given_up = True
        if self._under_way:
            timer = threading.Timer(self._patience_s, self.open)
            timer.daemon = True
            timer.start()

    def open(self) -> None:
        with self._lock:
            ends = list(self._under_way)
        for end in ends:
            self._settle(end, PeerLost("gloo does not end a sum of a group that is given up"))

    def stuck(self) -> list[Any]:
        """Works that were left, and that gloo has not ended."""
        with self._lock:
            return [work for work in self._under_way.values() if not work.is_completed()]

    def wait(self, timeout_s: float) -> None:
        """Until gloo has ended all sums, or for so long."""
        end_s = time.monotonic() + timeout_s
        while self._under_way and time.monotonic() < end_s:
            time.sleep(0.01)

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way)

    def _finish(self, end: Future[Any], summed: Future[Any]) -> None:
        try:
            summed.value()
        except Exception as error:  # whoever waits must hear of it, whatever it is
            self._settle(end, error)
        else:
            self._settle(end, None)
        with self._lock:
            self._under_way.pop(end, None)

    def _settle(self, end: Future[Any], error: Exception | None) -> None:
        with self._lock:  # gloo may end it at the moment in which it is left
            if not end.done():
                end.set_result(error)


def average(group: Group, summed: set[int], bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """DDP's hook: what it does by itself, with a way out. Where the gradients lie is put down in `summed`."""
    buffer = bucket.buffer().div_(group.world)
    summed.add(buffer.untyped_storage().data_ptr())
    return group.escape.watch(dist.all_reduce(buffer, async_op=True), buffer)


def leave_behind(process_group: Any, works: list[Any]) -> None:
    """Keep it until gloo has ended its works: who lets go of the last reference waits for them."""
    threading.Thread(target=_keep, args=([process_group], works), name="left-behind", daemon=True).start()


def _keep(kept: list[Any], works: list[Any]) -> None:
    while not all(work.is_completed() for work in works):
        time.sleep(LOOK_EVERY_S)
    kept.clear()


def _outcome(summed: torch.Tensor, end: Future[Exception | None]) -> torch.Tensor:
    if error := end.value():
        raise error
    return summed
