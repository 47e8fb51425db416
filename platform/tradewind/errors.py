"""The one tree of errors. Every message says what happened; `hint` says what to do next.

TradewindError
├── ConfigError            a file, flag or variable is wrong; carries every mistake found
├── IllegalTransition      a node or job was asked to go where its state table has no way
├── LogError               the event log
│   ├── LogLocked          another controller writes to it
│   ├── LogTooNew          written by a newer Tradewind
│   └── LogCorrupt         not an event log, or damaged
├── ProviderError          a cloud said no; says what it blocks, and for how long
│   ├── Stockout  PriceTooHigh  QuotaExceeded  Throttled  Transient  AuthError
│   ├── InvalidRequest  Unsupported  NotFound  Conflict
│   └── AmbiguousOutcome   a time-out after sending: reconcile, never relaunch
├── RayError               the Ray cluster cannot be started or reached
├── ControllerError        the controller cannot be started or reached
│   └── Unauthorized       it refuses the token
└── JobError               about one job
    ├── JobNotFound
    ├── JobFailed
    └── JobTimeout         was waited for, and is still running
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


class TradewindError(Exception):
    """What happened, and in `hint` what to do next."""

    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a file: where it is, what was found, what is allowed."""

    where: str  # file and line, "fleet.yaml:12"
    field: str  # "limits.max_nodes"
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: {self.message}" if self.field else f"{self.where}: {self.message}"


class ConfigError(TradewindError):
    default_hint = "`tradewind schema job` and `tradewind schema fleet` print what is allowed"

    def __init__(self, problems: Sequence[Problem], hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), hint)
        self.problems = tuple(problems)


class IllegalTransition(TradewindError):
    default_hint = "this is a defect in Tradewind: please report it with the event log"


class LogError(TradewindError):
    pass


class LogLocked(LogError):
    default_hint = "use that controller, or stop it with `tradewind down`"


class LogTooNew(LogError):
    default_hint = "upgrade Tradewind, or give another folder with --home"


class LogCorrupt(LogError):
    default_hint = "restore the file from a copy, or give another folder with --home"


class Scope(StrEnum):
    """What a launch error rules out for a while."""

    NOTHING = "nothing"
    GROUP = "group"  # only inside of a placement group: the same offer may be had outside of it
    OFFER = "offer"
    ZONE = "zone"  # this instance type in this zone
    REGION = "region"  # this instance type in this region
    CLOUD = "cloud"


class ProviderError(TradewindError):
    """A cloud refused. `scope` is ruled out for `block_s` seconds; `retryable` means: the same call may succeed."""

    scope: Scope = Scope.NOTHING
    block_s: float = 0.0
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        cloud: str = "",
        code: str = "",
        scope: Scope | None = None,
        block_s: float | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.cloud = cloud
        self.code = code
        if scope is not None:
            self.scope = scope
        if block_s is not None:
            self.block_s = block_s


class Stockout(ProviderError):
    default_hint = "the next best offer is tried by itself"
    scope, block_s = Scope.ZONE, 600.0


class PriceTooHigh(ProviderError):
    default_hint = "raise the price limit, or wait"
    scope, block_s = Scope.OFFER, 300.0


class QuotaExceeded(ProviderError):
    default_hint = "ask the cloud for more quota in this region, or allow other regions"
    scope, block_s = Scope.REGION, 3600.0


class Throttled(ProviderError):
    default_hint = "it is tried again by itself"
    retryable = True


class Transient(ProviderError):
    default_hint = "it is tried again by itself"
    retryable = True


class AuthError(ProviderError):
    default_hint = "check the credentials with `tradewind doctor`"
    scope, block_s = Scope.CLOUD, 900.0


class InvalidRequest(ProviderError):
    default_hint = "correct the fleet file"
    scope, block_s = Scope.OFFER, 86400.0


class Unsupported(ProviderError):
    default_hint = "the cloud does not sell this here; allow other zones or types"
    scope, block_s = Scope.ZONE, 86400.0


class NotFound(ProviderError):
    pass


class Conflict(ProviderError):
    default_hint = "the same launch id was used with other parameters"


class AmbiguousOutcome(ProviderError):
    default_hint = "the next listing tells whether it happened; it is never launched again"


class RayError(TradewindError):
    default_hint = "`tradewind doctor` tells what is wrong"


class ControllerError(TradewindError):
    default_hint = "start one with `tradewind up`"


class Unauthorized(ControllerError):
    default_hint = "the token file in the fleet's home does not match this controller"


class JobError(TradewindError):
    pass


class JobNotFound(JobError):
    default_hint = "`tradewind jobs` lists them"


class JobFailed(JobError):
    default_hint = "`tradewind logs JOB` shows what it printed"


class JobTimeout(JobError):
    default_hint = "it goes on running: wait longer, or stop it with `tradewind stop JOB`"
