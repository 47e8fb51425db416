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
        return connect(self.home, fleet or self.fleet, start, config=config, command=command)

    def place(self, fleet: str | None = None) -> FleetHome:
        from tradewind.client import locate

        return locate(self.home, fleet or self.fleet)


def parse_duration(_ctx: click.Context, _param: click.Parameter, given: str | None) -> float | None:
    """A callback of options, in seconds."""
    from tradewind.units import parse_duration_s

    try:
        return None if given is None else parse_duration_s(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


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
    """The width of the terminal; 80 where there is none."""
    from shutil import get_terminal_size

    return get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80
