"""Every documented refusal of Azure -> class, scope, how long it blocks."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tradewind.autoscaler.providers import azure_errors
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

_CORES = "Operation could not be completed as it results in exceeding approved Total Regional Cores quota."
_LOW = "exceeding approved LowPriorityCores quota. Location: eastus, Current Limit: 3, Additional Required: 4"
_MAX = "the provided max price '0.01 USD' is lower than the current spot price '0.19 USD' for Azure Spot VM size"
_SIZE = "The value Standard_X provided for the VM size is not valid. The valid sizes in the current region are: ..."
DAY = 86400

# code, message, class, scope, block_s
TABLE = [
    ("AllocationFailed", "Allocation failed. We do not have sufficient capacity", Stockout, Scope.ZONE, 600),
    ("ZonalAllocationFailed", "", Stockout, Scope.ZONE, 600),
    ("OverconstrainedAllocationRequest", "", Stockout, Scope.ZONE, 600),
    ("OverconstrainedZonalAllocationRequest", "", Stockout, Scope.ZONE, 600),
    ("SkuNotAvailable", "is currently not available in location 'eastus'", Stockout, Scope.ZONE, 600),
    ("OperationNotAllowed", "Following SKUs have failed for Capacity Restrictions", Stockout, Scope.ZONE, 600),
    ("SubnetIsFull", "Subnet default does not have enough capacity", Stockout, Scope.REGION, 3600),
    ("SpotPriceGreaterThanProvidedMaxPrice", _MAX, PriceTooHigh, Scope.OFFER, 300),
    ("OperationNotAllowed", f"Unable to perform operation since {_MAX}", PriceTooHigh, Scope.OFFER, 300),
    ("OperationNotAllowed", _CORES, QuotaExceeded, Scope.REGION, 3600),
    ("OperationNotAllowed", _LOW, QuotaExceeded, Scope.REGION, 3600),
    ("QuotaExceeded", "", QuotaExceeded, Scope.REGION, 3600),
    ("ResourceQuotaExceeded", "", QuotaExceeded, Scope.REGION, 3600),
    ("OperationNotAllowed", "The server rejected the request: another operation is in progress", Transient, None, 0),
    ("OperationNotAllowed", "This is not allowed", InvalidRequest, Scope.OFFER, DAY),
    ("TooManyRequests", "", Throttled, Scope.NOTHING, 0),
    ("SubscriptionRequestsThrottled", "", Throttled, Scope.NOTHING, 0),
    ("ResourceCollectionRequestsThrottled", "", Throttled, Scope.NOTHING, 0),
    ("InternalServerError", "", Transient, Scope.NOTHING, 0),
    ("ServiceUnavailable", "", Transient, Scope.NOTHING, 0),
    ("RetryableError", "", Transient, Scope.NOTHING, 0),
    ("NicReservedForAnotherVm", "reserved for 180 seconds", Transient, Scope.NOTHING, 0),
    ("OperationPreempted", "", Transient, Scope.NOTHING, 0),
    ("AuthenticationFailed", "", AuthError, Scope.CLOUD, 900),
    ("ExpiredAuthenticationToken", "", AuthError, Scope.CLOUD, 900),
    ("InvalidAuthenticationTokenTenant", "", AuthError, Scope.CLOUD, 900),
    ("AuthorizationFailed", "does not have authorization to perform action", AuthError, Scope.CLOUD, 900),
    ("LinkedAuthorizationFailed", "", AuthError, Scope.CLOUD, 900),
    ("SubscriptionNotFound", "", AuthError, Scope.CLOUD, 900),
    ("MissingSubscriptionRegistration", "", AuthError, Scope.CLOUD, 900),
    ("ReadOnlyDisabledSubscription", "", AuthError, Scope.CLOUD, 900),
    ("MarketplacePurchaseEligibilityFailed", "", AuthError, Scope.REGION, 3600),
    ("RequestDisallowedByPolicy", "", InvalidRequest, Scope.REGION, 3600),
    ("InvalidParameter", "The value of parameter adminUsername is invalid.", InvalidRequest, Scope.OFFER, DAY),
    ("InvalidParameter", _SIZE, Unsupported, Scope.ZONE, DAY),
    ("InvalidRequestContent", "Could not find member 'x'", InvalidRequest, Scope.OFFER, DAY),
    ("BadRequest", "", InvalidRequest, Scope.OFFER, DAY),
    ("PropertyChangeNotAllowed", "", InvalidRequest, Scope.OFFER, DAY),
    ("MaxPriceValueInvalid", "", InvalidRequest, Scope.OFFER, DAY),
    ("EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", "", InvalidRequest, Scope.OFFER, DAY),
    ("PlatformImageNotFound", "", InvalidRequest, Scope.REGION, 900),
    ("ResourceGroupNotFound", "", InvalidRequest, Scope.REGION, 900),
    ("InvalidResourceReference", "", InvalidRequest, Scope.REGION, 900),
    ("AzureSpotFeatureNotEnabledForSubscription", "", Unsupported, Scope.REGION, 3600),
    ("AzureSpotIsNotSupportedForThisVMSize", "", Unsupported, Scope.ZONE, DAY),
    ("NotAvailableForSubscription", "", Unsupported, Scope.ZONE, DAY),
    ("LocationNotAvailableForResourceType", "", Unsupported, Scope.ZONE, DAY),
    ("InvalidAvailabilityZone", "", Unsupported, Scope.ZONE, DAY),
    ("InvalidResourceLocation", "already exists in location 'westus2'", Conflict, Scope.NOTHING, 0),
    ("PreconditionFailed", "", Conflict, Scope.NOTHING, 0),
    ("Conflict", "", Conflict, Scope.NOTHING, 0),
    ("NicInUse", "", Conflict, Scope.NOTHING, 0),
    ("ScopeLocked", "", Conflict, Scope.NOTHING, 0),
    ("ResourceNotFound", "", NotFound, Scope.NOTHING, 0),
    ("OSProvisioningTimedOut", "", ProviderError, Scope.OFFER, 600),
]


@pytest.mark.parametrize(("code", "message", "kind", "scope", "block_s"), TABLE)
def test_a_code(code: str, message: str, kind: type[ProviderError], scope: Scope | None, block_s: float) -> None:
    error = azure_errors.refusal(code, message, 409)
    assert (type(error), error.scope, error.block_s) == (kind, scope or Scope.NOTHING, block_s)
    assert (error.code, error.cloud, error.message) == (code, "azure", message)


def test_every_code_has_a_hint_or_one_of_its_class() -> None:
    silent = [code for code in azure_errors.MEANINGS if not azure_errors.refusal(code, "").hint]
    assert {type(azure_errors.refusal(code, "")) for code in silent} <= {NotFound}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequest),
        (401, AuthError),
        (403, AuthError),
        (404, NotFound),
        (409, Conflict),
        (412, Conflict),
        (429, Throttled),
        (500, Transient),
        (503, Transient),
    ],
)
def test_an_answer_without_a_code(status: int, kind: type[ProviderError]) -> None:
    assert type(azure_errors.of_answer("<html>a proxy says no</html>", status)) is kind


def test_some_are_told_by_the_status_whatever_the_code() -> None:
    assert isinstance(azure_errors.refusal("OperationNotAllowed", "limit reached", 429), Throttled)
    assert isinstance(azure_errors.refusal("SomethingElse", "it exists", 412), Conflict)


def test_an_unknown_code_is_loud_and_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = azure_errors.refusal("NeverHeardOf", "oh", 409)
    assert not error.retryable
    assert (error.scope, error.block_s) == (Scope.OFFER, azure_errors.UNKNOWN_BLOCK_S)
    assert "NeverHeardOf" in caplog.text


def test_the_cause_is_looked_for_inside_of_a_wrapper() -> None:
    cause = {"code": "SkuNotAvailable", "message": "not here"}
    wrapped = {"code": "DeploymentFailed", "message": "see details", "details": [cause]}
    assert isinstance(azure_errors.of_answer({"error": wrapped}, 409), Stockout)


class _Response:
    """As much of an answer as the SDK's exception looks at."""

    status_code, reason, headers = 404, "Not Found", dict[str, str]()

    def json(self) -> Any:
        return {"error": {"code": "ResourceNotFound", "message": "the subnet is not there"}}

    def text(self) -> str:
        return "{}"


