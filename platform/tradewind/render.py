"""What people see: API values in, text (or HTML for notebooks) out. Pure; fits 80 columns, needs no terminal."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tradewind.api import (
    CellInfo,
    ContractInfo,
    DecisionLine,
    DemandLine,
    EventLine,
    FleetStatus,
    JobInfo,
    NodeInfo,
    ShutdownReport,
    Story,
    StoryLine,
)
from tradewind.autoscaler.providers.base import Check
from tradewind.model import Offer
from tradewind.states import NodeState, is_over
from tradewind.units import format_duration, format_usd

WIDTH = 80
_LEAST = 8  # of a column of words; one that has less than half of it is left out


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], width: int = WIDTH) -> str:
    """Columns under their heads; `>` before a head aligns right. What does not fit is cut: first the last column, then
    words in the middle, never figures or the first column; where nothing of the last is left, it is left out."""
    right = [head.startswith(">") for head in headers]
    lines = [[head.lstrip(">") for head in headers], *([str(cell) for cell in row] for row in rows)]
    sizes = _sizes([max(len(line[i]) for line in lines) for i in range(len(headers))], right, width)
    return "\n".join(_row(line[: len(sizes)], sizes, right[: len(sizes)]) for line in lines)


def _sizes(widest: Sequence[int], right: Sequence[bool], width: int) -> list[int]:
    sizes, last = list(widest), min(widest[-1], _LEAST)
    words = [i for i in range(1, len(sizes) - 1) if not right[i]]
    while (over := _taken(sizes[:-1]) + last - width) > 0 and words:
        longest = max(words, key=lambda i: sizes[i])
        if sizes[longest] <= _LEAST:
            break
        sizes[longest] -= min(over, sizes[longest] - _LEAST)
    room = width - _taken(sizes[:-1])
    return [*sizes[:-1], min(sizes[-1], room)] if room >= min(last, _LEAST // 2) else sizes[:-1]


def _taken(sizes: Sequence[int]) -> int:
    return sum(sizes) + 2 * len(sizes)


def _row(cells: Sequence[str], sizes: Sequence[int], right: Sequence[bool]) -> str:
    cut = [_cut(cell, size) for cell, size in zip(cells, sizes, strict=True)]
    padded = [c.rjust(n) if r else c.ljust(n) for c, n, r in zip(cut, sizes, right, strict=True)]
    return "  ".join(padded).rstrip()


def _cut(text: str, size: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= size else f"{line[: max(size - 1, 1)]}…"


def jobs_table(jobs: Sequence[JobInfo], width: int = WIDTH) -> str:
    if not jobs:
        return "No jobs yet. Submit one: tradewind submit -- python train.py"
    is_named = any(map(_name_text, jobs))
    rows = [
        (
            *(j.job_id, j.state, workers_text(j), step_text(j), format_usd(j.cost_uusd)),
            *((_name_text(j),) if is_named else ()),
            j.reason,
        )
        for j in jobs
    ]
    return table(("JOB", "STATE", ">WORKERS", ">STEP", ">COST", *(("NAME",) if is_named else ()), "WHY"), rows, width)


def _name_text(job: JobInfo) -> str:
    """Where the id says it already, the room is better used for the reason."""
    return "" if job.name in (job.job_id, job.job_id.rpartition("-")[0]) else _cut(job.name, 20)


def workers_text(job: JobInfo) -> str:
    if not job.max_workers:
        return str(job.workers) if job.workers else "-"
    low, high = job.min_workers, job.max_workers
    return f"{job.workers} of {low if low == high else f'{low}..{high}'}"


def _for_what(node: NodeInfo) -> str:
    """Of "cheapest for 1 x {GPU: 1} (job a): $0.53/h list, ..." the beginning: the rest is told by `why`."""
    about, closed, _ = node.reason.partition("): ")
    is_idle = node.state == NodeState.READY and node.role != "head" and about
    as_what = "bought as " if about.startswith("cheapest") else ""
    return (f"idle; {as_what}" if is_idle else "") + about + closed[:1]


def step_text(job: JobInfo) -> str:
    if not job.step and job.total_steps is None:
        return "-"
    return f"{job.step}/{job.total_steps}" if job.total_steps else str(job.step)


def nodes_table(nodes: Sequence[NodeInfo], width: int = WIDTH, num_ended: int = 0) -> str:
    """`num_ended`: of nodes that are not shown."""
    if not nodes:
        more = f" {count_text(num_ended, 'node')} ended: --all lists them." if num_ended else ""
        return f"No nodes. They are bought when a job asks for them.{more}"
    several = len({node.cell for node in nodes}) > 1
    rows = [
        (
            node.launch_id,
            node.end or node.state,
            *((node.cell,) if several else ()),
            f"{node.cloud}/{node.zone}",
            f"{node.instance_type} {'spot' if node.capacity == 'spot' else 'od'}{hosts_text(node.hosts)}",
            "?" if node.price_uusd_per_h is None else format_usd(node.price_uusd_per_h),
            ("head; " if node.role == "head" else "") + (",".join(node.jobs) or node.detail or _for_what(node)),
        )
        for node in nodes
    ]
    cell = ("CELL",) if several else ()
    return table(("NODE", "STATE", *cell, "ZONE", "TYPE", ">PER HOUR", "FOR"), rows, width)


def cells_table(cells: Sequence[CellInfo], width: int = WIDTH) -> str:
    rows = [
        (cell.cell, cell.head, cell.head_node or "-", str(cell.nodes), str(cell.jobs), cell.ray_address)
        for cell in cells
    ]
    return table(("CELL", "HEAD", "HEAD NODE", ">NODES", ">JOBS", "RAY"), rows, width)


def status_screen(status: FleetStatus, width: int = WIDTH) -> str:
    """One screen: head line, jobs, nodes, what is missing, the last decisions."""
    note = " (simulated)" if status.simulated else ""
    head = [
        f"Fleet {status.fleet}, up {format_duration(status.uptime_s)}, Tradewind {status.version}",
        f"Cost {format_usd(status.cost_uusd)} so far, {format_usd(status.price_uusd_per_h)} per hour now{note}",
    ]
    if status.ray_address:
        head.append(f"Ray {status.ray_address}" + (f"  {status.dashboard_url}" if status.dashboard_url else ""))
    if status.dry_run:
        head.append("Dry run: nothing is launched or ended; `tradewind why now` tells what would be")
    parts = ["\n".join(head), *([cells_table(status.cells, width)] if _has_cells(status) else [])]
    parts += [jobs_table(status.jobs, width), nodes_table(status.nodes, width)]
    if promised := [job for job in status.jobs if job.contract is not None and not is_over(job.state)]:
        lines = (
            _wrapped(f"  {job.job_id}  ", contract_text(job.contract), width, 4) for job in promised if job.contract
        )
        parts.append("\n".join(["Contracts:", *lines]))
    if status.demand:
        parts.append("\n".join(["Asked for:", *(f"  {demand_text(line)}" for line in status.demand)]))
    if status.decisions:
        shown = [_cut(f"  {decision_text(line)}", width) for line in status.decisions[-5:]]
        parts.append("\n".join(["Decided:", *(f"  {line}" for line in shown)]))
    return "\n\n".join(parts)


def _has_cells(status: FleetStatus) -> bool:
    """A fleet of one cell beside its controller need not be told apart."""
    return len(status.cells) > 1 or any(cell.head_node for cell in status.cells)


def contract_text(info: ContractInfo) -> str:
    """How a promise stands: "done by 14:05: 97% likely; about 13:20 (12:50 to 13:50); $3.20 ($2.90 to $4.10) of $5.00;
    now on demand x 1"."""
    parts = []
    if info.deadline_at_s is not None:
        parts.append(f"done by {moment(info.deadline_at_s)}" + _likely(info.deadline_chance))
    if info.finish_at_s is not None and info.finish_range_s is not None:
        first, last = (moment(at_s) for at_s in info.finish_range_s)
        parts.append(f"about {moment(info.finish_at_s)} ({first} to {last})")
    if info.cost_uusd is not None and info.cost_range_uusd is not None:
        low, high = (format_usd(cost) for cost in info.cost_range_uusd)
        parts.append(f"{format_usd(info.cost_uusd)} ({low} to {high})")
    if info.budget_uusd is not None:
        parts.append(f"budget {format_usd(info.budget_uusd)}" + _likely(info.budget_chance))
    if info.kept is not None:
        parts.append("kept" if info.kept else "not kept")
    now = f"now {info.course}" if info.chance is not None else info.reason
    return "; ".join([*parts, *(text for text in (now, info.basis) if text)])


