"""`tradewind` on the command line: parses, calls the SDK, prints. Only click is imported before a command runs.

The commands stand in the files cli_*.py; this file makes one program of them, and says how errors look.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from tradewind import (
    __version__,
    cli_catalog,
    cli_clouds,
    cli_cost,
    cli_fleet,
    cli_forecast,
    cli_jobs,
    cli_plan,
    cli_simulate,
)
from tradewind.cli_base import Options

INTERRUPTED = 130


class TradewindGroup(click.Group):
    """Errors as one line and a hint; a traceback only with --debug."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        options = kwargs.setdefault("obj", Options())
        kwargs["standalone_mode"] = False
        try:
            sys.exit(super().main(*args, **kwargs) or 0)
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except click.Abort as abort:
            sys.exit(_aborted(abort))
        except click.ClickException as usage:
            usage.show()
            sys.exit(usage.exit_code)
        except Exception as error:
            _show(error, options.debug)
            sys.exit(1)


def _aborted(abort: click.Abort) -> int:
    """Ctrl-C, or a question that was answered with no."""
    if isinstance(abort.__cause__, KeyboardInterrupt):
        return INTERRUPTED
    hint = "" if sys.stdin is not None and sys.stdin.isatty() else " Without a terminal, -y says yes."
    click.echo(f"Nothing was done.{hint}", err=True)
    return 1


def _color() -> bool | None:
    """None: on a terminal. A mistake in the environment may be what is to be shown: then without."""
    from tradewind.config import Settings
    from tradewind.errors import TradewindError

    try:
        return None if Settings.from_env().color else False
    except TradewindError:
        return False


def _show(error: Exception, debug: bool) -> None:
    from tradewind.errors import TradewindError

    if debug:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    known = isinstance(error, TradewindError)
    message = error.message if isinstance(error, TradewindError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, TradewindError) else "this is a defect: run again with --debug and report it"
    click.echo(click.style("Error: ", fg="red") + message, err=True, color=_color())
    if hint and not (debug and not known):
        click.echo(f"Hint: {hint}", err=True)


@click.group(
    cls=TradewindGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--home", metavar="DIR", help="Folder of all fleets [env: TRADEWIND_HOME; default: ~/.tradewind].")
@click.option("--fleet", metavar="NAME", help="Which fleet [env: TRADEWIND_FLEET; default: the only one that runs].")
@click.option("--debug", is_flag=True, envvar="TRADEWIND_DEBUG", help="Show tracebacks.")
@click.version_option(__version__, prog_name="tradewind", message="%(prog)s %(version)s", help="Print the version.")
@click.pass_context
def cli(ctx: click.Context, home: str | None, fleet: str | None, debug: bool) -> None:
    """Elastic training on Ray, on the cheapest accelerators that any cloud has.

    \b
    Try:  tradewind demo                        two minutes, no account needed
          tradewind up                          start a fleet on this machine
          tradewind submit -- python train.py   run something on it
    """
    options = ctx.obj
    options.home, options.fleet, options.debug = home, fleet, debug


_TRIES = (cli_forecast.forecast, cli_plan.plan, cli_simulate.simulate)
_MORE = (cli_catalog.catalog, cli_clouds.reap, *cli_cost.COMMANDS, *_TRIES)
for _command in (*cli_fleet.COMMANDS, *_MORE, *cli_jobs.COMMANDS):
    cli.add_command(_command)


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
