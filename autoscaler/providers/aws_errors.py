"""What AWS and its SDK answer when something goes wrong -> the one tree of errors (tradewind/errors.py).

The codes are those of the EC2 API reference ("Error codes for the Amazon EC2 API") and of RunInstances. A code that is
not in the table is loud (logged as an error) and safe: not sent again blindly, and the offer is left alone for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

logger = logging.getLogger(__name__)

UNKNOWN_BLOCK_S = 600.0
_SECRETS = "CreateSecret PutSecretValue GetSecretValue DeleteSecret RestoreSecret ListSecrets"
DENIED = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")  # who asks is known, and may not
CREDENTIALS = "give credentials that are valid: `aws configure`, `aws sso login`, AWS_PROFILE, or an instance profile"

_SERVICES = {
    "GetCallerIdentity": "sts",
    "GetServiceQuota": "servicequotas",
    **dict.fromkeys(_SECRETS.split(), "secretsmanager"),
}
SETTING_BLOCK_S = 900.0  # a wrong image or subnet: somebody is about to correct it


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of a code. Scope and time where they differ from those of the error's class."""

    error: type[ProviderError]
    scope: Scope | None = None
    block_s: float | None = None
    hint: str = ""


def _each(codes: str, meaning: Meaning) -> dict[str, Meaning]:
    return dict.fromkeys(codes.split(), meaning)


MEANINGS: dict[str, Meaning] = {
    # No capacity: this type in this zone.
    **_each(
        "InsufficientInstanceCapacity InsufficientCapacity InsufficientHostCapacity InsufficientCapacityOnHost "
        "InsufficientReservedInstanceCapacity InsufficientReservedInstancesCapacity InsufficientVolumeCapacity "
        "UnfulfillableCapacity ReservationCapacityExceeded",
        Meaning(Stockout),
    ),
    **_each(
        "InsufficientFreeAddressesInSubnet InsufficientAddressCapacity",
        Meaning(Stockout, hint="the subnet has no free address: give the zone a larger one"),
    ),
    # Placement groups. One that is gone was empty, and swept up: the next try makes it again.
    "InvalidPlacementGroup.Unknown": Meaning(NotFound),
    "InvalidPlacementGroup.Duplicate": Meaning(Conflict, hint="there is a group of this name already"),
    "InvalidPlacementGroup.InUse": Meaning(Conflict, hint="instances are still in it"),
    **_each("SpotMaxPriceTooLow", Meaning(PriceTooHigh)),
    # Limits of the account: this type in this region.
    **_each(
        "VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded MaxSpotFleetRequestCountExceeded "
        "VolumeLimitExceeded MaxIOPSLimitExceeded NetworkInterfaceLimitExceeded ResourceLimitExceeded "
        "ResourceCountExceeded RequestResourceCountExceeded",
        Meaning(QuotaExceeded),
    ),
    **_each(
        "RequestLimitExceeded Throttling ThrottlingException EC2ThrottledException TooManyRequestsException",
        Meaning(Throttled),
    ),
    # Sent again under the same client token, so that it cannot happen twice.
    **_each(
        "InternalError InternalFailure ServerInternal ServiceUnavailable Unavailable RequestTimeout "
        "ServiceException ConcurrentTagAccess",
        Meaning(Transient),
    ),
    **_each(
        "AuthFailure Blocked ExpiredToken ExpiredTokenException RequestExpired InvalidSecurity.RequestHasExpired "
        "InvalidClientTokenId InvalidAccessKeyId SignatureDoesNotMatch InvalidSignatureException "
        "IncompleteSignature MissingAuthenticationToken MissingAuthenticationTokenException "
        "UnrecognizedClientException UnauthorizedOperation AccessDenied AccessDeniedException",
        Meaning(AuthError),
    ),
    "PendingVerification": Meaning(
        AuthError, Scope.REGION, 3600.0, "AWS still checks this account for this region, up to four hours"
    ),
    "OptInRequired": Meaning(
        AuthError, Scope.REGION, 3600.0, "enable the region, or accept the image's terms in AWS Marketplace"
    ),
    # The request itself.
    **_each(
        "InvalidParameter InvalidParameterValue InvalidParameterCombination InvalidQueryParameter InvalidInput "
        "MissingParameter MissingInput MissingAction UnknownParameter ValidationError ValidationException "
        "InvalidRequest InvalidAction InvalidCharacter MalformedQueryString NoSuchVersion UnsupportedProtocol "
        "InvalidClientToken InvalidFilter FilterLimitExceeded InvalidMaxResults InvalidNextToken "
        "InvalidPaginationToken InvalidTagKey.Malformed TagLimitExceeded InvalidBlockDeviceMapping "
        "BootForVolumeTypeUnsupported UnknownVolumeType EncryptedVolumesNotSupported InvalidInstanceType "
        "InvalidInstanceAttributeValue InvalidInstanceFamily InvalidInstanceID.Malformed InvalidVolumeID.Malformed "
        "InvalidNetworkInterfaceId.Malformed InvalidInterface.IpAddressLimitExceeded PrivateIpAddressLimitExceeded "
        "InvalidIPAddress.InUse InvalidTime InvalidID VolumeIOPSLimit AttachmentLimitExceeded "
        "InvalidUserData.Malformed InvalidSpotInstanceRequestID.Malformed",
        Meaning(InvalidRequest),
    ),
    # A setting of the region, which every offer there shares.
    **_each(
        "InvalidAMIID.NotFound InvalidAMIID.Unavailable InvalidAMIID.Malformed InvalidSubnet InvalidSubnetID.NotFound "
        "InvalidSubnetID.Malformed InvalidGroup.NotFound InvalidGroupId.Malformed InvalidSecurityGroupID.NotFound "
        "InvalidSecurityGroupId.Malformed SecurityGroupsPerInstanceLimitExceeded "
        "SecurityGroupsPerInterfaceLimitExceeded InvalidVpcID.NotFound VPCIdNotSpecified VPCResourceNotSpecified "
        "DefaultVpcDoesNotExist InvalidSnapshot.NotFound InvalidKeyPair.NotFound CustomerKeyHasBeenRevoked "
        "InvalidIamInstanceProfileArn.Malformed InvalidCapacityReservationIdNotFoundException "
        "InvalidCapacityReservationIdMalformedException InvalidManifest",
        Meaning(InvalidRequest, Scope.REGION, SETTING_BLOCK_S, "correct the fleet file; `tradewind doctor` tells more"),
    ),
    **_each(
        "Unsupported UnsupportedOperation UnsupportedException UnsupportedTenancy UnsupportedHostConfiguration "
        "UnsupportedInstanceTypeOnHost InvalidAvailabilityZone InvalidZone.NotFound VolumeTypeNotAvailableInZone "
        "UnavailableHostRequirements IncompatibleHostRequirements InvalidTenancy InvalidRegion",
        Meaning(Unsupported),
    ),
    "IdempotentParameterMismatch": Meaning(Conflict),
    # Of Secrets Manager.
    "ResourceExistsException": Meaning(Conflict, hint="there is a secret of this name already"),
    "InvalidRequestException": Meaning(Conflict, hint="the secret is about to be deleted"),
    **_each("InvalidParameterException EncryptionFailure", Meaning(InvalidRequest)),
    "DecryptionFailure": Meaning(AuthError, hint="the key of this secret may not be used: allow kms:Decrypt"),
    "LimitExceededException": Meaning(QuotaExceeded),
    "InternalServiceError": Meaning(Transient),
    "IdempotentInstanceTerminated": Meaning(Conflict, hint="its node has ended: a launch id is used once"),
    "OperationNotPermitted": Meaning(Conflict, hint="take its termination protection away"),
    **_each(
        "IncorrectInstanceState InvalidInstanceState IncorrectState InvalidState DependencyViolation VolumeInUse "
        "InvalidNetworkInterface.InUse Resource.AlreadyAssociated",
        Meaning(Conflict, hint="something still uses it"),
    ),
    **_each(
        "InvalidInstanceID.NotFound InvalidVolume.NotFound InvalidNetworkInterfaceID.NotFound "
        "NetworkInterfaceNotFoundException InvalidSpotInstanceRequestID.NotFound NoSuchResourceException "
        "ResourceNotFoundException NoSuchEntity",
        Meaning(NotFound),
    ),
}


