"""Receipts and bills as plain text, for terminals without colours, logs and mails. Pure.

On the local cloud every amount is a pretence: each column and line of amounts then says `simulated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tradewind.cost.compare import SingleCloud
from tradewind.cost.energy import Footprint
from tradewind.cost.figures import Line, Summary
from tradewind.cost.labels import Label
from tradewind.cost.receipt import Bill, Figures, JobLine, MarketLine, NodeLine, Receipt
from tradewind.units import format_duration, format_usd, uusd_to_usd

Table = Sequence[Sequence[str]]


def render_receipt(receipt: Receipt) -> str:
    mark = _mark(receipt.simulated)
    title = receipt.job_id if receipt.name == receipt.job_id else f"{receipt.name} ({receipt.job_id})"
    lasted = format_duration(max(receipt.until_s - receipt.from_s, 0.0))
    return _page(
        f"Receipt: {title}{mark}",
        f"tenant {receipt.tenant}, {receipt.state}, {lasted}",
        "",
        *_label_lines(receipt.labels_uusd, receipt.total_uusd, mark),
        "",
        *_market_lines(receipt.markets, mark),
        "",
        *_figure_lines(receipt, mark),
        *_compared_lines(receipt, mark),
        *_job_figure_lines(receipt, mark),
        _progress_line(receipt),
    )


def render_bill(bill: Bill) -> str:
    mark = _mark(bill.simulated)
    lasted = format_duration(max(bill.until_s - bill.from_s, 0.0))
    return _page(
        f"Bill of the fleet{mark}",
        f"{lasted}, {len(bill.nodes)} nodes, now {format_usd(bill.rate_uusd_per_h)} per hour{mark}",
        "",
        *_label_lines(bill.labels_uusd, bill.total_uusd, mark),
        "",
        *_job_lines(bill, mark),
        "",
        *_market_lines(bill.markets, mark),
        "",
        *_node_lines(bill.nodes, bill.until_s, mark),
        "",
        *_figure_lines(bill, mark),
        *_compared_lines(bill, mark),
    )


def render_summary(summary: Summary) -> str:
    """Cost by one of the words in figures.BY."""
    mark = _mark(summary.simulated)
    head = (summary.by, f"cost{mark}", "share", "useful", "acc-hours", "per acc-h", "per useful", "saved", "busy")
    lines = [*summary.lines, summary.total]
    return _page(
        f"Cost by {summary.by}{mark}", "", *_table([head, *(_summary_row(line, summary) for line in lines)], left=1)
    )


def _summary_row(line: Line, summary: Summary) -> tuple[str, ...]:
    return (
        line.name,
        _exact(line.cost_uusd) + (" + unpriced" if line.unpriced_s else ""),
        _percent(line.cost_uusd, summary.total.cost_uusd),
        _percent(line.labels_uusd.get(Label.USEFUL, 0), line.cost_uusd),
        _hours(line.accelerator_hours),
        _maybe(line.paid_uusd_per_accelerator_h),
        _maybe(line.effective_uusd_per_accelerator_h),
        _percent(line.saved_uusd, line.on_demand_uusd) if line.saved_uusd is not None and line.on_demand_uusd else "-",
        f"{line.utilisation.busy:.0%}" if line.utilisation else "-",
    )


def render_units(receipt: Receipt, samples_per_epoch: int | None, tokens_per_sample: int | None) -> str:
    """What only the person who asks can relate to samples."""
    per_million, mark = receipt.uusd_per_million_samples, _mark(receipt.simulated)
    if per_million is None:
        return ""
    found = []
    if samples_per_epoch:
        found.append(f"epochs     {format_usd(round(per_million * samples_per_epoch / 1_000_000))} each{mark}")
    if tokens_per_sample:
        found.append(f"tokens     {format_usd(round(per_million / tokens_per_sample))} per million{mark}")
    return "".join(f"{line}\n" for line in found)


def _mark(simulated: bool) -> str:
    return " (simulated)" if simulated else ""


def _page(*lines: str) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _label_lines(labels_uusd: Mapping[Label, int], total_uusd: int, mark: str) -> list[str]:
    rows = [("label", f"cost{mark}", "share")]
    rows += [(label, _exact(cost), _percent(cost, total_uusd)) for label, cost in labels_uusd.items() if cost]
    rows += [("total", _exact(total_uusd), _percent(total_uusd, total_uusd))]
    return _table(rows, left=1)


def _market_lines(markets: Sequence[MarketLine], mark: str) -> list[str]:
    rows = [("market", "accelerator", "nodes", "held", "acc-hours", f"cost{mark}")]
    rows += [
        (
            line.market,
            line.accelerator or "none",
            str(line.nodes),
            format_duration(line.held_s),
            _hours(line.accelerator_hours),
            format_usd(line.cost_uusd),
        )
        for line in markets
    ]
    return _table(rows, left=2)


def _job_lines(bill: Bill, mark: str) -> list[str]:
    def row(line: JobLine) -> tuple[str, ...]:
        amounts = (_exact(line.useful_uusd), _exact(line.cost_uusd))
        return (line.job_id, line.name, line.tenant, line.state, _hours(line.accelerator_hours), *amounts)

    rows = [("job", "name", "tenant", "state", "acc-hours", f"useful{mark}", f"cost{mark}"), *map(row, bill.jobs)]
    rows += [("overhead", "", "", "", "", "", _exact(bill.overhead_uusd))]
    return _table(rows, left=4)


def _node_lines(nodes: Sequence[NodeLine], now_s: float, mark: str) -> list[str]:
    rows = [("node", "market", "billed", "end", f"cost{mark}")]
    for node in nodes:
        until_s = now_s if node.ended_s is None else node.ended_s
        cost = format_usd(node.cost_uusd) + (" + unpriced" if node.unpriced_s else "")
        billed = format_duration(max(until_s - node.launched_s, 0.0))
        rows.append((node.launch_id, node.market, billed, str(node.end or "runs"), cost))
    return _table(rows, left=2)


def _figure_lines(figures: Figures, mark: str) -> list[str]:
    lines = [
        f"{_hours(figures.accelerator_hours)} accelerator-hours, {_hours(figures.useful_accelerator_hours)} useful"
    ]
    if figures.paid_uusd_per_accelerator_h is not None:
        lines.append(f"paid       {format_usd(figures.paid_uusd_per_accelerator_h)} per accelerator-hour{mark}")
    if figures.effective_uusd_per_accelerator_h is not None:
        effective = format_usd(figures.effective_uusd_per_accelerator_h)
        lines.append(f"effective  {effective} per useful accelerator-hour{mark}")
    lines.append(_comparison(figures, mark))
    if figures.unpriced_nodes:
        lines.append(f"no price is known for {', '.join(figures.unpriced_nodes)}: the total leaves that time out")
    return lines


def _compared_lines(figures: Receipt | Bill, mark: str) -> list[str]:
    lines = []
    if figures.single_cloud is not None and not figures.unpriced_nodes and _has_several_clouds(figures):
        lines.append(_one_cloud_line(figures.single_cloud, figures.total_uusd, mark))
    if figures.old_lists_days:
        ages = ", ".join(f"{cloud} {days} days" for cloud, days in figures.old_lists_days.items())
        lines.append(f"prices     by lists that are old: {ages}; `tradewind catalog refresh` asks for new ones")
    if figures.utilisation is not None:
        use = figures.utilisation
        lines.append(f"use        {use.allocated:.0%} allocated, {use.busy:.0%} busy, {use.useful:.0%} useful")
    return lines


def _has_several_clouds(figures: Receipt | Bill) -> bool:
    """Who bought on one cloud alone did not choose between clouds: there is nothing to compare."""
    return len({line.market.partition("/")[0] for line in figures.markets}) > 1


def _one_cloud_line(other: SingleCloud, total_uusd: int, mark: str) -> str:
    """The comparison is with what nobody can buy: no waste, no loss, always the cheapest machine."""
    ideal = f"{other.cloud} alone, always its cheapest machine, nothing lost or idle"
    if other.cost_uusd >= total_uusd:
        return f"one cloud  {format_usd(other.cost_uusd)} on {ideal}{mark}: even so dearer than here"
    return f"one cloud  no less than {format_usd(other.cost_uusd)}: on {ideal}{mark}"


def _job_figure_lines(receipt: Receipt, mark: str) -> list[str]:
    lines = []
    if receipt.uusd_per_million_samples is not None:
        lines.append(f"samples    {format_usd(receipt.uusd_per_million_samples)} per million{mark}")
    if receipt.forecast is not None:
        to_end = receipt.forecast
        between = f"{format_usd(to_end.low_uusd)} to {format_usd(to_end.high_uusd)}"
        left = format_duration(max(to_end.ends_at_s - receipt.until_s, 0.0))
        lines.append(f"forecast   {format_usd(to_end.total_uusd)} in all ({between}), {left} left{mark}")
    if receipt.budget_uusd is not None:
        used = _percent(receipt.total_uusd, receipt.budget_uusd)
        lines.append(f"budget     {format_usd(receipt.budget_uusd)}, {used} used{mark}")
    data = receipt.estimates
    if data.storage_uusd or data.egress_uusd:
        amounts = f"storage {format_usd(data.storage_uusd)}, egress {format_usd(data.egress_uusd)}"
        lines.append(f"data       {amounts}: estimates, not in the total{mark}")
    if receipt.footprint is not None:
        lines.append(_footprint_line(receipt.footprint, mark))
    if receipt.sci_g_per_step is not None:
        samples = receipt.sci_g_per_million_samples
        more = f", {_three(samples)} g per million samples" if samples is not None else ""
        lines.append(f"carbon     {_three(receipt.sci_g_per_step)} g CO2e per step{more}{mark}")
    return lines


def _footprint_line(found: Footprint, mark: str) -> str:
    carbon = "carbon unknown" if found.total_g is None else f"{_three(found.total_g / 1000)} kg CO2e"
    hourly = ", grid by the hour" if found.hourly else ""
    return f"energy     {_three(found.kwh)} kWh, {carbon} ({found.known}, PUE {found.pue:.2f}{hourly}){mark}"


def _three(amount: float) -> str:
    """Three digits, and never 1e+03."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _maybe(amount_uusd: int | None) -> str:
    return "-" if amount_uusd is None else format_usd(amount_uusd)


