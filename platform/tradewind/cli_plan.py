"""`tradewind plan`: parses, asks, prints. Needs no controller and no account: prices are those of the catalogue, and
what may be bought is what the fleet's file says, where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tradewind.cli_base import Options, emit, json_option, parse_duration, tell_of_bare_number
from tradewind.cli_catalog import use_lists

if TYPE_CHECKING:
    from tradewind.config import FleetConfig


def _work_s(ctx: click.Context, param: click.Parameter, given: str | None) -> float | None:
    tell_of_bare_number("--work", given)
    return parse_duration(ctx, param, given)


@click.command()
@click.argument("job_file", metavar="JOB.yaml", type=click.Path(exists=True, dir_okay=False))
@click.option("--work", "work_s", callback=_work_s, help="That one worker needs, like 48h [default: of the file].")
@click.option(
    "--deadline",
    help="From now (6h), or a moment, without a zone in this machine's [default: of the file].",
)
@click.option("--budget", help="In dollars [default: of the file].")
@click.option("--restart", "restart_s", callback=parse_duration, default="3m", show_default=True, help="A new machine.")
@click.option(
    "--scaling", type=click.FloatRange(0.0, 1.0), default=0.9, show_default=True, help="Of twice the workers."
)
@click.option("--cloud", help="Only there.")
@click.option(
    "--fleet-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Price what this fleet may buy [default: the fleet that runs or ran; without one, the catalogue].",
)
@json_option
@click.pass_obj
def plan(
    options: Options,
    /,
    job_file: str,
    work_s: float | None,
    restart_s: float,
    fleet_file: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Can a contract be kept, and what will it cost? Before anything is bought.

    Priced is what the fleet may buy within its limits, were nobody else there.

    Exit status 1 where it cannot be kept ("No"); else 0: how likely it is stands in the answer (JSON: outlook.chance).

    \b
    tradewind plan job.yaml --work 48h --deadline 60h --budget 60
    """
    import time

    from tradewind.planning import ask, plan_text

    tell_of_bare_number("--deadline", given["deadline"])
    use_lists(options)
    fleet = _fleet(options, fleet_file)
    answer = ask(job_file, time.time(), work_s=work_s, restart_s=restart_s, fleet=fleet, **given)
    emit(answer, as_json, lambda: plan_text(answer))
    raise click.exceptions.Exit(0 if answer.is_feasible else 1)


def _fleet(options: Options, path: str | None) -> FleetConfig | None:
    """Of one that is elsewhere there is no file here."""
    from tradewind.config import load_fleet
    from tradewind.plan_offers import fleet_of

    if path is not None:
        return load_fleet(path)
    return None if options.is_elsewhere else fleet_of(options.place())
