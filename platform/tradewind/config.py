"""YAML files and the environment -> typed config. The one place that reads the environment.

`Settings` costs nothing to import, since every command needs it. The models of the two files (config_models.py) come
with pydantic, and are loaded when a file is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tradewind.errors import ConfigError, Problem

if TYPE_CHECKING:
    from tradewind.config_models import FleetConfig, JobConfig

__all__ = ["FleetConfig", "JobConfig", "Settings", "json_schema", "load_fleet", "load_job"]

# A fleet's name is a folder, a tag in three clouds and a part of socket paths.
FLEET_NAME = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says. Flags on the command line come before it, defaults after it."""

    home: Path  # TRADEWIND_HOME: fleets, logs, tokens
    fleet: str = "default"  # TRADEWIND_FLEET
    url: str | None = None  # TRADEWIND_URL: a controller elsewhere
    token: str | None = field(default=None, repr=False)  # TRADEWIND_TOKEN
    debug: bool = False  # TRADEWIND_DEBUG: tracebacks
    color: bool = True  # off by NO_COLOR (no-color.org)
    columns: int | None = None  # COLUMNS: how wide tables may be where there is no terminal

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Raises ConfigError with every variable that is wrong."""
        env = os.environ if environ is None else environ
        problems = [*_fleet_problems(env), *_url_problems(env), *_debug_problems(env)]
        if problems:
            raise ConfigError(problems, "correct or unset the variable")
        return cls(
            home=Path(env.get("TRADEWIND_HOME") or "~/.tradewind").expanduser().absolute(),
            fleet=env.get("TRADEWIND_FLEET") or "default",
            url=(env.get("TRADEWIND_URL") or "").rstrip("/") or None,
            token=env.get("TRADEWIND_TOKEN") or None,
            debug=env.get("TRADEWIND_DEBUG", "").lower() in _TRUE,
            color=not env.get("NO_COLOR"),
            columns=int(columns) if (columns := env.get("COLUMNS", "")).isdecimal() and int(columns) else None,
        )

    @property
    def fleet_home(self) -> Path:
        """The folder of the fleet: its event log, token and controller file."""
        return self.home / self.fleet


def load_fleet(path: Path | str) -> FleetConfig:
    """A fleet file, or the fleet in a Ray cluster file. Raises ConfigError with every mistake in it."""
    from tradewind.config_models import FleetConfig
    from tradewind.config_ray import fleet_part
    from tradewind.config_yaml import check, compose, read

    path = Path(path)
    return check(fleet_part(compose(read(path), str(path))), FleetConfig)


def load_job(path: Path | str) -> JobConfig:
    """A job file; a relative `working_dir` in it counts from the file's folder. Raises ConfigError like load_fleet."""
    from tradewind.config_models import JobConfig
    from tradewind.config_yaml import load

    path = Path(path).expanduser().absolute()
    return load(path, JobConfig, context={"folder": path.parent})


def json_schema(kind: Literal["fleet", "job"]) -> dict[str, Any]:
    """JSON Schema of a file, for editors."""
    from tradewind.config_models import FleetConfig, JobConfig

    models: dict[str, type[FleetConfig] | type[JobConfig]] = {"fleet": FleetConfig, "job": JobConfig}
    if kind not in models:
        raise ConfigError([Problem("schema", "", f"found {kind!r}; allowed: fleet, job")], "")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Tradewind {kind} file"}
    return {**models[kind].model_json_schema(mode="validation"), **head}


def __getattr__(name: str) -> Any:
    """`from tradewind.config import FleetConfig` works, and costs pydantic only then."""
    if name in ("FleetConfig", "JobConfig"):
        from tradewind import config_models

        return getattr(config_models, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _fleet_problems(env: Mapping[str, str]) -> list[Problem]:
    name = env.get("TRADEWIND_FLEET") or "default"
    allowed = "allowed: up to 32 small letters, digits and inner dashes"
    return [] if re.fullmatch(FLEET_NAME, name) else [_variable("TRADEWIND_FLEET", name, allowed)]


def _url_problems(env: Mapping[str, str]) -> list[Problem]:
    url = env.get("TRADEWIND_URL") or "http://"
    allowed = "allowed: an address like http://127.0.0.1:8300"
    return [] if re.match(r"https?://", url) else [_variable("TRADEWIND_URL", url, allowed)]


def _debug_problems(env: Mapping[str, str]) -> list[Problem]:
    value = env.get("TRADEWIND_DEBUG", "")
    return [] if value.lower() in (*_TRUE, *_FALSE) else [_variable("TRADEWIND_DEBUG", value, "allowed: 1 or 0")]


def _variable(name: str, found: str, allowed: str) -> Problem:
    return Problem("environment", name, f"found {found!r}; {allowed}")
