"""What Google Cloud refuses: unknown fields (by the SDK's own schema), bad names, missing parameters, filters that it
does not understand. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tradewind.emulators.gcp_http import JSON, Refused

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
TPU_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_KEY, LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MACHINE = re.compile(r"(e2|n1|n2|n4|c3|c4|a2|a3|a4|g2|g4)-[a-z]+-\d+g?")
CARDS = ("nvidia-tesla-t4", "nvidia-tesla-p4", "nvidia-tesla-p100", "nvidia-tesla-v100")
_MAX_LABELS = 64


def invalid(field: str, value: object, why: str) -> Refused:
    return Refused(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}", "INVALID_ARGUMENT")


def required(field: str) -> Refused:
    return Refused(400, "required", f"Required field '{field}' not specified", "INVALID_ARGUMENT")


def check_schema(body: JSON, message: Any) -> None:
    """Against the SDK's own message type: Google refuses a field that it does not know, and a wrong type."""
    from google.protobuf import json_format

    try:
        json_format.ParseDict(body, message.pb(message()))
    except json_format.ParseError as error:
        text = f"Invalid JSON payload received. {error}"
        raise Refused(400, "badRequest", text, "INVALID_ARGUMENT") from error


def check_labels(labels: Mapping[str, str], field: str = "resource.labels") -> None:
    if len(labels) > _MAX_LABELS:
        raise invalid(field, len(labels), f"at most {_MAX_LABELS} labels")
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            raise invalid(field, f"{key}: {value}", "Label keys and values are of [a-z0-9_-], at most 63 signs")


def check_instance(body: JSON, zone: str) -> None:
    """What does not depend on what else is there."""
    for field in ("name", "machineType", "disks", "networkInterfaces"):
        if not body.get(field):
            raise required(f"resource.{field}")
    if not NAME.fullmatch(body["name"]):
        raise invalid("resource.name", body["name"], f"Must be a match of regex '{NAME.pattern}'")
    check_labels(body.get("labels", {}))
    machine = body["machineType"]
    if f"zones/{zone}/machineTypes/" not in machine or not MACHINE.fullmatch(machine.rpartition("/")[2]):
        raise invalid("resource.machineType", machine, "The referenced machineType does not exist.")
    _check_scheduling(body, machine.rpartition("/")[2])
    for disk in body["disks"]:
        check_labels(disk.get("initializeParams", {}).get("labels", {}), "resource.disks[0].initializeParams.labels")
    keys = [item.get("key") for item in body.get("metadata", {}).get("items", ())]
    if len(set(keys)) != len(keys):
        raise invalid("resource.metadata.items", keys, "Metadata has duplicate keys")


def _check_scheduling(body: JSON, machine: str) -> None:
    scheduling, cards = body.get("scheduling", {}), body.get("guestAccelerators", [])
    spot = scheduling.get("provisioningModel") == "SPOT"
    has_gpu = bool(cards) or machine[:2] in ("a2", "a3", "a4", "g2", "g4")
    for card in cards:
        if card["acceleratorType"].rpartition("/")[2] not in CARDS or not machine.startswith("n1-"):
            raise invalid("resource.guestAccelerators", card["acceleratorType"], "The acceleratorType does not exist.")
    if (has_gpu or spot) and scheduling.get("onHostMaintenance") != "TERMINATE":
        raise Refused(400, "invalid", "Instances with guest accelerators or of SPOT do not support live migration.")
    if spot and scheduling.get("automaticRestart"):
        raise invalid("resource.scheduling.automaticRestart", True, "Spot VMs cannot restart automatically")
    if not spot and scheduling.get("instanceTerminationAction"):
        raise invalid("resource.scheduling.instanceTerminationAction", "", "Only with SPOT or a limited run time")
    affinity = body.get("reservationAffinity", {}).get("consumeReservationType", "")
    if spot and affinity not in ("", "NO_RESERVATION"):
        raise invalid("resource.reservationAffinity", affinity, "Spot VMs cannot consume a reservation")


# --- filters -----------------------------------------------------------------------------------------------------

_TERM = re.compile(r"""\s*\(?\s*([A-Za-z][\w.-]*)\s*(=|!=|:)\s*("[^"]*"|[^\s()"]+)\s*\)?\s*""")


def compile_filter(text: str) -> Callable[[JSON], bool]:
    """Terms `field = "value"` (also != and :), joined by AND or by OR; anything else is refused."""
    if not text:
        return lambda _: True
    words = [word for word in (" AND ", " OR ") if word in text]
    if len(words) > 1:
        raise invalid("filter", text, "this emulator joins by AND or by OR, not by both")
    terms = [_term(part, text) for part in (text.split(words[0]) if words else [text])]
    joined = any if words == [" OR "] else all
    return lambda item: joined(term(item) for term in terms)


def _term(part: str, text: str) -> Callable[[JSON], bool]:
    matched = _TERM.fullmatch(part)
    if matched is None:
        raise invalid("filter", text, "Invalid list filter expression.")
    field, operator, value = matched[1], matched[2], matched[3].strip('"')

    def holds(item: JSON) -> bool:
        found: Any = item
        for name in field.split(".", 1):
            found = found.get(name, "") if isinstance(found, dict) else ""
        if operator == ":":
            return value in str(found)
        return (str(found) == value) is (operator == "=")

    return holds
