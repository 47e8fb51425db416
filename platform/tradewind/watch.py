"""Live progress of a job or a fleet: a redrawn screen in a terminal, an updated cell in a notebook, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tradewind.api import EventLine, JobInfo
from tradewind.render import bar, event_text, html_job, progress_line, status_screen
from tradewind.states import is_over

if TYPE_CHECKING:
    from tradewind.client import Fleet, Job

REFRESH_S = 0.5
LINE_EVERY_S = 5.0  # without a terminal, steps alone make a line no more often than this

Show = Callable[[JobInfo], None]


def watch_job(job: Job, show: Show | None = None, refresh_s: float = REFRESH_S) -> JobInfo:
    """Shows the job until it is over, and returns what became of it."""
    with _shown(show) as draw:
        while True:
            info = job.status()
            draw(info)
            if is_over(info.state):
                return info
            time.sleep(refresh_s)


@contextmanager
def _shown(given: Show | None) -> Iterator[Show]:
    if given is not None:
        yield given
    elif _in_notebook():
        yield _notebook()
    elif sys.stdout.isatty():
        with _live() as update:
            yield lambda info: update(job_screen(info))
    else:
        yield plain_lines(_write_line)


def plain_lines(write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Show:
    """A line when something changes other than the step, and now and then for the step."""
    last: list[Any] = [None, None, 0.0]  # what was shown, its text, when

    def show(info: JobInfo) -> None:
        key = (info.state, info.phase, info.workers, info.reason)
        text, now_s = progress_line(info), clock()
        if key != last[0] or (text != last[1] and now_s - last[2] >= LINE_EVERY_S):
            last[:] = [key, text, now_s]
            write(text)

    return show


def job_screen(info: JobInfo) -> str:
    return f"{info.name}  {bar(info.step, info.total_steps)}\n{progress_line(info)}"


def watch_events(fleet: Fleet, show: Callable[[EventLine], None], duration_s: float | None = None) -> None:
    """Every event from now on, until the time is over or the controller goes."""
    after = _last_sequence(fleet)  # takes its time in a long log, which is not taken from what was asked for
    until_s = None if duration_s is None else time.monotonic() + duration_s
    while until_s is None or time.monotonic() < until_s:
        wait_s = 10.0 if until_s is None else min(10.0, max(0.1, until_s - time.monotonic()))
        for line in fleet.events(after, wait_s=wait_s):
            show(line)
            after = line.sequence


def watch_fleet(fleet: Fleet, duration_s: float | None = None, refresh_s: float = 1.0) -> None:
    """The status screen, redrawn. For terminals; elsewhere use `watch_events`."""
    until_s = None if duration_s is None else time.monotonic() + duration_s
    with _live() as update:
        while until_s is None or time.monotonic() < until_s:
            update(status_screen(fleet.status()))
            time.sleep(refresh_s)


def show_event(line: EventLine) -> None:
    _write_line(event_text(line))


def _last_sequence(fleet: Fleet) -> int:
    after = 0
    while lines := fleet.events(after, limit=10_000):
        after = lines[-1].sequence
    return after


def _write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def _live() -> Iterator[Callable[[str], None]]:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        yield lambda text: live.update(Text(text), refresh=True)


def _in_notebook() -> bool:
    """Asks only an IPython that is loaded already: importing it costs a second."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


def _notebook() -> Show:
    display: Any = sys.modules["IPython"].display
    handle = display.display(display.HTML(""), display_id=True)

    def show(info: JobInfo) -> None:
        handle.update(display.HTML(html_job(info)))

    return show
