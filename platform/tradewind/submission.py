"""From what a person gives to `submit` (a command, a file, a JobSpec, and words beside it) to one JobSpec."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from tradewind.errors import ConfigError, Problem
from tradewind.model import LABEL_ACCELERATOR, Contract, JobSpec
from tradewind.units import parse_duration_s, parse_usd

Given = TypeVar("Given")
Number = TypeVar("Number", int, float)

_RANGE = re.compile(r"(\d+)(?:\s*(?:\.\.|-|:)\s*(\d+))?")
_SHELL_WORDS = frozenset({"bash", "sh", "env", "exec", "python", "python3", "torchrun", "uv", "-m", "-u"})


def build_spec(
    what: str | Path | Sequence[str] | JobSpec,
    *,
    now_s: float,
    name: str | None = None,
    workers: int | str | tuple[int, int] | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    working_dir: str | Path | None = None,
    tenant: str | None = None,
    team: str | None = None,
    deadline: str | int | float | datetime | None = None,
    budget: str | int | float | None = None,
    work: str | int | float | None = None,
    env: Mapping[str, str] | None = None,
    max_retries: int | None = None,
) -> JobSpec:
    """What is None keeps the word of the file or the spec. Raises ConfigError."""
    spec = _start(what, now_s)
    low, high = (spec.min_workers, spec.max_workers) if workers is None else parse_workers(workers)
    changes: dict[str, Any] = {
        "name": name,
        "worker_resources": None if resources is None else _resources({**spec.worker_resources, **resources}),
        "worker_labels": None if labels is None else dict(labels),
        "working_dir": None if working_dir is None else _folder(working_dir),
        "tenant": tenant,
        "team": team,
        "env": None if env is None else {**spec.env, **env},
        "max_retries": max_retries,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    contract = Contract(
        deadline_at_s=spec.contract.deadline_at_s if deadline is None else parse_deadline_s(deadline, now_s),
        budget_uusd=spec.contract.budget_uusd if budget is None else _parse("budget", _some_usd, budget),
        work_s=spec.contract.work_s if work is None else _parse("work", parse_duration_s, work),
    )
    _check_work(contract.work_s)
    if contract.deadline_at_s is not None and contract.deadline_at_s <= now_s:
        raise ConfigError([Problem("submit", "deadline", "is in the past")], "give a later one, or a duration like 6h")
    if not high and (resources or labels):
        problem = Problem("submit", "workers", "resources and labels are those of a worker, and there are none")
        raise ConfigError([problem], "say how many there shall be (--workers 2), or leave it to the program")
    asked = replace(spec, min_workers=low, max_workers=high, contract=contract, **given)
    if accelerator := asked.worker_labels.get(LABEL_ACCELERATOR):
        asked = replace(asked, worker_labels={**asked.worker_labels, LABEL_ACCELERATOR: _accelerator(accelerator)})
    return replace(asked, worker_resources={_named(name): each for name, each in asked.worker_resources.items()})


def _check_work(work_s: float | None) -> None:
    if work_s is not None and not 0.0 < work_s < math.inf:
        problem = Problem("submit", "work", f"{work_s:g} s is no amount of work")
        raise ConfigError([problem], "say how long one replica would need, like 48h; or leave it out")


def _start(what: str | Path | Sequence[str] | JobSpec, now_s: float) -> JobSpec:
    if isinstance(what, JobSpec):
        return what
    if isinstance(what, Path) or (isinstance(what, str) and what.strip().endswith((".yaml", ".yml"))):
        from tradewind.config import load_job

        spec: JobSpec = load_job(Path(what)).to_spec(now_s)
        folder = spec.working_dir or str(Path(what).expanduser().absolute().parent)
        return replace(spec, working_dir=folder)
    entrypoint = what if isinstance(what, str) else what[0] if len(what) == 1 else shlex.join(what)
    return JobSpec(name=name_of(entrypoint), entrypoint=entrypoint, working_dir=str(Path.cwd()))


def _resources(given: Mapping[str, float]) -> dict[str, float]:
    """Nothing of something is not asked for; but a worker needs something, or Ray would start it anywhere."""
    for name in given:
        meant = {"cpu": "CPU", "gpu": "GPU", "tpu": "TPU", "memory": "memory"}.get(name.lower().rstrip("s"), name)
        if name != meant:
            raise ConfigError([Problem("submit", "resources", f"Ray knows no {name!r}")], f"write {meant!r}")
    found = {name: amount for name, amount in given.items() if amount}
    if not found:
        problem = Problem("submit", "resources", "a worker that needs nothing cannot be placed")
        raise ConfigError([problem], "give each worker a CPU or a GPU: --cpus 1")
    return found


def _accelerator(name: str) -> str:
    """As the catalogue writes it. Of a plain name; `!A100` and `in(A100,H100)` are Ray's to understand."""
    if not name.replace("-", "").isalnum():
        return name
    from tradewind.cost import catalog

    known = catalog.load().accelerators
    try:
        alike = catalog.names_like("accelerator", name, known)
    except ConfigError:
        alike = frozenset()
    if len(alike) == 1:
        return next(iter(alike))
    near = sorted(alike) or difflib.get_close_matches(name.upper(), known, n=3, cutoff=0.5) or known[:8]
    problem = Problem("submit", "accelerator", f"the catalogue knows no {name!r}")
    raise ConfigError([problem], f"did you mean {' or '.join(near)}?")


