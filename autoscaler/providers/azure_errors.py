"""What Azure and its SDK answer when something goes wrong -> the one tree of errors (tradewind/errors.py).

By `error.code` alone: every 409 arrives as the same exception, and a machine that could not be made is told in its
instance view. Where one code means several things (OperationNotAllowed: quota, or really not allowed), the text
decides. A code that is not in the table is loud (logged as an error) and safe: not sent again blindly, and the offer is
left alone for a while.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tradewind.autoscaler.providers.azure_settings import CLOUD
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

UNKNOWN_BLOCK_S = 600.0
SETTING_BLOCK_S = 900.0  # a wrong image or subnet: somebody is about to correct it
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


def _each(codes: str, meaning: Meaning) -> dict[str, Meaning]:
    return dict.fromkeys(codes.split(), meaning)


_BROKEN, _BUSY, _WRONG, _QUOTA = Meaning(Transient), Meaning(Throttled), Meaning(InvalidRequest), Meaning(QuotaExceeded)
_LOGIN = Meaning(AuthError, hint="log in again: az login, or check the controller's managed identity")
_DENIED = Meaning(AuthError, hint="grant it to the controller's identity: `tradewind doctor --cloud azure` tells more")
_SETTING = Meaning(InvalidRequest, Scope.REGION, SETTING_BLOCK_S, "correct the fleet file; `tradewind doctor` helps")
_IN_USE = Meaning(Conflict, hint="something still uses it")

# As documented: "Troubleshoot allocation failures", "Error messages for Azure Spot Virtual Machines", "Common Azure
# deployment errors", "Understand the error messages of virtual machines", error codes of Azure Resource Manager.
MEANINGS: Mapping[str, Meaning] = {
    # No capacity: this size in this zone.
    **_each(
        "AllocationFailed ZonalAllocationFailed OverconstrainedAllocationRequest OverconstrainedZonalAllocationRequest "
        "SkuNotAvailable AllocationTimeout InsufficientCapacity VMExtensionAllocationFailed "
        "CapacityReservationCapacityExceeded OverconstrainedCapacityReservationAllocationRequest",
        Meaning(Stockout),
    ),
    "SubnetIsFull": Meaning(Stockout, Scope.REGION, 3600.0, "the subnet has no free address: widen its range"),
    "SpotPriceGreaterThanProvidedMaxPrice": Meaning(PriceTooHigh),
    # Limits of the subscription: this size in this region.
    **_each(
        "QuotaExceeded ResourceQuotaExceeded SubscriptionQuotaExceeded CoreQuotaExceeded PublicIPCountLimitReached "
        "NetworkInterfaceCountLimitReached ResourceCountExceedsLimit ResourceGroupQuotaExceeded "
        "MaxResourceCountExceeded",
        _QUOTA,
    ),
    **_each(
        "TooManyRequests OperationNotAllowedDueToThrottling SubscriptionRequestsThrottled ResourceRequestsThrottled "
        "ResourceCollectionRequestsThrottled RateLimitExceeded RequestThrottled 429",
        _BUSY,
    ),
    **_each(
        "InternalServerError InternalError InternalExecutionError InternalOperationError InternalDiskManagementError "
        "ServerTimeout ServiceUnavailable GatewayTimeout BadGateway RequestTimeout OperationTimedOut Canceled "
        "OperationPreempted OperationCanceled RetryableError RetryableErrorDueToAnotherOperation "
        "AnotherOperationInProgress ConflictingServerOperation InUseByAnotherOperation "
        "NetworkingInternalOperationError "
        "CrpInternalError ResourceNotYetSynced ReferencedResourceNotProvisioned NicReservedForAnotherVm "
        "StorageAccountOperationInProgress TemporaryRedirectLimitExceeded",
        _BROKEN,
    ),
    # Who asks.
    **_each(
        "AuthenticationFailed AuthenticationFailedInvalidHeader ExpiredAuthenticationToken InvalidAuthenticationToken "
        "InvalidAuthenticationTokenTenant InvalidAuthenticationTokenAudience MissingAuthenticationToken Unauthorized",
        _LOGIN,
    ),
    **_each("AuthorizationFailed LinkedAuthorizationFailed LinkedAccessCheckFailed Forbidden", _DENIED),
    "RequestDisallowedByPolicy": Meaning(
        InvalidRequest, Scope.REGION, 3600.0, "a policy of the subscription forbids it: see the message"
    ),
    **_each(
        "SubscriptionNotFound InvalidSubscriptionId",
        Meaning(AuthError, hint="this identity does not see the subscription: az account list"),
    ),
    **_each(
        "SubscriptionNotRegistered MissingSubscriptionRegistration NoRegisteredProviderFound",
        Meaning(AuthError, hint="az provider register -n Microsoft.Compute; the same for Microsoft.Network"),
    ),
    **_each(
        "ReadOnlyDisabledSubscription DisallowedOperation SubscriptionDisabled BillingNotEnabled",
        Meaning(AuthError, hint="the subscription is disabled: see its state in the portal"),
    ),
    "MarketplacePurchaseEligibilityFailed": Meaning(
        AuthError, Scope.REGION, 3600.0, "accept the image's terms: az vm image terms accept --urn ..."
    ),
    "ResourcePurchaseValidationFailed": Meaning(
        AuthError, Scope.REGION, 3600.0, "accept the image's terms: az vm image terms accept --urn ..."
    ),
    # The request itself.
    **_each(
        "BadRequest InvalidParameter InvalidRequestContent InvalidRequestFormat InvalidRequestPropertyName InvalidJson "
        "InvalidApiVersionParameter MissingApiVersionParameter InvalidHeaderValue InvalidResourceName InvalidTagName "
        "InvalidTagNameCharacters InvalidTagValue TagNameTooLong TagValueTooLong TooManyTags PropertyNotAllowed "
        "PropertyChangeNotAllowed RequiredPropertyMissing MaxPriceValueInvalid MaxPriceChangeNotAllowed "
        "MaxPriceIsSupportedOnlyForAzureSpotVMs MaxPriceIsSupportedOnlyForAzureSpotVirtualMachines "
        "MaxPriceChangeNotAllowedForAllocatedVMs VMPriorityCannotBeApplied DiskSizeExceedsLimit "
        "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines AzureSpotVmNotSupportedInAvailabilitySet "
        "VMSizeIsNotPermittedToEnableAcceleratedNetworking HostEncryptionNotSupported InvalidTemplate "
        "SSHPublicKeyInvalid LinkedInvalidPropertyId InvalidCustomData",
        _WRONG,
    ),
    **_each(
        "ImageNotFound PlatformImageNotFound GalleryImageNotFound InvalidImage ImageVersionNotFound "
        "ResourceGroupNotFound InvalidResourceReference NetworkSecurityGroupNotFound SubnetNotFound "
        "InvalidResourceGroup VMMarketplaceInvalidInput VMIdentityNotFound FailedIdentityOperation "
        "InvalidIdentityId CapacityReservationGroupNotFound CapacityReservationNotFound InvalidDiskSize "
        "SubnetsNotInSameVnet NicInDifferentLocation",
        _SETTING,
    ),
    **_each(
        "FeatureNotRegistered InvalidEncryptionAtHost FeatureNotSupportedForAccount "
        "AzureSpotFeatureNotEnabledForSubscription "
        "SubscriptionNotRegisteredForFeature",
        Meaning(Unsupported, Scope.REGION, 3600.0, "az feature register, with the name in the message"),
    ),
    # Not sold here.
    **_each(
        "NotAvailableForSubscription VMSizeNotSupported InvalidVMSize SizeNotAvailable "
        "AzureSpotIsNotSupportedForThisVMSize "
        "AzureSpotIsNotSupportedInThisAPIVersion AvailabilityZoneNotSupported LocationNotAvailableForResourceType "
        "LocationNotSupportAvailabilityZones ResourceTypeNotSupportAvailabilityZones NotSupported UnsupportedVMSize "
        "VMSizeDoesntSupportPremiumStorage HypervisorGenerationMismatch InvalidAvailabilityZone",
        Meaning(Unsupported),
    ),
    # The same name.
    **_each(
        "InvalidResourceLocation ResourceExists AlreadyExists PreconditionFailed ConditionNotMet "
        "ResourceAlreadyExists VirtualMachineAlreadyExists ZonesPropertyChangeNotAllowed",
        Meaning(Conflict),
    ),
    **_each(
        "NicInUse ResourceInUse DiskInUse InUse NicInUseWithPrivateEndpoint AttachDiskWhileBeingDetached "
        "DiskIsAttachedToVM ResourceBeingDeleted NicAlreadyInUse",
        _IN_USE,
    ),
    "BadParameter": _WRONG,  # of Key Vault
    "ScopeLocked": Meaning(Conflict, hint="somebody has locked it: az lock list"),
    **_each("ResourceNotFound NotFound VMNotFound ParentResourceNotFound SecretNotFound", Meaning(NotFound)),
    # It has hardware, and does not come up.
    **_each(
        "OSProvisioningTimedOut OSProvisioningInternalError OSProvisioningClientError VMAgentStatusCommunicationError "
        "VMStartTimedOut OSProvisioningFailed VMBootFailed",
        Meaning(ProviderError, Scope.OFFER, UNKNOWN_BLOCK_S, "the image does not boot on this size: choose another"),
    ),
}

_QUOTA_TEXT = re.compile(r"quota|exceeding approved|cores? limit|limit.*(?:reached|exceeded)", re.I)
_PRICE_TEXT = re.compile(r"max(?:imum)? ?price.*lower than|spot price.*(?:greater|exceeds)", re.I)
_STOCK_TEXT = re.compile(r"sufficient capacity|capacity restrictions|allocation fail", re.I)
_SIZE_TEXT = re.compile(r"vmSize|VM size|hardwareProfile", re.I)
_BUSY_TEXT = re.compile(r"another (?:operation|request)|in progress|throttl", re.I)
# By text, before the code is asked: codes, pattern, meaning; the first that fits.
_BY_TEXT: tuple[tuple[str, re.Pattern[str], Meaning], ...] = (
    ("OperationNotAllowed Conflict BadRequest", _PRICE_TEXT, Meaning(PriceTooHigh)),
    ("OperationNotAllowed Conflict BadRequest", _QUOTA_TEXT, _QUOTA),
    ("OperationNotAllowed Conflict", _STOCK_TEXT, Meaning(Stockout)),
    ("OperationNotAllowed Conflict", _BUSY_TEXT, _BROKEN),
    ("InvalidParameter", _SIZE_TEXT, Meaning(Unsupported)),
    ("OperationNotAllowed", re.compile(""), _WRONG),
    ("Conflict", re.compile(""), _IN_USE),
)
_BY_STATUS: Mapping[int, Meaning] = {
    400: _WRONG,
    401: _LOGIN,
    403: _DENIED,
    404: Meaning(NotFound),
    409: _IN_USE,
    412: Meaning(Conflict),
    429: _BUSY,
}
_WRAPPERS = ("DeploymentFailed", "ResourceDeploymentFailure", "InvalidTemplateDeployment", "MultipleErrorsOccurred")


def refusal(code: str, message: str, status: int = 0) -> ProviderError:
    """One error of the tree. A code that nobody has heard of is loud, is not tried again, and blocks the offer."""
    if status in (412, 429):  # these mean one thing, whatever the code
        return _BY_STATUS[status].error(code or str(status), message)
    for codes, pattern, meaning in _BY_TEXT:
        if code in codes.split() and pattern.search(message):
            return meaning.error(code, message)
    if code in MEANINGS:
        return MEANINGS[code].error(code, message)
    if status >= 500:
        return _BROKEN.error(code, message)
    if not code and status in _BY_STATUS:
        return _BY_STATUS[status].error(str(status), message)
    _log.error("Azure refused with a code that is not known here: %s (%s)", code or status, message)
    hint = "please report this code; the next best offer is tried meanwhile"
    return Meaning(ProviderError, Scope.OFFER, UNKNOWN_BLOCK_S, hint).error(code, message)


@lru_cache(maxsize=1000)
def remembered(code: str, message: str) -> ProviderError:
    """The same of what is listed again and again: a code that nobody has heard of is loud once."""
    return refusal(code, message)


def of_answer(answer: Any, status: int) -> ProviderError:
    """Of the JSON of a refused call: {"error": {"code", "message", "details"}}, with the cause inside of a wrapper."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return refusal("", str(answer)[:500], status)
    while error.get("code") in _WRAPPERS and error.get("details"):
        error = error["details"][0]
    return refusal(str(error.get("code") or ""), str(error.get("message") or ""), status)


