"""Every launch error that EC2 documents, and what becomes of it: class, scope, and how long it blocks."""

from __future__ import annotations

import logging

import pytest

from tradewind.autoscaler.providers.aws_errors import MEANINGS, from_code, translated
from tradewind.errors import (
    AmbiguousOutcome,
    AuthError,
    Conflict,
    InvalidRequest,
    NotFound,
    PriceTooHigh,
    ProviderError,
    QuotaExceeded,
    Scope,
    Stockout,
    Throttled,
    Transient,
    Unsupported,
)

# (code, HTTP status, class, scope, seconds)
LAUNCH_ERRORS = [
    ("InsufficientInstanceCapacity", 500, Stockout, Scope.ZONE, 600),
    ("InsufficientHostCapacity", 500, Stockout, Scope.ZONE, 600),
    ("InsufficientReservedInstanceCapacity", 500, Stockout, Scope.ZONE, 600),
    ("InsufficientCapacity", 500, Stockout, Scope.ZONE, 600),
    ("InsufficientCapacityOnHost", 400, Stockout, Scope.ZONE, 600),
    ("InsufficientVolumeCapacity", 500, Stockout, Scope.ZONE, 600),
    ("InsufficientFreeAddressesInSubnet", 400, Stockout, Scope.ZONE, 600),
    ("InsufficientAddressCapacity", 500, Stockout, Scope.ZONE, 600),
    ("UnfulfillableCapacity", 500, Stockout, Scope.ZONE, 600),
    ("ReservationCapacityExceeded", 400, Stockout, Scope.ZONE, 600),
    ("SpotMaxPriceTooLow", 400, PriceTooHigh, Scope.OFFER, 300),
    ("VcpuLimitExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("InstanceLimitExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("MaxSpotInstanceCountExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("VolumeLimitExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("MaxIOPSLimitExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("NetworkInterfaceLimitExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("ResourceCountExceeded", 400, QuotaExceeded, Scope.REGION, 3600),
    ("RequestLimitExceeded", 503, Throttled, Scope.NOTHING, 0),
    ("Throttling", 400, Throttled, Scope.NOTHING, 0),
    ("EC2ThrottledException", 400, Throttled, Scope.NOTHING, 0),
    ("InternalError", 500, Transient, Scope.NOTHING, 0),
    ("InternalFailure", 500, Transient, Scope.NOTHING, 0),
    ("ServerInternal", 500, Transient, Scope.NOTHING, 0),
    ("ServiceUnavailable", 503, Transient, Scope.NOTHING, 0),
    ("Unavailable", 503, Transient, Scope.NOTHING, 0),
    ("RequestTimeout", 400, Transient, Scope.NOTHING, 0),
    ("ConcurrentTagAccess", 400, Transient, Scope.NOTHING, 0),
    ("AuthFailure", 401, AuthError, Scope.CLOUD, 900),
    ("UnauthorizedOperation", 403, AuthError, Scope.CLOUD, 900),
    ("AccessDenied", 403, AuthError, Scope.CLOUD, 900),
    ("ExpiredToken", 400, AuthError, Scope.CLOUD, 900),
    ("RequestExpired", 400, AuthError, Scope.CLOUD, 900),
    ("InvalidClientTokenId", 403, AuthError, Scope.CLOUD, 900),
    ("SignatureDoesNotMatch", 403, AuthError, Scope.CLOUD, 900),
    ("MissingAuthenticationToken", 403, AuthError, Scope.CLOUD, 900),
    ("Blocked", 400, AuthError, Scope.CLOUD, 900),
    ("PendingVerification", 400, AuthError, Scope.REGION, 3600),
    ("OptInRequired", 401, AuthError, Scope.REGION, 3600),
    ("InvalidParameterValue", 400, InvalidRequest, Scope.OFFER, 86400),
    ("InvalidParameterCombination", 400, InvalidRequest, Scope.OFFER, 86400),
    ("MissingParameter", 400, InvalidRequest, Scope.OFFER, 86400),
    ("UnknownParameter", 400, InvalidRequest, Scope.OFFER, 86400),
    ("InvalidBlockDeviceMapping", 400, InvalidRequest, Scope.OFFER, 86400),
    ("TagLimitExceeded", 400, InvalidRequest, Scope.OFFER, 86400),
    ("InvalidAMIID.NotFound", 400, InvalidRequest, Scope.REGION, 900),
    ("InvalidAMIID.Unavailable", 400, InvalidRequest, Scope.REGION, 900),
    ("InvalidSubnetID.NotFound", 400, InvalidRequest, Scope.REGION, 900),
    ("InvalidGroup.NotFound", 400, InvalidRequest, Scope.REGION, 900),
    ("InvalidCapacityReservationIdNotFoundException", 400, InvalidRequest, Scope.REGION, 900),
    ("CustomerKeyHasBeenRevoked", 400, InvalidRequest, Scope.REGION, 900),
    ("Unsupported", 400, Unsupported, Scope.ZONE, 86400),
    ("UnsupportedOperation", 400, Unsupported, Scope.ZONE, 86400),
    ("InvalidAvailabilityZone", 400, Unsupported, Scope.ZONE, 86400),
    ("VolumeTypeNotAvailableInZone", 400, Unsupported, Scope.ZONE, 86400),
    ("IdempotentParameterMismatch", 400, Conflict, Scope.NOTHING, 0),
    ("IdempotentInstanceTerminated", 400, Conflict, Scope.NOTHING, 0),
    ("IncorrectInstanceState", 400, Conflict, Scope.NOTHING, 0),
    ("OperationNotPermitted", 400, Conflict, Scope.NOTHING, 0),
    ("VolumeInUse", 400, Conflict, Scope.NOTHING, 0),
    ("InvalidInstanceID.NotFound", 400, NotFound, Scope.NOTHING, 0),
    ("InvalidVolume.NotFound", 400, NotFound, Scope.NOTHING, 0),
    ("InvalidNetworkInterfaceID.NotFound", 400, NotFound, Scope.NOTHING, 0),
]


@pytest.mark.parametrize(
    ("code", "status", "kind", "scope", "block_s"), LAUNCH_ERRORS, ids=[row[0] for row in LAUNCH_ERRORS]
)
def test_a_code_has_its_meaning(
    code: str, status: int, kind: type[ProviderError], scope: Scope, block_s: float
) -> None:
    error = from_code(code, "said EC2", status, "RunInstances", "us-east-1")
    assert type(error) is kind
    assert (error.scope, error.block_s, error.code, error.cloud) == (scope, block_s, code, "aws")
    assert error.retryable == (kind in (Throttled, Transient))
    assert "us-east-1" in error.message
    assert "said EC2" in error.message


def test_every_error_that_blocks_the_user_says_what_to_do() -> None:
    for code, meaning in MEANINGS.items():
        error = from_code(code, "", 400, "RunInstances", "us-east-1")
        assert error.hint or meaning.error is NotFound, code


def test_an_unknown_code_is_loud_and_rules_the_offer_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = from_code("NobodyKnowsThis", "?", 400, "RunInstances", "us-east-1")
    assert type(error) is InvalidRequest
    assert (error.scope, error.retryable, error.block_s) == (Scope.OFFER, False, 600)
    assert "NobodyKnowsThis" in caplog.text


def test_an_unknown_server_error_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """The client token makes that safe."""
    assert type(from_code("Strange", "?", 502, "RunInstances", "us-east-1")) is Transient
    assert "Strange" in caplog.text


def test_a_missing_permission_is_named() -> None:
    assert "ec2:TerminateInstances" in from_code("UnauthorizedOperation", "", 403, "TerminateInstances", "x").hint
    assert "servicequotas:GetServiceQuota" in from_code("AccessDeniedException", "", 400, "GetServiceQuota", "x").hint


def sdk_error(name: str) -> Exception:
    from botocore import exceptions, parsers

    arguments = {
        "ReadTimeoutError": {"endpoint_url": "u", "error": "e"},
        "ConnectionClosedError": {"endpoint_url": "u", "request": None, "response": None},
        "EndpointConnectionError": {"endpoint_url": "u", "error": "e"},
        "ConnectTimeoutError": {"endpoint_url": "u", "error": "e"},
        "SSLError": {"endpoint_url": "u", "error": "e"},
        "TokenRetrievalError": {"provider": "p", "error_msg": "m"},
        "CredentialRetrievalError": {"provider": "p", "error_msg": "m"},
        "PartialCredentialsError": {"provider": "p", "cred_var": "v"},
        "ProfileNotFound": {"profile": "p"},
        "SSOTokenLoadError": {"error_msg": "m"},
        "ParamValidationError": {"report": "r"},
        "IncompleteReadError": {"actual_bytes": 1, "expected_bytes": 2},
    }
    if name == "ResponseParserError":
        return parsers.ResponseParserError("garbage")
    found: Exception = getattr(exceptions, name)(**arguments.get(name, {}))
    return found


@pytest.mark.parametrize(
    ("name", "of_a_launch", "of_a_listing"),
    [
        ("ReadTimeoutError", AmbiguousOutcome, Transient),
        ("ConnectionClosedError", AmbiguousOutcome, Transient),
        ("IncompleteReadError", AmbiguousOutcome, Transient),
        ("ResponseParserError", AmbiguousOutcome, Transient),
        ("EndpointConnectionError", Transient, Transient),
        ("ConnectTimeoutError", Transient, Transient),
        ("SSLError", Transient, Transient),
        ("NoCredentialsError", AuthError, AuthError),
        ("PartialCredentialsError", AuthError, AuthError),
        ("CredentialRetrievalError", AuthError, AuthError),
        ("TokenRetrievalError", AuthError, AuthError),
        ("SSOTokenLoadError", AuthError, AuthError),
        ("ProfileNotFound", AuthError, AuthError),
        ("ParamValidationError", InvalidRequest, InvalidRequest),
        ("NoRegionError", InvalidRequest, InvalidRequest),
    ],
)
def test_what_the_sdk_raises(name: str, of_a_launch: type[ProviderError], of_a_listing: type[ProviderError]) -> None:
    """Only a call that was sent, changes something and had no answer is ambiguous."""
    for changes, kind in ((True, of_a_launch), (False, of_a_listing)):
        with pytest.raises(ProviderError) as caught, translated("RunInstances", "us-east-1", changes=changes):
            raise sdk_error(name)
        assert type(caught.value) is kind
        assert caught.value.code == name


def test_what_is_none_of_the_sdk_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), translated("RunInstances", "us-east-1"):
        raise ZeroDivisionError
