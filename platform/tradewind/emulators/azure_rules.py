"""What Azure refuses: unknown fields (by the SDK's own schema), bad names, missing or forbidden properties. Pure."""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import re
import sys
import typing
from collections.abc import Mapping
from typing import Any

from tradewind.emulators.azure_http import JSON, Refused

VM_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?")
RESOURCE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,78}[A-Za-z0-9_])?")
ADMIN_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_KEY = re.compile(r"(ssh-rsa|ssh-ed25519) [A-Za-z0-9+/=]+( .*)?")
_TAG_NAME_BARRED = re.compile(r"[<>%&\\?/]")
_MAX_TAGS, _MAX_TAG_NAME, _MAX_TAG_VALUE = 50, 512, 256
_RESERVED_NAMES = ("admin", "administrator", "root", "test", "user", "guest")


def invalid(parameter: str, why: str) -> Refused:
    return Refused(400, "InvalidParameter", f"The value of parameter {parameter} is invalid. {why}")


def required(parameter: str) -> Refused:
    return Refused(400, "InvalidParameter", f"Required parameter '{parameter}' is missing (null).")


def check_schema(body: Any, shape: Any, where: str = "") -> None:
    """Against the SDK's own types: Azure refuses a member that it does not know."""
    if hasattr(shape, "__required_keys__"):  # a TypedDict, be it of typing or of typing_extensions
        if not isinstance(body, dict):
            raise Refused(400, "InvalidRequestContent", f"{where or 'the body'} must be an object")
        known = _members(shape)
        for key, value in body.items():
            if key not in known:
                message = f"Could not find member '{key}' on object of type '{shape.__name__}'. Path '{where}{key}'."
                raise Refused(400, "InvalidRequestContent", message)
            check_schema(value, known[key], f"{where}{key}.")
    elif typing.get_origin(shape) is list and isinstance(body, list):
        for number, item in enumerate(body):
            check_schema(item, typing.get_args(shape)[0], f"{where[:-1]}[{number}].")


@functools.cache
def _members(shape: Any) -> Mapping[str, Any]:
    """The SDK's types name its enums without importing them."""
    module = sys.modules[shape.__module__]
    models = importlib.import_module(shape.__module__.replace(".types", ".models"))
    return typing.get_type_hints(shape, {**vars(models), **vars(module)})


def check_tags(tags: Mapping[str, str]) -> None:
    if len(tags) > _MAX_TAGS:
        raise Refused(400, "TooManyTags", f"The number of tags must not exceed {_MAX_TAGS}.")
    for name, value in tags.items():
        if not name or _TAG_NAME_BARRED.search(name) or len(name) > _MAX_TAG_NAME:
            raise Refused(400, "InvalidTagNameCharacters", f"The tag name '{name}' has reserved characters.")
        if not isinstance(value, str) or len(value) > _MAX_TAG_VALUE:
            raise Refused(400, "InvalidTagValue", f"The value of tag '{name}' is longer than {_MAX_TAG_VALUE}.")


def check_vm(name: str, body: JSON) -> None:
    """What does not depend on what else is there."""
    properties = body.get("properties", {})
    if not VM_NAME.fullmatch(name):
        raise Refused(400, "InvalidResourceName", f"'{name}' is not a name for a virtual machine")
    if not body.get("location"):
        raise Refused(400, "LocationRequired", "The location property is required for this definition.")
    for member in ("hardwareProfile", "storageProfile", "osProfile", "networkProfile"):
        if not properties.get(member):
            raise required(member)
    check_tags(body.get("tags", {}))
    _check_system(properties["osProfile"])
    _check_priority(properties)
    disk = properties["storageProfile"].get("osDisk", {})
    if disk.get("createOption") != "FromImage":
        raise invalid("osDisk.createOption", "only FromImage is emulated")
    if not properties["networkProfile"].get("networkInterfaces"):
        raise required("networkProfile.networkInterfaces")


def _check_system(profile: JSON) -> None:
    admin, linux = profile.get("adminUsername", ""), profile.get("linuxConfiguration", {})
    if not profile.get("computerName"):
        raise required("osProfile.computerName")
    if not ADMIN_NAME.fullmatch(admin) or admin in _RESERVED_NAMES:
        raise invalid("adminUsername", f"'{admin}' is not allowed")
    keys = linux.get("ssh", {}).get("publicKeys", [])
    if linux.get("disablePasswordAuthentication") and not keys:
        message = "Authentication using SSH must be configured if password authentication is disabled."
        raise Refused(400, "InvalidParameter", message)
    if not keys and not profile.get("adminPassword"):
        raise required("adminPassword")
    for key in keys:
        if not _KEY.fullmatch(key.get("keyData", "")) or key.get("path") != f"/home/{admin}/.ssh/authorized_keys":
            raise invalid("linuxConfiguration.ssh.publicKeys.keyData", "it is no public key, or its path is wrong")
    custom = profile.get("customData", "")
    try:
        base64.b64decode(custom, validate=True)
    except binascii.Error as error:
        raise invalid("customData", "Custom data in OSProfile must be in Base64 encoding") from error
    if len(custom) > 87380:
        raise invalid("customData", "Custom data in OSProfile must be at most 64 KiB")


def _check_priority(properties: JSON) -> None:
    spot = properties.get("priority") == "Spot"
    if properties.get("priority", "Regular") not in ("Regular", "Spot", "Low"):
        raise invalid("priority", "must be Regular or Spot")
    if properties.get("evictionPolicy") and not spot:
        message = "Eviction policy can be set only on Azure Spot Virtual Machines."
        raise Refused(409, "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", message)
    price = properties.get("billingProfile", {}).get("maxPrice")
    if price is not None and not spot:
        message = "Max price is supported only for Azure Spot Virtual Machines."
        raise Refused(409, "MaxPriceIsSupportedOnlyForAzureSpotVirtualMachines", message)
    if price is not None and price != -1 and price <= 0:
        raise Refused(409, "MaxPriceValueInvalid", "The max price must be -1 or greater than zero.")
    if spot and properties.get("capacityReservation"):
        raise invalid("capacityReservation", "Spot machines cannot use a capacity reservation")


# --- filters -----------------------------------------------------------------------------------------------------

_TERM = re.compile(r"\s*(\w+) (eq|ge|le) '([^']*)'\s*")


def terms(text: str) -> list[tuple[str, str, str]]:
    """(field, operator, value) of `a eq 'x' and b ge 'y'`; anything else is refused."""
    found = [_TERM.fullmatch(part) for part in text.split(" and ")]
    if not all(found):
        raise Refused(400, "BadRequest", f"The filter is not valid: {text}")
    return [(each[1], each[2], each[3]) for each in found if each]
