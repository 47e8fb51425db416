"""`tradewind cost`: receipts, summaries, exports, and the comparison with a cloud's own bill. Parses, calls, prints."""

from __future__ import annotations

from typing import Any

import click

from tradewind.cli_base import Options, emit, json_option, parse_duration, to_json

WORDS = ("job", "tenant", "team", "market", "cloud", "day", "label")  # figures.BY, which is not imported for --help
_SHOW = "show"


class CostGroup(click.Group):
    """`tradewind cost [WHAT]` shows; only `reconcile` is a command of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What can be said after `cost` alone, too."""
        super().format_commands(ctx, formatter)
        shown = self.commands[_SHOW]
        with formatter.section(f"Options of {_SHOW}, which need not be said"):
            formatter.write_dl([record for each in shown.params if (record := each.get_help_record(ctx))])


@click.group(
    cls=CostGroup,
    subcommand_metavar="[JOB | job | tenant | team | market | cloud | day | label | reconcile BILL]",
)
def cost() -> None:
    """What was paid, and for what: the receipt of a job, cost by tenant, market or day, or the fleet's whole bill."""


@cost.command(_SHOW)
@click.argument("what", required=False, metavar="[JOB | job | tenant | team | market | cloud | day | label]")
@click.option("--since", "since_s", metavar="DURATION", callback=parse_duration, help="Only the last days: 7d.")
@click.option("--samples-per-epoch", type=click.IntRange(1), help="Of a job: say what an epoch costs, too.")
@click.option("--tokens-per-sample", type=click.IntRange(1), help="Of a job: say what a million tokens cost, too.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--focus", is_flag=True, help="Print every node, day, job and label as FOCUS 1.0 CSV.")
@click.option("--html", type=click.Path(dir_okay=False, writable=True), help="Write a page with charts to this file.")
@json_option
@click.pass_obj
def show(options: Options, /, what: str | None, html: str | None, focus: bool, as_csv: bool, **given: Any) -> None:
    """The receipt of a job; cost by a word; without either, the bill of the fleet."""
    if sum((bool(html), focus, as_csv, given["as_json"])) > 1:
        raise click.UsageError("give one of --json, --csv, --focus and --html")
    with options.connect_or_read() as fleet:
        if html:
            _write_page(fleet, html, given["since_s"])
        elif focus:
            click.echo(fleet.focus(), nl=False)
        elif what in WORDS or as_csv:
            _show_summary(fleet, what, as_csv, given)
        else:
            _show_receipt(fleet, what, given)


def _show_summary(fleet: Any, what: str | None, as_csv: bool, given: dict[str, Any]) -> None:
    from tradewind.cost import focus, render

    if what is not None and what not in WORDS:
        raise click.UsageError(f"--csv goes with one of {', '.join(WORDS)}; --focus has the rows of every job")
    found = fleet.cost(what or "day", since=given["since_s"])
    if as_csv:
        click.echo(focus.summary_csv(found), nl=False)
    else:
        emit(found, given["as_json"], lambda: render.render_summary(found).rstrip("\n"))


def _show_receipt(fleet: Any, job_id: str | None, given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(to_json(fleet.job(job_id).receipt_json() if job_id else fleet.bill_json()))
        return
    from tradewind.cost import render

    if job_id is None:
        click.echo(render.render_bill(fleet.bill()))
        return
    receipt = fleet.job(job_id).receipt()
    text = render.render_receipt(receipt)
    click.echo(text + render.render_units(receipt, given["samples_per_epoch"], given["tokens_per_sample"]))


def _write_page(fleet: Any, path: str, since_s: float | None) -> None:
    from pathlib import Path

    from tradewind.cost.page import render_page

    try:
        Path(path).write_text(render_page(fleet.cost_report(since=since_s)), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"Wrote {path}")


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--budget", metavar="+USD | USD", help="+20: so many dollars more than before; 50: so much in all.")
@json_option
@click.pass_obj
def resume(options: Options, job_id: str, budget: str | None, as_json: bool) -> None:
    """Raise the budget of a job; if it has stopped, go on from its checkpoints as another job."""
    from tradewind.render import progress_line

    with options.connect() as fleet:
        found = fleet.job(job_id).resume(budget).info
    emit(found, as_json, lambda: progress_line(found))


@cost.command()
@click.argument("bills", type=click.Path(exists=True, dir_okay=False), metavar="BILL.CSV...", nargs=-1, required=True)
@click.option("--tolerance", default=1.0, show_default=True, type=click.FloatRange(0), help="Per cent that may differ.")
@json_option
@click.pass_obj
def reconcile(options: Options, bills: tuple[str, ...], tolerance: float, as_json: bool) -> None:
    """Compare the ledger with a cloud's own bill, and say what differs and why.

    Takes AWS cost and usage reports, FOCUS files of any cloud, Google billing exports and Azure cost exports, as CSV
    (.gz too); a bill that comes in several files is given whole. Exit status 1 where something differs.
    """
    from pathlib import Path

    from tradewind.cost import reconcile
    from tradewind.cost.bills import parse_focus, read

    charges = [charge for bill in bills for charge in read(Path(bill))]
    with options.connect_or_read() as fleet:
        found = reconcile.compare(parse_focus(fleet.focus()), charges, tolerance / 100)
    emit(found, as_json, lambda: reconcile.render(found).rstrip("\n"))
    if not found.agrees:
        raise click.exceptions.Exit(1)


COMMANDS = (cost, resume)
