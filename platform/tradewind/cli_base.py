"""What the commands of cli_fleet.py and cli_jobs.py share: the global options and the ways to print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tradewind.client import Fleet
    from tradewind.home import FleetHome
    from tradewind.past import PastFleet

UNCUT = 100_000  # columns: more than any line has


@dataclass(slots=True)
class Options:
    """The global flags. `command` is what is run as controller (None: ours); tests give a shipped fake."""

    home: str | None = None
    fleet: str | None = None
    debug: bool = False
    command: Sequence[str] | None = None

    def connect(self, start: bool = False, config: str | None = None, fleet: str | None = None) -> Fleet:
        from tradewind.client import connect
        from tradewind.controller_process import CONTROLLER

        command = self.command or CONTROLLER
        if fleet is None:
            self._tell_of_others()
        return connect(self.home, fleet or self.fleet, start, config=config, command=command)

    def connect_or_read(self) -> Fleet | PastFleet:
        """Where no controller runs, what the fleet has left on record, and a word that it is that."""
        from tradewind.errors import ControllerError

        try:
            return self.connect()
        except ControllerError as error:
            from tradewind.past import no_past, open_past

            place = self.place()
            past = open_past(place)
            if past is None:
                raise no_past(place, error) from error
            click.echo(f"Fleet {place.fleet} does not run: this is from its log, {place.folder}.", err=True)
            return past

    @property
    def is_elsewhere(self) -> bool:
        """TRADEWIND_URL names a controller that needs no folder here."""
        from tradewind.config import Settings

        return self.home is None and self.fleet is None and Settings.from_env().url is not None

    def place(self, fleet: str | None = None, is_sure: bool = False) -> FleetHome:
        """`is_sure`: where several fleets run, one must have been named."""
        from tradewind.client import locate

        return locate(self.home, fleet or self.fleet, is_sure)

    def _tell_of_others(self) -> None:
        """Where several fleets run and none was named, which one is asked."""
        from tradewind.client import DEFAULT_FLEET
        from tradewind.config import Settings
        from tradewind.home import announced_fleets

        if self.fleet is not None or self.is_elsewhere or Settings.from_env().fleet != DEFAULT_FLEET:
            return
        place = self.place()
        others = [name for name in announced_fleets(place.root) if name != place.fleet]
        if others:
            told = f"This is fleet {place.fleet}; {', '.join(others)} run{'s' if len(others) == 1 else ''}, too"
            click.echo(f"{told}: `tradewind --fleet {others[0]} ...` asks another.", err=True)


def parse_duration(_ctx: click.Context, _param: click.Parameter, given: str | None) -> float | None:
    """A callback of options, in seconds."""
    from tradewind.units import parse_duration_s

    try:
        return None if given is None else parse_duration_s(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def parse_span(ctx: click.Context, param: click.Parameter, given: str | None) -> float | None:
    """The same, where nothing would be no answer."""
    found_s = parse_duration(ctx, param, given)
    if found_s is not None and found_s <= 0.0:
        raise click.BadParameter(f"{given!r} is no time at all; it must be more than 0, like 60s")
    return found_s


def tell_of_bare_number(option: str, given: str | None) -> None:
    """A number alone is seconds, which of work and deadlines is hardly what is meant."""
    bare = (given or "").strip()
    if bare.replace(".", "", 1).isdecimal():
        click.echo(f"Warning: {option} {bare} is taken as {bare} seconds; did you mean {bare}h?", err=True)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def emit(value: Any, as_json: bool, text: Callable[[], str]) -> None:
    """A value for a program, or its text for a person."""
    click.echo(to_json(value) if as_json else text())


def to_json(value: Any) -> str:
    import json

    from pydantic import TypeAdapter

    return json.dumps(TypeAdapter(Any).dump_python(value, mode="json"), indent=2)


def terminal_width() -> int:
    """The width of the terminal, for charts and prose; where there is none, that of COLUMNS, or 80."""
    return _width(without=80)


def table_width() -> int:
    """The same for tables: for a pipe or a file nothing is cut, unless COLUMNS asks for it."""
    return _width(without=UNCUT)


def _width(without: int) -> int:
    from shutil import get_terminal_size

    if sys.stdout.isatty():
        return get_terminal_size((80, 24)).columns
    from tradewind.config import Settings

    return Settings.from_env().columns or without
