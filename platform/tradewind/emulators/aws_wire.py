"""The EC2 query protocol, as far as the emulated calls need it: form fields in, XML out. Pure.

No model of the SDK is used here: what the SDK sends and understands is then tested, not assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d{8}/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """An answer of the service, not a defect of the emulator."""

    code: str
    message: str
    status: int = 400


@dataclass(frozen=True, slots=True)
class Scope:
    """Who asks, and where; from the request's signature."""

    access_key: str
    region: str
    service: str

    @classmethod
    def of(cls, authorization: str) -> Scope | None:
        found = _CREDENTIAL.search(authorization)
        return cls(*found.groups()) if found else None


class Form:
    """The fields of a request: `Filter.1.Name=...`."""

    def __init__(self, body: bytes) -> None:
        self.fields = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body)))
        self.action = self.fields.get("Action", "")

    def get(self, key: str, default: str = "") -> str:
        return self.fields.get(key, default)

    def require(self, key: str) -> str:
        if key not in self.fields:
            raise Refused("MissingParameter", f"The request must contain the parameter {key}")
        return self.fields[key]

    def is_true(self, key: str) -> bool:
        return self.get(key) == "true"

    def many(self, prefix: str) -> list[str]:
        """`prefix.1`, `prefix.2`, ..."""
        return [value for key, value in self.fields.items() if re.fullmatch(rf"{re.escape(prefix)}\.\d+", key)]

    def count(self, prefix: str) -> int:
        numbers = (re.match(rf"{re.escape(prefix)}\.(\d+)", key) for key in self.fields)
        return max((int(number.group(1)) for number in numbers if number), default=0)

    def filters(self) -> dict[str, list[str]]:
        names = range(1, self.count("Filter") + 1)
        return {self.require(f"Filter.{n}.Name"): self.many(f"Filter.{n}.Value") for n in names}

    def allow(self, known: Iterable[str]) -> None:
        """EC2 refuses fields that it does not know. `N` stands for a number."""
        allowed = {"Action", "Version", "DryRun", *known}
        for key in self.fields:
            if _NUMBER.sub("N", key) not in allowed:
                raise Refused("UnknownParameter", f"The parameter {key} is not recognized")


def matches(filters: Mapping[str, Sequence[str]], values: Mapping[str, str], tags: Mapping[str, str]) -> bool:
    """All filters, each by any of its values; `*` and `?` are wild."""
    for name, wanted in filters.items():
        if name.startswith("tag:"):
            value = tags.get(name.removeprefix("tag:"))
        elif name in values:
            value = values[name]
        else:
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
        if value is None or not any(fnmatchcase(value, pattern) for pattern in wanted):
            return False
    return True


def page(items: Sequence[Any], form: Form, largest: int) -> tuple[Sequence[Any], str]:
    """A page of at most `largest`, and the token of the next one."""
    size = int(form.get("MaxResults", str(largest)))
    if not 5 <= size <= 1000:
        raise Refused("InvalidParameterValue", f"Value ( {size} ) for parameter maxResults is invalid")
    token = form.get("NextToken")
    if token and not re.fullmatch(r"page-\d+", token):
        raise Refused("InvalidNextToken", "The token is not valid")
    start = int(token.removeprefix("page-")) if token else 0
    end = start + min(size, largest)
    return items[start:end], f"page-{end}" if end < len(items) else ""


def to_xml(value: Any) -> str:
    """Dicts become elements, lists become <item>s. None is left out."""
    if isinstance(value, Mapping):
        return "".join(f"<{key}>{to_xml(each)}</{key}>" for key, each in value.items() if each is not None)
    if isinstance(value, list | tuple):
        return "".join(f"<item>{to_xml(each)}</item>" for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    return escape(str(value))


def response(action: str, result: Mapping[str, Any]) -> bytes:
    body, name = to_xml({"requestId": "emulated", **result}), f"{action}Response"
    return f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="{NAMESPACE}">{body}</{name}>'.encode()


def error_response(refused: Refused) -> bytes:
    body = to_xml({"Errors": {"Error": {"Code": refused.code, "Message": refused.message}}, "RequestID": "emulated"})
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{body}</Response>'.encode()


def tag_set(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


def iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