def test_something_missing_is_an_invalid_launch() -> None:
    from azure.core.exceptions import HttpResponseError

    error: Any = HttpResponseError("no")
    error.response, error.status_code = _Response(), 404
    assert isinstance(azure_errors.of_exception(error), NotFound)
    launch = azure_errors.of_exception(error, launching=True)
    assert isinstance(launch, InvalidRequest)
    assert launch.scope is Scope.REGION


def test_a_broken_connection_is_ambiguous_only_for_a_launch_that_was_sent() -> None:
    from azure.core import exceptions as sdk

    unsent, lost = sdk.ServiceRequestError("no route"), sdk.ServiceResponseError("reset by peer")
    assert isinstance(azure_errors.of_exception(unsent, launching=True), Transient)
    assert isinstance(azure_errors.of_exception(lost), Transient)
    assert isinstance(azure_errors.of_exception(lost, launching=True), AmbiguousOutcome)
    assert isinstance(azure_errors.of_exception(sdk.IncompleteReadError("half"), launching=True), AmbiguousOutcome)


def test_no_token_is_a_matter_of_credentials() -> None:
    from azure.core.exceptions import ClientAuthenticationError

    error = azure_errors.of_exception(ClientAuthenticationError("DefaultAzureCredential failed"), launching=True)
    assert isinstance(error, AuthError)
    assert "az login" in error.hint


def test_a_defect_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(ZeroDivisionError):
        azure_errors.of_exception(ZeroDivisionError())
