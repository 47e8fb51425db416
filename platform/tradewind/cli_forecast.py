"""`tradewind forecast`: parses, asks the SDK, prints."""

from __future__ import annotations

import sys

import click

from tradewind.cli_base import Options, emit, json_option, terminal_width


@click.command()
@click.argument("what", required=False, default="", metavar="[TENANT | SHAPE]")
@click.option("--hours", type=click.FloatRange(0.1, 168.0), default=12.0, show_default=True, help="Of history.")
@click.option("--most", type=click.IntRange(1, 12), default=3, show_default=True, help="Series, the most wanted first.")
@json_option
@click.pass_obj
def forecast(options: Options, what: str, hours: float, most: int, as_json: bool) -> None:
    """What was wanted, what will be, and how good forecasts have been, as a chart.

    SHAPE is a resource, like GPU, or a part of a shape as it is printed. Of a fleet that does not run, it is told from
    its log, as of its end.
    """
    from tradewind.forecast_text import forecast_text

    with options.connect_or_read() as fleet:
        found = fleet.forecast(what, hours, most)
    emit(found, as_json, lambda: forecast_text(found, terminal_width(), coloured=sys.stdout.isatty()))
