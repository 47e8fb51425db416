"""Plays the platform's agent beside a driver: polls the job's coordinator, and writes down what it tells."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tradewind.events import AnyEvent, decode

POLL_S = 0.1
EVENTS = "events.jsonl"


def start(job_id: str, folder: Path) -> None:
    threading.Thread(target=_listen, args=(job_id, folder / EVENTS), name="agent", daemon=True).start()


def heard(folder: Path) -> list[AnyEvent]:
    """What was told so far."""
    path = folder / EVENTS
    return [decode(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def _listen(job_id: str, path: Path) -> None:
    import ray

    from tradewind.jobs import coordinator

    after, found = 0, None
    with path.open("wb") as log:
        while True:
            try:
                found = found or coordinator.find(job_id)
                events = ray.get(found.poll.remote(after))["events"]
            except ValueError:  # not there yet
                events = []
            except ray.exceptions.RayError:
                return  # the job has ended
            for event in events:
                log.write(event + b"\n")
                after = getattr(decode(event), "sequence", after)
            log.flush()
            time.sleep(POLL_S)
