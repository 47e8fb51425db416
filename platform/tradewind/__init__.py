"""Elastic training on Ray, on the cheapest accelerators that any cloud has at the moment.

    import tradewind as tw

    fleet = tw.connect()
    job = fleet.submit("python train.py", workers=(2, 4))
    job.watch()
    print(job.receipt())

Names are loaded when they are first used, so that `import tradewind` (and the command line) stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tradewind.api import FleetStatus, ForecastReport, JobInfo, NodeInfo, Story
    from tradewind.client import Fleet, Job, connect
    from tradewind.errors import TradewindError
    from tradewind.jobs.run import Run
    from tradewind.jobs.trainer import FitResult, fit
    from tradewind.model import Contract, JobSpec

__all__ = [
    "Contract",
    "FitResult",
    "Fleet",
    "FleetStatus",
    "ForecastReport",
    "Job",
    "JobInfo",
    "JobSpec",
    "NodeInfo",
    "Run",
    "Story",
    "TradewindError",
    "__version__",
    "connect",
    "fit",
]

_HOME_OF = {
    "Contract": "model",
    "FitResult": "jobs.trainer",
    "Fleet": "client",
    "FleetStatus": "api",
    "ForecastReport": "api",
    "Job": "client",
    "JobInfo": "api",
    "JobSpec": "model",
    "NodeInfo": "api",
    "Run": "jobs.run",
    "Story": "api",
    "TradewindError": "errors",
    "connect": "client",
    "fit": "jobs.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tradewind' has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"tradewind.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
