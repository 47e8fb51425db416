"""`tradewind simulate`: parses, asks, prints. Needs no controller and no account."""

from __future__ import annotations

import sys
from typing import Any

import click

from tradewind.cli_base import Options, emit, json_option, parse_duration, parse_span, terminal_width
from tradewind.cli_catalog import use_lists


@click.command()
@click.argument("fleet_file", metavar="FLEET.yaml", type=click.Path(exists=True, dir_okay=False))
@click.option("--jobs", required=True, metavar="FILE", help="A job trace: CSV, a row a job.")
@click.option("--traces", multiple=True, metavar="DIR", help="Records of markets: files or folders; may be repeated.")
@click.option("--policy", default="reactive,contract", show_default=True, metavar="A,B", help="See above.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same result.")
@click.option(
    "--repeat", type=click.IntRange(1, 1000), default=1, show_default=True, help="Other begins of the records."
)
@click.option("--days", type=click.FloatRange(0, min_open=True), help="Only so much of the job trace.")
@click.option("--slack", type=click.FloatRange(0, min_open=True), help="Deadlines for jobs without: x their duration.")
@click.option("--duration", callback=parse_span, help="Of jobs for which the trace has none, like 2h.")
@click.option(
    "--replicas", type=click.IntRange(1, 64), default=1, show_default=True, help="A contract may grow a job so."
)
@click.option("--boot", callback=parse_duration, help="Of a node [default: forecast.usual_boot of the fleet].")
@click.option("--notice", callback=parse_duration, default="2m", show_default=True, help="Before a node is taken.")
@click.option("--restart", callback=parse_duration, default="30s", show_default=True, help="Of a job, on new machines.")
@click.option("--checkpoint", callback=parse_duration, default="10m", show_default=True, help="Between checkpoints.")
@click.option("--tick", callback=parse_span, default="60s", show_default=True, help="Between decisions.")
@click.option("--html", metavar="OUT.html", type=click.Path(dir_okay=False, writable=True), help="Write a report.")
@json_option
@click.pass_obj
def simulate(options: Options, /, html: str | None, as_json: bool, **given: Any) -> None:
    """What would policies have cost? Job and market traces, replayed through the code that decides.

    \b
    reactive    buys what is asked for, the cheapest with losses and boots counted
    forecast    the same, and buys ahead where that is worth it
    on-demand   buys no spot at all
    spot-first  any spot before any on-demand, by list price alone
    contract    jobs with a deadline run where their contract is kept cheapest

    \b
    tradewind simulate fleet.yaml --jobs jobs.csv --traces spot/ --policy reactive,contract
    """
    from pathlib import Path

    from tradewind.simulation import run
    from tradewind.simulation_page import render_page
    from tradewind.simulation_text import comparison_text

    use_lists(options)
    found = run(_request(given), _tell if sys.stderr.isatty() else lambda _: None)
    if html:
        Path(html).write_text(render_page(found), encoding="utf-8")
    emit(found, as_json, lambda: comparison_text(found, terminal_width(), coloured=sys.stdout.isatty()))


def _request(given: dict[str, Any]) -> Any:
    from tradewind.autoscaler.simulate.world import Physics
    from tradewind.simulation import Request

    spans = {"boot_s": given["boot"], "notice_s": given["notice"], "restart_s": given["restart"]}
    physics = Physics(
        **{name: value for name, value in spans.items() if value is not None}, checkpoint_s=given["checkpoint"]
    )
    return Request(
        fleet=given["fleet_file"],
        jobs=given["jobs"],
        traces=given["traces"],
        policies=tuple(name.strip() for name in given["policy"].split(",") if name.strip()),
        seed=given["seed"],
        repeat=given["repeat"],
        days=given["days"],
        duration_s=given["duration"],
        slack=given["slack"],
        tick_s=given["tick"],
        replicas=given["replicas"],
        physics=physics,
        boots_as_usual=given["boot"] is None,
    )


def _tell(text: str) -> None:
    click.echo(text, err=True)
