"""What Google Cloud says when it refuses -> our tree of errors. Pure, but for the log line about an unknown code.

Two tongues: Compute Engine has reasons ("quotaExceeded" in an HTTP answer, "QUOTA_EXCEEDED" inside of an operation
that is DONE), TPU has the codes of gRPC ("RESOURCE_EXHAUSTED", or 8 inside of an operation). Where one code means
several things (RESOURCE_EXHAUSTED: too many calls, quota, no stock), the text decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tradewind.errors import (
    AmbiguousOutcome,
    AuthError,
    Conflict,
    InvalidRequest,
    NotFound,
    ProviderError,
    QuotaExceeded,
    Scope,
    Stockout,
    Throttled,
    Transient,
    Unsupported,
)

CLOUD = "gcp"
UNKNOWN_BLOCK_S = 600.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The class of an error; scope and time only where they differ from what the class says."""

    kind: type[ProviderError]
    scope: Scope | None = None
    block_s: float | None = None
    hint: str = ""

    def error(self, code: str, message: str) -> ProviderError:
        return self.kind(message, self.hint, cloud=CLOUD, code=code, scope=self.scope, block_s=self.block_s)


_NO_STOCK = Meaning(Stockout)
_NO_ADDRESSES = Meaning(Stockout, Scope.REGION, 3600.0, "the subnetwork has no free addresses: widen its range")
_BUSY = Meaning(Throttled)
_BROKEN = Meaning(Transient)
_WRONG = Meaning(InvalidRequest)
_ELSEWHERE = Meaning(Unsupported)
_DENIED = Meaning(
    AuthError, hint="grant it to the controller's account; `tradewind doctor --cloud gcp` names what is missing"
)
_LOGIN = Meaning(AuthError, hint="log in again: gcloud auth application-default login")
_SWITCH_ON = Meaning(
    AuthError, hint="switch the API on: gcloud services enable compute.googleapis.com tpu.googleapis.com"
)
_PAY = Meaning(AuthError, hint="the project has no active billing account: link one in the console")