def from_code(code: str, message: str, status: int, operation: str, region: str) -> ProviderError:
    """The error that an answer of the cloud stands for."""
    meaning = MEANINGS.get(code)
    said = f"{region}: {operation} was refused: {code}: {message}"
    if meaning is None and status >= 500:
        logger.error(
            "AWS answers %s in %s with an unknown code %s (HTTP %s): %s", operation, region, code, status, message
        )
        return Transient(said, cloud="aws", code=code)
    if meaning is None:
        logger.error(
            "AWS refuses %s in %s with an unknown code %s (HTTP %s): %s", operation, region, code, status, message
        )
        hint = "please report this code; the next best offer is tried meanwhile"
        return InvalidRequest(said, hint, cloud="aws", code=code, scope=Scope.OFFER, block_s=UNKNOWN_BLOCK_S)
    hint = meaning.hint
    if meaning.error is AuthError and not hint:
        permission = f"{_SERVICES.get(operation, 'ec2')}:{operation}"
        hint = (
            f"the permission {permission} is needed: `tradewind doctor --cloud aws`" if code in DENIED else CREDENTIALS
        )
    return meaning.error(said, hint, cloud="aws", code=code, scope=meaning.scope, block_s=meaning.block_s)


@contextmanager
def translated(operation: str, region: str, *, changes: bool = False) -> Iterator[None]:
    """Errors of the SDK inside become ours. `changes`: a call without an answer may have been carried out."""
    from botocore import exceptions as sdk
    from botocore.parsers import ResponseParserError

    try:
        yield
    except sdk.ClientError as error:
        raise _answered(error, operation, region) from error
    except sdk.ConnectionError as error:  # it was never sent
        raise Transient(f"{region}: {operation}: {error}", cloud="aws", code=type(error).__name__) from error
    except (sdk.HTTPClientError, sdk.IncompleteReadError, ResponseParserError) as error:
        lost = AmbiguousOutcome if changes else Transient
        raise lost(f"{region}: {operation} has no answer: {error}", cloud="aws", code=type(error).__name__) from error
    except (sdk.ParamValidationError, sdk.ValidationError) as error:
        raise InvalidRequest(f"{region}: {operation}: {error}", cloud="aws", code=type(error).__name__) from error
    except sdk.BotoCoreError as error:
        raise _not_sent(error, operation, region) from error


def _answered(error: ClientError, operation: str, region: str) -> ProviderError:
    told = error.response.get("Error", {})
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return from_code(told.get("Code", ""), told.get("Message", ""), status, operation, region)


def _not_sent(error: Exception, operation: str, region: str) -> ProviderError:
    """What the SDK finds wrong before it sends is nearly always about credentials."""
    name = type(error).__name__
    if any(word in name for word in ("Credential", "Token", "SSO", "Login", "Profile")):
        hint = CREDENTIALS
        return AuthError(f"{region}: {operation}: {error}", hint, cloud="aws", code=name)
    logger.error("the AWS SDK fails in %s in %s: %s: %s", operation, region, name, error)
    return InvalidRequest(f"{region}: {operation}: {error}", cloud="aws", code=name, block_s=UNKNOWN_BLOCK_S)
