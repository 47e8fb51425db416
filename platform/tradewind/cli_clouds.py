"""What the commands do for fleets in clouds: look before they spend, prove that nothing is left, and `reap`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tradewind.cli_base import Options, emit, json_option, table_width

if TYPE_CHECKING:
    from tradewind.autoscaler.providers.base import Check
    from tradewind.clouds.leftovers import Sight
    from tradewind.config import FleetConfig


def ask_before_spending(config: FleetConfig, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Checks, the price table, the question. False: it was only asked what it would cost."""
    from tradewind.clouds.preflight import check_clouds, is_about_an_offer
    from tradewind.clouds.price_table import present_prices
    from tradewind.errors import ControllerError
    from tradewind.render import checks_text
    from tradewind.render_clouds import price_text

    failed = [check for check in check_clouds(config) if not check.ok]
    if failed:
        click.echo(checks_text(failed), err=True)
    if not all(is_about_an_offer(check) for check in failed):
        hint = "mend what is told above; `tradewind doctor FILE` looks again"
        raise ControllerError("the fleet cannot come up", hint)
    table = present_prices(config)
    if dry_run or not as_json:
        emit(table, as_json, lambda: price_text(table, table_width()))
    if dry_run:
        return False
    if not yes and not sys.stdin.isatty():
        raise ControllerError("nobody can be asked here whether to spend money", "add --yes")
    if not yes:
        click.confirm("Start it?", abort=True, err=True)
    return True


def prove_nothing_is_left(config: FleetConfig) -> Sight:
    """After the controller has ended its nodes: what else is there goes, too, and then all regions are listed again."""
    from tradewind.clouds.sweep import places_of, remove_all, see

    places = places_of(config)
    found = see(places).found
    if found:
        remove_all(places, found)
        return see(places)
    return see(places)


def told(sight: Sight, what: str) -> str:
    lines = [str(thing) for thing in (*sight.found, *sight.blind)]
    return "\n".join([f"{what}:", *(f"  {line}" for line in lines)]) if lines else ""


def file_of(options: Options, given: str | None) -> Path:
    """The file that is named, or the one that the fleet was last started with."""
    from tradewind.errors import ControllerError

    if given:
        return Path(given)
    kept = options.place().folder / "fleet.yaml"
    if not kept.exists():
        raise ControllerError(f"fleet {options.place().fleet} was never started from a file", "name the fleet file")
    return kept


def cloud_checks(options: Options, given: str | None, cloud: str | None) -> list[Check]:
    from tradewind.clouds.preflight import check_clouds
    from tradewind.config import load_fleet
    from tradewind.errors import ConfigError, Problem

    path = file_of(options, given)
    config = load_fleet(path)
    if cloud and cloud not in config.cloud_names:
        found = ", ".join(config.cloud_names) or "local"
        raise ConfigError([Problem(str(path), "clouds", f"{cloud} is not among them: {found}")], "name another file")
    return check_clouds(config, cloud)


@click.command()
@click.argument("config", required=False, metavar="[FLEET.YAML]", type=click.Path(exists=True, dir_okay=False))
@click.option("--yes", "-y", is_flag=True, help="Remove without asking.")
@json_option
@click.pass_obj
def reap(options: Options, config: str | None, yes: bool, as_json: bool) -> None:
    """Find what a fleet left in its clouds, in all regions, and remove it: nodes, disks, NICs, secrets.

    While its controller lives, only what that does not know.
    """
    from tradewind.clouds.sweep import places_of, remove_all, see
    from tradewind.config import load_fleet
    from tradewind.controller_process import find_controller
    from tradewind.states import is_alive

    fleet_file = load_fleet(file_of(options, config))
    known: set[str] = set()
    lives = find_controller(options.place(fleet_file.name)) is not None
    if lives:
        with options.connect(fleet=fleet_file.name) as fleet:
            known = {node.launch_id for node in fleet.nodes() if is_alive(node.state)}
    places = places_of(fleet_file)
    sight = see(places, known, lives=lives)
    if not as_json:
        click.echo(told(sight, "Left over") or f"Nothing is left of fleet {fleet_file.name}.")
    if sight.found and not yes:
        if as_json or not sys.stdin.isatty():
            emit(
                {"found": sight.found, "blind": sight.blind, "removed": []}, as_json, lambda: "Add --yes to remove it."
            )
            raise click.exceptions.Exit(1)
        click.confirm(f"Remove these {len(sight.found)}?", abort=True, err=True)
    failed = remove_all(places, sight.found) if sight.found else []
    left = see(places, known, lives=lives) if sight.found else sight
    result = {"found": sight.found, "left": left.found, "blind": left.blind, "failed": failed}
    done = f"Removed {len(sight.found) - len(left.found)} of {len(sight.found)}." if sight.found else ""
    if as_json or done:
        emit(result, as_json, lambda: "\n".join(filter(None, [done, *failed, told(left, "Still there")])))
    raise click.exceptions.Exit(1 if left.found or left.blind else 0)