# By code, as documented (Compute Engine's "troubleshooting VM creation", "resource availability" and "error messages";
# google.rpc.Code). Spelling does not matter: quotaExceeded and QUOTA_EXCEEDED are the same.
MEANINGS: Mapping[str, Meaning] = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": _NO_STOCK,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _NO_STOCK,
    "RESOURCE_POOL_EXHAUSTED": _NO_STOCK,
    "REGION_RESOURCE_POOL_EXHAUSTED": Meaning(Stockout, Scope.REGION),
    "STOCKOUT": _NO_STOCK,
    "GPU_STOCKOUT": _NO_STOCK,
    "INSUFFICIENT_CAPACITY": _NO_STOCK,
    "RESERVATION_CAPACITY_EXCEEDED": _NO_STOCK,
    "IP_SPACE_EXHAUSTED": _NO_ADDRESSES,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": _NO_ADDRESSES,
    "SUBNETWORK_IP_SPACE_EXHAUSTED": _NO_ADDRESSES,
    "QUOTA_EXCEEDED": Meaning(QuotaExceeded),
    "LIMIT_EXCEEDED": Meaning(QuotaExceeded),
    "RATE_LIMIT_EXCEEDED": _BUSY,
    "USER_RATE_LIMIT_EXCEEDED": _BUSY,
    "RESOURCE_OPERATION_RATE_EXCEEDED": _BUSY,
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED": _BUSY,
    "OPERATION_QUOTA_EXCEEDED": _BUSY,
    "BACKEND_ERROR": _BROKEN,
    "INTERNAL_ERROR": _BROKEN,
    "INTERNAL": _BROKEN,
    "SERVICE_UNAVAILABLE": _BROKEN,
    "UNAVAILABLE": _BROKEN,
    "DEADLINE_EXCEEDED": _BROKEN,
    "ABORTED": _BROKEN,
    "CANCELLED": _BROKEN,
    "UNKNOWN": _BROKEN,
    "RESOURCE_NOT_READY": _BROKEN,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": _BROKEN,
    "FINGERPRINT_MISMATCH": _BROKEN,
    "FORBIDDEN": _DENIED,
    "PERMISSION_DENIED": _DENIED,
    "IAM_PERMISSION_DENIED": _DENIED,
    "PERMISSIONS_ERROR": _DENIED,
    "SERVICE_ACCOUNT_ACCESS_DENIED": _DENIED,
    "INSUFFICIENT_PERMISSIONS": _DENIED,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": _DENIED,
    "REQUIRED": _WRONG,
    "AUTH_ERROR": _LOGIN,
    "UNAUTHENTICATED": _LOGIN,
    "ACCESS_TOKEN_EXPIRED": _LOGIN,
    "CREDENTIALS_MISSING": _LOGIN,
    "ACCESS_NOT_CONFIGURED": _SWITCH_ON,
    "SERVICE_DISABLED": _SWITCH_ON,
    "BILLING_DISABLED": _PAY,
    "BILLING_NOT_ENABLED": _PAY,
    "ACCOUNT_DISABLED": _PAY,
    "INVALID": _WRONG,
    "BAD_REQUEST": _WRONG,
    "INVALID_ARGUMENT": _WRONG,
    "INVALID_FIELD_VALUE": _WRONG,
    "INVALID_USAGE": _WRONG,
    "PARSE_ERROR": _WRONG,
    "FAILED_PRECONDITION": _WRONG,
    "CONDITION_NOT_MET": Meaning(InvalidRequest, hint="a policy of the organization forbids it: see the message"),
    "OUT_OF_RANGE": _WRONG,
    "EXTERNAL_RESOURCE_NOT_FOUND": _WRONG,
    "RESOURCE_NOT_FOUND": Meaning(InvalidRequest, block_s=3600.0, hint="a resource that the launch names is not there"),
    "UNSUPPORTED_OPERATION": Meaning(Unsupported, block_s=3600.0),  # also seen: preempted while created
    "UNIMPLEMENTED": _ELSEWHERE,
    "ALREADY_EXISTS": Meaning(Conflict),
    "RESOURCE_ALREADY_EXISTS": Meaning(Conflict),
    "NOT_FOUND": Meaning(NotFound),
}

