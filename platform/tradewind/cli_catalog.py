"""`tradewind catalog`: what accelerators cost, and newer prices. Parses, asks the catalogue, prints.

Needs no fleet and no account; only `refresh` talks to the clouds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tradewind.cli_base import Options, parse_duration

if TYPE_CHECKING:
    from tradewind.cost.catalog_refresh import PriceFeed

_SHOW = "show"


class _Shop(click.Group):
    """`tradewind catalog A100:8` is `tradewind catalog show A100:8`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {*self.commands, "-h", "--help"}
        return super().parse_args(ctx, args if args and args[0] in own else [_SHOW, *args])


@click.group(cls=_Shop)
def catalog() -> None:
    """What accelerators cost, on every cloud.

    \b
    tradewind catalog                        all accelerators, and from how much
    tradewind catalog A100:8 --spot          offers, cheapest per GPU-hour first
    tradewind catalog show --help            all questions that can be asked
    tradewind catalog refresh                newer prices, from the clouds themselves
    """


@catalog.command(_SHOW)
@click.argument("what", required=False, default="", metavar="[ACCELERATOR[:COUNT] | INSTANCE TYPE]")
@click.option("--spot", "capacity", flag_value="spot", help="Only spot.")
@click.option("--on-demand", "capacity", flag_value="on-demand", help="Only on-demand.")
@click.option("--cloud", metavar="NAME", help="aws, azure or gcp.")
@click.option("--region", metavar="NAME")
@click.option("--cpus", type=click.FloatRange(0), default=0.0, help="At least, of a host.")
@click.option("--memory", type=click.FloatRange(0), default=0.0, help="At least, of a host, in GiB.")
@click.option("--limit", type=click.IntRange(1), default=10, show_default=True)
@click.option(
    "--max-age", "max_age_s", callback=parse_duration, default="30d", help="Warn of older lists [default: 30d]."
)
@click.option("--list", "path", type=click.Path(exists=True, path_type=Path), help="A price list of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(
    options: Options,
    what: str,
    capacity: str | None,
    cloud: str | None,
    region: str | None,
    cpus: float,
    memory: float,
    limit: int,
    max_age_s: float,
    path: Path | None,
    as_json: bool,
) -> None:
    """Offers, cheapest per accelerator-hour first; without a name, all accelerators."""
    import json
    import time

    from tradewind.cost import catalog as catalogs
    from tradewind.cost import shop
    from tradewind.model import Capacity

    known = catalogs.load(path or lists_folder(options))
    asked = shop.Question(what, Capacity(capacity) if capacity else None, cloud, region, cpus, memory)
    found = shop.deals(known, asked) if what else []
    clouds = {deal.cloud for deal in found}
    if as_json:
        click.echo(
            json.dumps([deal.as_dict() for deal in found[:limit]] if what else list(known.accelerators), indent=2)
        )
    else:
        click.echo(shop.deals_text(found, limit) if what else shop.overview_text(known))
        click.echo(shop.sources_text(known, clouds))
    _warn(shop.stale_warnings(known, time.time(), max_age_s, clouds))


def use_lists(options: Options) -> None:
    """For commands that plan by prices: those in the home, with a warning where they are old."""
    import time

    from tradewind.cost import catalog as catalogs
    from tradewind.cost.shop import stale_warnings

    _warn(stale_warnings(catalogs.use(lists_folder(options)), time.time()))


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        click.echo(click.style("Warning: ", fg="yellow") + warning, err=True)


def lists_folder(options: Options) -> Path:
    from tradewind.config import Settings
    from tradewind.cost.catalog import FOLDER

    home = Path(options.home).expanduser().absolute() if options.home else Settings.from_env().home
    return home / FOLDER


@catalog.command()
@click.option("--cloud", "clouds", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.pass_obj
def refresh(options: Options, clouds: tuple[str, ...]) -> None:
    """Newer prices, from the clouds themselves.

    AWS and Google want credentials, Azure wants none. A cloud that does not answer keeps the list that it has.
    """
    import time

    from tradewind.cost import catalog as catalogs
    from tradewind.cost.catalog_refresh import refresh as refreshed

    folder = lists_folder(options)
    found = refreshed(folder, catalogs.load(folder), _feeds(clouds), time.time())
    for each in found:
        click.echo(each.text, err=each.error is not None)
        if each.error is not None and each.error.hint:
            click.echo(f"Hint: {each.error.hint}", err=True)
    if any(each.error for each in found):
        raise click.exceptions.Exit(1)


def _feeds(clouds: tuple[str, ...]) -> list[PriceFeed]:
    from tradewind.cost.catalog_aws import AwsFeed
    from tradewind.cost.catalog_azure import AzureFeed
    from tradewind.cost.catalog_gcp import GcpFeed

    makers: dict[str, Callable[[], PriceFeed]] = {"aws": AwsFeed, "azure": AzureFeed, "gcp": GcpFeed}
    unknown = [cloud for cloud in clouds if cloud not in makers]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r}; known are {', '.join(makers)}", param_hint="--cloud")
    return [make() for cloud, make in makers.items() if not clouds or cloud in clouds]