def _comparison(figures: Figures, mark: str) -> str:
    if figures.on_demand_uusd is None:
        return "on-demand  unknown: not every node has an on-demand price"
    listed = f"on-demand  {format_usd(figures.on_demand_uusd)} for the same node time{mark}"
    if figures.saved_uusd is None or figures.saved_fraction is None:
        return listed
    verb = "saved" if figures.saved_uusd >= 0 else "overpaid"
    return f"{listed}, {verb} {format_usd(abs(figures.saved_uusd))} ({abs(figures.saved_fraction):.1%})"


def _progress_line(receipt: Receipt) -> str:
    counts = (
        (receipt.attempts, "attempt"),
        (receipt.preemptions, "preemption"),
        (receipt.notices, "notice"),
    )
    told = ", ".join(_count(number, noun) for number, noun in counts)
    steps = f"{_count(receipt.steps, 'step')} ({receipt.recomputed_steps} recomputed)"
    rested = f", rested for {format_duration(receipt.rested_s)}" if receipt.rested_s else ""
    return f"{steps}, {_count(receipt.samples, 'sample')}, {told}{rested}"


def _exact(amount_uusd: int) -> str:
    """To the micro-dollar, so that a reader can add the lines up."""
    return f"${uusd_to_usd(amount_uusd):,.6f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 1 or hours == 0 else f"{hours:.4f}"


def _table(rows: Table, left: int) -> list[str]:
    """Aligned columns, the first `left` of them to the left, the others (figures) to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