def _likely(chance: float | None) -> str:
    return "" if chance is None else f": {chance:.0%} likely"


def moment(at_s: float) -> str:
    """The time of day; with the day where that is another one."""
    when = datetime.fromtimestamp(at_s)
    return f"{when:%H:%M}" if when.date() == datetime.now().date() else f"{when:%a %d %b %H:%M}"


def demand_text(line: DemandLine) -> str:
    many = f"{line.count} x " if line.count > 1 else ""
    return f"{many}{line.what}" + (f": held back, {line.hold}" if line.hold else "")


def decision_text(line: DecisionLine) -> str:
    return f"{clock(line.at_s)} {line.action} {line.subject}: {line.reason}"


def clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")


def progress_line(job: JobInfo) -> str:
    """A job in one line, for terminals without one and for logs."""
    parts = [f"{job.job_id} {job.state}"]
    if job.phase and not is_over(job.state):
        parts.append(str(job.phase))
    if job.workers or job.max_workers:
        parts.append(f"workers {workers_text(job)}")
    if job.step:
        parts.append(f"step {step_text(job)}")
    if job.loss is not None:
        parts.append(f"loss {job.loss:.4g}")
    parts.append(format_usd(job.cost_uusd))
    if job.contract is not None and job.contract.chance is not None:
        parts.append(f"contract {job.contract.chance:.0%} likely")
    return "  ".join(parts) + (f"  ({_one_line(job.reason)})" if job.reason else "")