_REQUEST = re.compile(r"^[A-Z]+ https?://\S+: ")
_RATE = r"per (minute|second|100 seconds|day)|rate limit"
# By text, before the code is asked: codes (as `_plain` writes them), pattern, meaning; the first that fits.
_BY_TEXT: tuple[tuple[frozenset[str], re.Pattern[str], Meaning], ...] = tuple(
    (frozenset(codes.split()), re.compile(pattern, re.I), meaning)
    for codes, pattern, meaning in (
        ("RESOURCEEXHAUSTED 429 QUOTAEXCEEDED", _RATE, _BUSY),
        ("RESOURCEEXHAUSTED 429", r"quota|limit", Meaning(QuotaExceeded)),
        ("RESOURCEEXHAUSTED", r"", _NO_STOCK),
        ("INVALIDARGUMENT", r"state PREEMPTED", _NO_STOCK),  # taken back while it was created
        ("FAILEDPRECONDITION", r"insufficient (reserved )?capacity", _NO_STOCK),
        (
            "INVALID NOTFOUND INVALIDARGUMENT INVALIDFIELDVALUE",
            r"(machine|accelerator) ?types?\b.*(not (exist|found)|unsupported)",
            _ELSEWHERE,
        ),
        ("PERMISSIONDENIED FORBIDDEN NOTFOUND", r"location \S+ is not found or access is unauthorized", _ELSEWHERE),
        ("FORBIDDEN PERMISSIONDENIED", r"has not been used in project|is disabled", _SWITCH_ON),
    )
)
_BY_STATUS: Mapping[int, Meaning] = {
    400: _WRONG,
    401: _LOGIN,
    403: _DENIED,
    404: MEANINGS["NOT_FOUND"],
    409: MEANINGS["ALREADY_EXISTS"],
    412: _WRONG,
    429: _BUSY,
}
_GRPC = (  # by number, as google.rpc.Code
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


def _plain(code: str) -> str:
    return code.replace("_", "").upper()


_BY_CODE = {_plain(code): meaning for code, meaning in MEANINGS.items()}


def refusal(code: str, message: str, status: int = 0) -> ProviderError:
    """One error of the tree. A code that nobody has heard of is loud, is not tried again, and blocks the offer."""
    plain = _plain(code) or str(status)
    for codes, pattern, meaning in _BY_TEXT:
        if plain in codes and pattern.search(message):
            return meaning.error(code, message)
    if plain in _BY_CODE:
        return _BY_CODE[plain].error(code, message)
    if status >= 500:
        return _BROKEN.error(code, message)
    if not code and status in _BY_STATUS:
        return _BY_STATUS[status].error(str(status), message)
    _log.error("Google Cloud refused with a code that is not known here: %s (%s)", code or status, message)
    return Meaning(ProviderError, Scope.OFFER, UNKNOWN_BLOCK_S, "please report this code").error(code, message)


@lru_cache(maxsize=1000)
def remembered(code: str, message: str) -> ProviderError:
    """The same of what is listed again and again: a code that nobody has heard of is loud once."""
    return refusal(code, message)


def of_operation(errors: Iterable[tuple[str, str]]) -> ProviderError | None:
    """Of a Compute operation that is DONE: its (code, message) pairs. None: it went well."""
    found = [refusal(code, message) for code, message in errors]
    return found[0] if found else None


def of_status(code: int, message: str) -> ProviderError | None:
    """Of a TPU operation or a queued resource: a google.rpc.Status."""
    if not code:
        return None
    return refusal(grpc_name(code), message)


def grpc_name(code: int) -> str:
    return _GRPC[code] if code < len(_GRPC) else str(code)


def of_exception(error: Exception, *, launching: bool = False) -> ProviderError:
    """Of whatever a call of the SDK raised. Anything that is not about the cloud is raised again as it is."""
    import requests
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    if isinstance(error, ProviderError):
        return error
    if isinstance(error, api.GoogleAPICallError):
        return _of_answer(error, launching)
    if isinstance(error, auth.TransportError):  # the token server does not answer
        return _BROKEN.error("", f"no access token: {error}")
    if isinstance(error, auth.GoogleAuthError):
        return _LOGIN.error("", f"no access token: {error}")
    if isinstance(error, requests.exceptions.ConnectTimeout) or _is_unsent(error):
        return _BROKEN.error("", f"Google Cloud cannot be reached: {error}")
    if isinstance(error, requests.exceptions.RequestException):
        kind = AmbiguousOutcome if launching else Transient
        return kind(f"no answer from Google Cloud: {error}", cloud=CLOUD)
    raise error


def _of_answer(error: Any, launching: bool) -> ProviderError:
    reasons = [each.get("reason", "") for each in error.errors or () if isinstance(each, dict)]
    code = next(filter(None, (error.reason, *reasons, _status_name(error))), "")
    message = _REQUEST.sub("", error.message or str(error))  # the SDK puts the whole address before it
    found = refusal(code, message, int(error.code or 0))
    if launching and isinstance(found, NotFound):
        return MEANINGS["RESOURCE_NOT_FOUND"].error(found.code, found.message)
    return found


def _status_name(error: Any) -> str:
    """TPU's answers name a google.rpc.Code beside the HTTP status; Compute's do not."""
    try:
        return str(error.response.json()["error"].get("status", ""))
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _is_unsent(error: Exception) -> bool:
    """The connection could not even be opened."""
    return "NewConnectionError" in repr(error) or "NameResolutionError" in repr(error)