def of_exception(error: Exception, *, launching: bool = False) -> ProviderError:
    """Of whatever a call of the SDK raised. Anything that is not about the cloud is raised again as it is."""
    from azure.core import exceptions as sdk

    if isinstance(error, ProviderError):
        return error
    if isinstance(error, sdk.HttpResponseError) and error.response is not None:
        return _of_response(error, launching)
    if isinstance(error, sdk.ClientAuthenticationError):  # of azure.identity: no token, nothing was sent
        return _LOGIN.error(type(error).__name__, f"no access token: {error}")
    if isinstance(error, sdk.ServiceRequestError):
        return _BROKEN.error(type(error).__name__, f"Azure cannot be reached: {error}")
    if isinstance(error, sdk.AzureError):  # the answer did not come, or only half of it
        kind = AmbiguousOutcome if launching else Transient
        return kind(f"no answer from Azure: {error}", cloud=CLOUD, code=type(error).__name__)
    raise error


def _of_response(error: Any, launching: bool) -> ProviderError:
    try:
        answer = error.response.json()
    except Exception:  # whatever a proxy has put there instead of JSON
        answer = error.message
    found = of_answer(answer, int(error.status_code or 0))
    if launching and isinstance(found, NotFound):  # of what the launch names: a subnet, an image, an identity
        return _SETTING.error(found.code, found.message)
    return found