def bar(done: int, whole: int | None, size: int = 30) -> str:
    """`[#####-----]`; empty where the end is unknown."""
    if not whole:
        return ""
    full = min(size, size * done // whole)
    return f"[{'#' * full}{'-' * (size - full)}]"


# What of an event says most, in this order; the rest is in --json.
_TELLING = ("job_id", "launch_id", "market", "action", "subject", "state", "phase", "workers", "last_step", "loss")
_FOUND_SIGNS = 240
_WHY = ("error", "end", "reason", "message", "detail")


def event_text(line: EventLine) -> str:
    """One line, whatever stands in it: the reason of a job that failed may be the end of its log."""
    event = line.event
    words = [_short(event[key]) for key in _TELLING if event.get(key) not in (None, "")] or _other_words(event)
    why = _one_line(" ".join(str(event[key]) for key in _WHY if event.get(key)))
    return " ".join([clock(event["at_s"]), event["kind"], *words]) + (f": {why}" if why else "")


def _other_words(event: Mapping[str, Any]) -> list[str]:
    """Of events that are about no job, node or market."""
    if event["kind"] == "demand_changed":
        number = len(event.get("asked") or ()) + len(event.get("changes") or ())
        return [event.get("cell") or "", f"{number} series" if number else "nothing is asked for"]
    if event["kind"] == "clock_jumped":
        return [f"by {event['jump_s']:.0f} s"]
    return [str(event[key]) for key in ("fleet", "version") if event.get(key)]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def checks_text(checks: Sequence[Check]) -> str:
    """One line each, however much an SDK has to say; --json has all of it."""
    size = max((len(check.name) for check in checks), default=0)
    return "\n".join(
        f"{'ok  ' if check.ok else 'FAIL'}  {check.name.ljust(size)}  {_one_line(check.found)}"
        + (f"  -> {' '.join(check.fix.split())}" if check.fix and not check.ok else "")
        for check in checks
    )


def _one_line(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _FOUND_SIGNS else f"{words[: _FOUND_SIGNS - 4]} ..."


def shutdown_text(report: ShutdownReport) -> str:
    jobs, nodes = len(report.jobs_stopped), len(report.nodes_ended)
    note = " (simulated)" if report.simulated else ""
    whose = f" of fleet {report.fleet}" if report.fleet else ""
    left = "\n".join(["STILL THERE:", *(f"  {each}" for each in report.left), ""])
    return (
        f"Stopped {jobs} job{'' if jobs == 1 else 's'}, ended {nodes} node{'' if nodes == 1 else 's'}{whose}. "
        f"{left if report.left else 'Nothing is left. '}Cost in all: {format_usd(report.cost_uusd)}{note}"
    )


# --- stories -------------------------------------------------------------------------------------------------------

NAMED = 3  # ids in one line; the others are counted


def story_text(story: Story, width: int = WIDTH) -> str:
    """Head line, facts, what happened in time order under its headings, and what is not known."""
    size = max((len(name) for name, _ in story.facts), default=0)
    facts = [_wrapped(f"  {name.ljust(size)}  ", text, width) for name, text in story.facts]
    notes = [_wrapped("", note, width) for note in story.notes]
    parts = [[_wrapped("", story.title, width)], facts, _story_lines(story.lines, width), notes]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _story_lines(lines: Sequence[StoryLine], width: int) -> list[str]:
    shown: list[str] = []
    group = day = ""
    for line in lines:
        if line.group != group:
            shown += [*([""] if shown else []), f"{line.group}:"]
            group = line.group
        if line.at_s is not None and (line_day := f"{datetime.fromtimestamp(line.at_s):%Y-%m-%d}") != day:
            shown.append(f"  {line_day}")
            day = line_day
        shown += _story_line(line, width)
    return shown


def _story_line(line: StoryLine, width: int) -> list[str]:
    when = "        " if line.at_s is None else clock(line.at_s)
    head = (f"{line.what}: {line.reason}" if line.reason else line.what) + _again(line)
    rivals = (("as cheap", line.tied), ("beat", line.beat))
    lists = (("refused before", line.refused), ("not asked", line.ruled_out), *rivals)
    below = [_wrapped(f"            {name}: ", text, width, 16) for name, texts in lists for text in texts]
    return [_wrapped(f"  {when}  ", head, width), *below]


def _again(line: StoryLine) -> str:
    """What was decided several times at one moment is one thing: its names are counted already."""
    if line.count == 1 or line.at_s is None or line.since_s is None or clock(line.since_s) == clock(line.at_s):
        return ""
    is_today = datetime.fromtimestamp(line.since_s).date() == datetime.fromtimestamp(line.at_s).date()
    since = clock(line.since_s) if is_today else f"{datetime.fromtimestamp(line.since_s):%Y-%m-%d %H:%M:%S}"
    return f" ({line.count} times since {since})"


def _wrapped(lead: str, text: str, width: int, hang: int | None = None) -> str:
    """`lead` and `text`, with the following lines under the text, or (`hang`) so far in."""
    return textwrap.fill(
        " ".join(text.split()),
        max(width, len(lead) + 20),
        initial_indent=lead,
        subsequent_indent=" " * (len(lead) if hang is None else hang),
        break_on_hyphens=False,
    )


def offer_text(offer: Offer) -> str:
    return f"{offer.market} at {price_text(offer.price_uusd_per_h)}"


def brings_text(offer: Offer) -> str:
    accelerators = f"{offer.accelerator_count:g} x {offer.accelerator}, " if offer.accelerator else ""
    host = f"{accelerators}{offer.vcpus:g} CPUs, {offer.memory_gib:g} GiB"
    return host if offer.hosts == 1 else f"{offer.hosts} hosts, each {host}"


def hosts_text(hosts: int) -> str:
    return f", {hosts} hosts" if hosts > 1 else ""


def price_text(uusd_per_h: int | None) -> str:
    return "an unknown price" if uusd_per_h is None else f"{format_usd(uusd_per_h)}/h"


def names_text(names: Iterable[str], between: str = ", ") -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"{between.join(listed[:NAMED])}{more}"


def count_text(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))


# --- notebooks -------------------------------------------------------------------------------------------------


def html_job(job: JobInfo) -> str:
    rows = (
        ("job", job.job_id),
        ("name", job.name),
        ("state", f"{job.state}" + (f", {job.phase}" if job.phase and not is_over(job.state) else "")),
        ("workers", workers_text(job)),
        ("step", step_text(job)),
        ("loss", "-" if job.loss is None else f"{job.loss:.4g}"),
        ("cost", format_usd(job.cost_uusd)),
        *([("contract", contract_text(job.contract))] if job.contract else []),
        ("why", job.reason),
    )
    progress = f'<progress value="{job.step}" max="{job.total_steps}"></progress>' if job.total_steps else ""
    return f"{_html_table(None, rows)}{progress}"


def html_status(status: FleetStatus) -> str:
    jobs = [(j.job_id, j.name, j.state, workers_text(j), step_text(j), format_usd(j.cost_uusd)) for j in status.jobs]
    nodes = _html_counts(status.nodes, lambda node: f"{node.cloud} {node.instance_type} {node.capacity} {node.state}")
    note = " (simulated)" if status.simulated else ""
    head = f"Fleet {status.fleet}: {format_usd(status.cost_uusd)} so far{note}"
    jobs_html = _html_table(("job", "name", "state", "workers", "step", "cost"), jobs)
    return f"<b>{html.escape(head)}</b>{jobs_html}{_html_table(('nodes', 'what'), nodes)}"


def _html_counts(nodes: Iterable[NodeInfo], key: Callable[[NodeInfo], str]) -> list[tuple[str, str]]:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[key(node)] = counts.get(key(node), 0) + 1
    return [(str(count), name) for name, count in counts.items()]


def _html_table(headers: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in headers or ())
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"
