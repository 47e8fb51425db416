"""What the demo shows: one live screen in a terminal, plain lines elsewhere. Values in, text out; no decisions."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tradewind.api import EventLine, FleetStatus, JobInfo, NodeInfo
from tradewind.render import bar, count_text
from tradewind.units import format_duration, format_usd

if TYPE_CHECKING:
    from rich.console import RenderableType

SPARKS = "▁▂▃▄▅▆▇█"
FEED_LINES = 9
LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One moment of the demo."""

    job: JobInfo
    status: FleetStatus
    news: tuple[EventLine, ...]
    elapsed_s: float


class Screen(Protocol):
    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def draw(self, scene: Scene) -> None: ...


# --- from values to text; pure -------------------------------------------------------------------------------------


def story(line: EventLine) -> str | None:
    """One event in words, or None when it is not worth a line."""
    event = line.event
    tell = _STORIES.get(event["kind"])
    return tell(event) if tell else None


def _launched(event: Mapping[str, Any]) -> str:
    offer = event["offer"]
    return f"asks for {_market(offer['market'])} at {_price(offer['price_uusd_per_h'])}"


def _price(uusd_per_h: int | None) -> str:
    return "an unknown price" if uusd_per_h is None else f"{format_usd(uusd_per_h)}/h"


def _gone(event: Mapping[str, Any]) -> str:
    words = {"preempted": "was taken by the cloud", "terminated": "was given back"}
    told = words.get(event["end"]) or f"{event['end']}: {event['detail']}"
    return f"node {event['launch_id']} {told}"


def _ending(event: Mapping[str, Any]) -> str | None:
    """Why a node is given up; that one which was drained ends is no news."""
    return None if event["reason"] == "drained" else f"node {event['launch_id']} is given up: {event['reason']}"


def _phase(event: Mapping[str, Any]) -> str | None:
    """Only what begins with a reason is news: training goes on after every checkpoint, too."""
    if not event["reason"]:
        return None
    reason = f": {event['reason']}"
    words = {
        "restarting": "job recovers",
        "resizing": "job changes its size",
        "training": f"job trains with {count_text(event['workers'], 'worker')}",
    }
    return f"{words[event['phase']]}{reason}" if event["phase"] in words else None


_STORIES: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "launch_requested": _launched,
    "launch_refused": lambda event: f"refused: {event['message']}; tries the next best offer",
    "node_joined": lambda event: f"node {event['launch_id']} joined Ray",
    "notice_received": lambda event: f"notice: node {event['launch_id']} goes soon; it is drained",
    "terminate_requested": _ending,
    "node_gone": _gone,
    "phase_changed": _phase,
}


def _market(market: Mapping[str, Any]) -> str:
    return f"{market['cloud']}/{market['zone']}/{market['instance_type']}/{market['capacity']}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as little bars, thinned out until they fit; the newest is always among them."""
    shown = values[:: -max(1, -(-len(values) // width))][::-1]
    low, high = (min(shown), max(shown)) if shown else (0.0, 0.0)
    span = high - low or 1.0  # divided by before it is scaled: the difference may be the smallest number there is
    return "".join(SPARKS[round((value - low) / span * (len(SPARKS) - 1))] for value in shown)


def workers_line(job: JobInfo) -> str:
    dots = "●" * job.workers + "○" * max(0, job.max_workers - job.workers)
    return f"{dots}  {job.workers} of {job.min_workers}..{job.max_workers}"


def nodes_by_market(nodes: Sequence[NodeInfo]) -> list[tuple[str, str, str, str]]:
    """Market, price, count, states."""
    groups: dict[tuple[str, int | None], list[NodeInfo]] = {}
    for node in nodes:
        market = f"{node.cloud}/{node.zone}/{node.instance_type}/{node.capacity}"
        groups.setdefault((market, node.price_uusd_per_h), []).append(node)
    return [
        (
            market,
            f"{format_usd(price)}/h" if price is not None else "unknown",
            "■" * len(group),
            ", ".join(f"{count} {state}" for state, count in Counter(str(n.state) for n in group).items()),
        )
        for (market, price), group in sorted(groups.items(), key=lambda item: item[0][0])
    ]


def summary(scene: Scene) -> str:
    job = scene.job
    loss = "-" if job.loss is None else f"{job.loss:.3f}"
    return (
        f"[{format_duration(scene.elapsed_s):>6}] step {job.step}/{job.total_steps or '?'}  loss {loss}  "
        f"workers {job.workers}  nodes {len(scene.status.nodes)}  {format_usd(scene.status.cost_uusd)} (simulated)"
    )


# --- the two screens -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PlainScreen:
    """Lines, for logs and pipes."""

    write: Callable[[str], None]
    _last_s: float = -LINE_EVERY_S

    def say(self, text: str) -> None:
        self.write(text)

    def draw(self, scene: Scene) -> None:
        for line in filter(None, map(story, scene.news)):
            self.write(f"[{format_duration(scene.elapsed_s):>6}]   {line}")
        if scene.elapsed_s - self._last_s >= LINE_EVERY_S:
            self._last_s = scene.elapsed_s
            self.write(summary(scene))


@dataclass(slots=True)
class LiveScreen:
    """One screen that is drawn again and again; `say` goes into its feed, or above it before the first scene."""

    live: Any
    feed: deque[str] = field(default_factory=lambda: deque(maxlen=FEED_LINES))
    losses: list[float] = field(default_factory=list)
    _last_step: int = 0
    _over: bool = False

    def say(self, text: str) -> None:
        self.live.console.print(text, highlight=False, markup=False)

    def draw(self, scene: Scene) -> None:
        job = scene.job
        if job.loss is not None and job.step > self._last_step:
            self._last_step = job.step
            self.losses.append(job.loss)
        for line in filter(None, map(story, scene.news)):
            self.feed.append(f"{format_duration(scene.elapsed_s):>6}  {line}")
        self.live.update(self._page(scene), refresh=True)

    def _page(self, scene: Scene) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        job = scene.job
        figures = Table.grid(padding=(0, 2))
        loss = "-" if job.loss is None else f"{job.loss:.3f}  {sparkline(self.losses, 44)}"
        for name, value in (
            ("steps", f"{bar(job.step, job.total_steps)}  {job.step} of {job.total_steps or '?'}"),
            ("loss", loss),
            ("workers", f"{workers_line(job)}  {job.phase or 'waiting for nodes'}"),
            ("dollars", f"{format_usd(scene.status.cost_uusd)} so far (simulated)"),
        ):
            figures.add_row(Text(name, style="dim"), Text(value))
        markets = Table.grid(padding=(0, 2))
        for row in nodes_by_market(scene.status.nodes):
            markets.add_row(*map(Text, row))
        feed = Text("\n".join(self.feed), no_wrap=True, overflow="ellipsis")
        return Group(
            Panel(
                figures, title=f"{job.name}: {job.state}", title_align="left", subtitle=format_duration(scene.elapsed_s)
            ),
            Panel(markets, title="nodes by market", title_align="left"),
            Panel(feed, title="what happened", title_align="left"),
        )


@contextmanager
def open_screen() -> Iterator[Screen]:
    if not sys.stdout.isatty():
        yield PlainScreen(write)
        return
    from rich.live import Live

    with Live(auto_refresh=False, transient=False) as live:
        yield LiveScreen(live)


def write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
