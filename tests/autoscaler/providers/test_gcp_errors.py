"""Every documented refusal of Google Cloud -> class, scope, how long it blocks."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tradewind.autoscaler.providers import gcp_errors
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

# code, message, class, scope, block_s. As in the answer of a call, or inside of an operation.
TABLE = [
    ("ZONE_RESOURCE_POOL_EXHAUSTED", "does not have enough resources", Stockout, Scope.ZONE, 600),
    ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "is currently unavailable in the zone", Stockout, Scope.ZONE, 600),
    ("RESOURCE_POOL_EXHAUSTED", "", Stockout, Scope.ZONE, 600),
    ("REGION_RESOURCE_POOL_EXHAUSTED", "", Stockout, Scope.REGION, 600),
    ("STOCKOUT", "", Stockout, Scope.ZONE, 600),
    ("GPU_STOCKOUT", "", Stockout, Scope.ZONE, 600),
    ("insufficientCapacity", "", Stockout, Scope.ZONE, 600),
    ("RESERVATION_CAPACITY_EXCEEDED", "", Stockout, Scope.ZONE, 600),
    ("IP_SPACE_EXHAUSTED", "IP space of 'default' is exhausted.", Stockout, Scope.REGION, 3600),
    ("IP_SPACE_EXHAUSTED_WITH_DETAILS", "", Stockout, Scope.REGION, 3600),
    ("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-west1.", QuotaExceeded, Scope.REGION, 3600),
    ("quotaExceeded", "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 0.0 in region x.", QuotaExceeded, Scope.REGION, 3600),
    ("QUOTA_EXCEEDED", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 1.0 globally.", QuotaExceeded, Scope.REGION, 3600),
    ("limitExceeded", "", QuotaExceeded, Scope.REGION, 3600),
    ("RESOURCE_EXHAUSTED", 'There is no more capacity in the zone "europe-west4-a"', Stockout, Scope.ZONE, 600),
    ("RESOURCE_EXHAUSTED", "Quota 'TPUV2sPod' exhausted. Limit 32 in zone x", QuotaExceeded, Scope.REGION, 3600),
    ("RESOURCE_EXHAUSTED", "limit 'Requests per minute' of service 'tpu'", Throttled, Scope.NOTHING, 0),
    ("FAILED_PRECONDITION", "Insufficient reserved capacity. Contact customer support", Stockout, Scope.ZONE, 600),
    ("FAILED_PRECONDITION", "something else", InvalidRequest, Scope.OFFER, 86400),
    ("INVALID_ARGUMENT", "update is not supported while in state PREEMPTED", Stockout, Scope.ZONE, 600),
    ("rateLimitExceeded", "Rate Limit Exceeded", Throttled, Scope.NOTHING, 0),
    ("userRateLimitExceeded", "", Throttled, Scope.NOTHING, 0),
    ("RATE_LIMIT_EXCEEDED", "", Throttled, Scope.NOTHING, 0),
    ("RESOURCE_OPERATION_RATE_EXCEEDED", "", Throttled, Scope.NOTHING, 0),
    ("CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "", Throttled, Scope.NOTHING, 0),
    ("quotaExceeded", "Quota exceeded for 'Queries' and limit 'Queries per minute'", Throttled, Scope.NOTHING, 0),
    ("backendError", "", Transient, Scope.NOTHING, 0),
    ("INTERNAL_ERROR", "Internal error.", Transient, Scope.NOTHING, 0),
    ("internalError", "", Transient, Scope.NOTHING, 0),
    ("SERVICE_UNAVAILABLE", "", Transient, Scope.NOTHING, 0),
    ("UNAVAILABLE", "", Transient, Scope.NOTHING, 0),
    ("INTERNAL", "", Transient, Scope.NOTHING, 0),
    ("ABORTED", "", Transient, Scope.NOTHING, 0),
    ("resourceNotReady", "", Transient, Scope.NOTHING, 0),
    ("resourceInUseByAnotherResource", "", Transient, Scope.NOTHING, 0),
    ("forbidden", "Required 'compute.instances.create' permission for 'x'", AuthError, Scope.CLOUD, 900),
    ("PERMISSION_DENIED", "Permission 'tpu.nodes.create' denied", AuthError, Scope.CLOUD, 900),
    ("IAM_PERMISSION_DENIED", "", AuthError, Scope.CLOUD, 900),
    ("PERMISSIONS_ERROR", "", AuthError, Scope.CLOUD, 900),
    ("SERVICE_ACCOUNT_ACCESS_DENIED", "", AuthError, Scope.CLOUD, 900),
    ("authError", "Invalid Credentials", AuthError, Scope.CLOUD, 900),
    ("UNAUTHENTICATED", "", AuthError, Scope.CLOUD, 900),
    ("ACCESS_TOKEN_EXPIRED", "", AuthError, Scope.CLOUD, 900),
    ("accessNotConfigured", "Compute Engine API has not been used in project 1", AuthError, Scope.CLOUD, 900),
    ("SERVICE_DISABLED", "", AuthError, Scope.CLOUD, 900),
    ("BILLING_DISABLED", "", AuthError, Scope.CLOUD, 900),
    ("PERMISSION_DENIED", "Location us-east1-d is not found or access is unauthorized", Unsupported, Scope.ZONE, 86400),
    ("invalid", "Invalid value for field 'resource.name'", InvalidRequest, Scope.OFFER, 86400),
    ("invalid", "The referenced machineType does not exist.", Unsupported, Scope.ZONE, 86400),
    ("INVALID_ARGUMENT", "Accelerator type v9-8 not found in zone x", Unsupported, Scope.ZONE, 86400),
    ("required", "", InvalidRequest, Scope.OFFER, 86400),
    ("badRequest", "", InvalidRequest, Scope.OFFER, 86400),
    ("INVALID_FIELD_VALUE", "", InvalidRequest, Scope.OFFER, 86400),
    ("INVALID_USAGE", "", InvalidRequest, Scope.OFFER, 86400),
    ("conditionNotMet", "Constraint compute.vmExternalIpAccess violated", InvalidRequest, Scope.OFFER, 86400),
    ("RESOURCE_NOT_FOUND", "The resource 'x' was not found", InvalidRequest, Scope.OFFER, 3600),
    ("UNSUPPORTED_OPERATION", "", Unsupported, Scope.ZONE, 3600),
    ("alreadyExists", "", Conflict, Scope.NOTHING, 0),
    ("RESOURCE_ALREADY_EXISTS", "", Conflict, Scope.NOTHING, 0),
    ("ALREADY_EXISTS", "", Conflict, Scope.NOTHING, 0),
    ("notFound", "The resource 'x' was not found", NotFound, Scope.NOTHING, 0),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message", "kind", "scope", "block_s"), TABLE)
def test_a_code(code: str, message: str, kind: type[ProviderError], scope: Scope, block_s: float) -> None:
    error = gcp_errors.refusal(code, message)
    assert type(error) is kind
    assert (error.scope, error.block_s, error.code, error.cloud) == (scope, block_s, code, "gcp")


def test_every_code_of_the_table_is_tried_or_an_alias() -> None:
    tried = {code.replace("_", "").upper() for code, *_ in TABLE}
    known = {code.replace("_", "").upper() for code in gcp_errors.MEANINGS}
    assert known - tried <= {
        *("SUBNETWORKIPSPACEEXHAUSTED", "OPERATIONQUOTAEXCEEDED", "DEADLINEEXCEEDED", "CANCELLED", "UNKNOWN"),
        *("FINGERPRINTMISMATCH", "INSUFFICIENTPERMISSIONS", "ACCESSTOKENSCOPEINSUFFICIENT", "CREDENTIALSMISSING"),
        *("BILLINGNOTENABLED", "ACCOUNTDISABLED", "PARSEERROR", "OUTOFRANGE", "EXTERNALRESOURCENOTFOUND"),
        *("UNIMPLEMENTED", "BADREQUEST", "INVALIDARGUMENT"),
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, AuthError),
        (403, AuthError),
        (404, NotFound),
        (409, Conflict),
        (412, InvalidRequest),
        (429, Throttled),
        (500, Transient),
        (502, Transient),
        (503, Transient),
        (504, Transient),
    ],
)
def test_an_answer_without_a_reason(status: int, kind: type[ProviderError]) -> None:
    assert type(gcp_errors.refusal("", "who knows", status)) is kind


def test_an_unknown_code_is_loud_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = gcp_errors.refusal("BLUE_MOON", "the moon is blue", 400)
    assert (error.retryable, error.scope, error.block_s) == (False, Scope.OFFER, gcp_errors.UNKNOWN_BLOCK_S)
    assert "BLUE_MOON" in caplog.text


@pytest.mark.parametrize(
    ("number", "kind"),
    [(3, InvalidRequest), (7, AuthError), (8, Stockout), (13, Transient), (14, Transient), (16, AuthError)],
)
def test_a_code_of_grpc(number: int, kind: type[ProviderError]) -> None:
    assert type(gcp_errors.of_status(number, "no more capacity")) is kind
    assert gcp_errors.of_status(0, "") is None


def test_an_operation_without_errors_went_well() -> None:
    assert gcp_errors.of_operation([]) is None
    refused = gcp_errors.of_operation([("ZONE_RESOURCE_POOL_EXHAUSTED", "x"), ("INTERNAL_ERROR", "y")])
    assert isinstance(refused, Stockout)


def _broken_connections() -> list[tuple[Exception, type[ProviderError], type[ProviderError]]]:
    import requests
    from google.auth import exceptions as auth
    from urllib3.exceptions import NewConnectionError

    unsent = requests.exceptions.ConnectionError(NewConnectionError(None, "refused"))  # type: ignore[arg-type]
    return [
        (requests.exceptions.ReadTimeout("slow"), AmbiguousOutcome, Transient),
        (requests.exceptions.ConnectionError("Connection aborted."), AmbiguousOutcome, Transient),
        (requests.exceptions.ChunkedEncodingError("half an answer"), AmbiguousOutcome, Transient),
        (requests.exceptions.ConnectTimeout("nobody there"), Transient, Transient),
        (unsent, Transient, Transient),
        (auth.RefreshError("invalid_grant"), AuthError, AuthError),
        (auth.DefaultCredentialsError("none found"), AuthError, AuthError),
        (auth.TransportError("no token server"), Transient, Transient),
    ]


def test_a_broken_connection_is_ambiguous_only_for_a_launch_that_was_sent() -> None:
    for error, launching, reading in _broken_connections():
        assert type(gcp_errors.of_exception(error, launching=True)) is launching, error
        assert type(gcp_errors.of_exception(error)) is reading, error


def test_something_missing_is_an_invalid_launch() -> None:
    """NotFound blocks nothing: the same launch would be tried at every tick."""
    from google.api_core import exceptions as api

    missing: Any = api.NotFound("The resource 'subnetworks/x' was not found", errors=[{"reason": "notFound"}])
    error = gcp_errors.of_exception(missing, launching=True)
    assert isinstance(error, InvalidRequest)
    assert error.block_s > 0
    assert isinstance(gcp_errors.of_exception(missing), NotFound)


def test_a_defect_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(KeyError):
        gcp_errors.of_exception(KeyError("oops"))