def _named(resource: str) -> str:
    """accelerator_type:l4 -> accelerator_type:L4, as nodes have it. What the catalogue does not know may be a node's
    own, and stays."""
    kind, colon, name = resource.partition(":")
    if kind != "accelerator_type" or not colon:
        return resource
    from tradewind.cost import catalog

    try:
        alike = catalog.names_like("accelerator", name, catalog.load().accelerators)
    except ConfigError:
        return resource
    return f"{kind}:{next(iter(alike))}" if len(alike) == 1 else resource


def name_of(entrypoint: str) -> str:
    """`python -m pkg.train --lr 1` -> train: the first word that says what is run."""
    words = [word for word in _shell_words(entrypoint) if "=" not in word]
    if "-c" in words[:2]:
        return Path(words[0]).name
    telling = next((word for word in words if Path(word).name not in _SHELL_WORDS), "job")
    stem = Path(telling).name.removesuffix(".py").removesuffix(".sh").rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "job"


def _shell_words(entrypoint: str) -> list[str]:
    try:
        return shlex.split(entrypoint)
    except ValueError:  # a quotation that is not closed; the shell will say so
        return entrypoint.split()


def parse_workers(given: int | str | tuple[int, int]) -> tuple[int, int]:
    """4, "4", "2..4" or (2, 4) -> (min, max)."""
    if isinstance(given, str):
        found = _RANGE.fullmatch(given.strip())
        if not found:
            raise ConfigError([Problem("submit", "workers", f"{given!r} is neither a number nor a range like 2..4")])
        low, high = int(found[1]), int(found[2] or found[1])
    else:
        low, high = (given, given) if isinstance(given, int) else given
    if not 0 <= low <= high:
        raise ConfigError([Problem("submit", "workers", f"{low}..{high} is not a range: 0 <= min <= max")])
    return low, high


def parse_deadline_s(given: str | int | float | datetime, now_s: float) -> float:
    """A duration from now, or a moment (ISO text or datetime; local time unless it says otherwise)."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError):  # not a moment: a duration
            given = datetime.fromisoformat(given)
    if not isinstance(given, datetime):
        return now_s + _parse("deadline", _span_s, given)
    return given.timestamp()


def _span_s(given: str | int | float) -> float:
    try:
        return parse_duration_s(given)
    except ValueError as error:
        raise ValueError(f"{error}; or a moment, like 2030-05-01T18:00Z") from error


def _some_usd(text: str | int | float) -> int:
    amount_uusd = parse_usd(text)
    if amount_uusd <= 0:
        raise ValueError(f"{text} is not more than nothing; leave it out for no limit")
    return amount_uusd


def _parse(field: str, parse: Callable[[Given], Number], given: Given) -> Number:
    try:
        return parse(given)
    except ValueError as error:
        raise ConfigError([Problem("submit", field, str(error))]) from error


def _folder(given: str | Path) -> str:
    """Absolute, since the controller runs elsewhere. Empty stays empty: no working folder."""
    if str(given) == "":
        return ""
    path = Path(given).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError([Problem("submit", "working_dir", f"{path} is not a folder")])
    return str(path)
