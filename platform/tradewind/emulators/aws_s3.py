"""The emulated S3: buckets and objects in memory, as far as a checkpoint store uses them, behind the same identities.

Simulated: objects and ranges of them, uploads in parts, listings with prefix, delimiter and pages, deletion of one and
of many, missing buckets and keys. Not: versions, copies, access lists, storage classes; parts may be of any size.
"""

from __future__ import annotations

import hashlib
import io
import re
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qsl, unquote, urlsplit

from tradewind.emulators.aws_metadata import Answer
from tradewind.emulators.aws_wire import Refused, iso, to_xml

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_ACTIONS = {"GET": "GetObject", "HEAD": "GetObject", "PUT": "PutObject", "POST": "PutObject", "DELETE": "DeleteObject"}


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    bucket: str
    key: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path.lstrip("/")).partition("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(method, bucket, key, query, headers, _payload(headers, body))

    @property
    def right(self) -> tuple[str, str]:
        """Action and resource, as a policy names them."""
        if not self.key:
            deleting = self.method == "POST" and "delete" in self.query
            action = "DeleteObject" if deleting else "CreateBucket" if self.method == "PUT" else "ListBucket"
            return f"s3:{action}", f"arn:aws:s3:::{self.bucket}{'/*' if deleting else ''}"
        return f"s3:{_ACTIONS[self.method]}", f"arn:aws:s3:::{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class Object:
    content: bytes
    at_s: float

    @property
    def headers(self) -> dict[str, str]:
        return {"ETag": _etag(self.content), "Last-Modified": formatdate(self.at_s, usegmt=True)}


@dataclass
class Storage:
    clock: Callable[[], float]
    page_size: int = 1000
    buckets: dict[str, dict[str, Object]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)  # parts by upload id

    def answer(self, call: Call) -> Answer:
        if not call.key:
            return self._bucket(call)
        if call.bucket not in self.buckets:
            raise Refused("NoSuchBucket", "The specified bucket does not exist", 404)
        if "uploads" in call.query or "uploadId" in call.query:
            return self._upload(call)
        handle = {"PUT": self._put, "GET": self._get, "HEAD": self._get, "DELETE": self._delete}.get(call.method)
        if handle is None or "x-amz-copy-source" in call.headers:
            raise Refused("NotImplemented", f"{call.method} {call.key} is not emulated", 501)
        return handle(call)

    # --- buckets ---

    def _bucket(self, call: Call) -> Answer:
        if call.method == "PUT":
            self.buckets.setdefault(call.bucket, {})
            return Answer(200, b"")
        if call.bucket not in self.buckets:
            raise Refused("NoSuchBucket", "The specified bucket does not exist", 404)
        if call.method == "POST" and "delete" in call.query:
            return self._delete_many(call)
        if call.method == "GET" and "location" in call.query:
            return _xml("LocationConstraint", {})
        return self._list(call) if call.method == "GET" else Answer(200, b"")

    def _list(self, call: Call) -> Answer:
        """Keys, and below a delimiter the folders that they make; both count for a page."""
        prefix, delimiter = call.query.get("prefix", ""), call.query.get("delimiter", "")
        found: dict[str, Object | None] = {}
        for key, each in sorted(self.buckets[call.bucket].items()):
            rest = key.removeprefix(prefix)
            if key.startswith(prefix):
                folder, cut, _ = rest.partition(delimiter) if delimiter else (rest, "", "")
                found.setdefault(prefix + folder + cut if cut else key, None if cut else each)
        start = int(call.query.get("continuation-token") or 0)
        end = start + min(self.page_size, int(call.query.get("max-keys", "1000")))
        page, more = list(found.items())[start:end], end < len(found)
        body = to_xml({"Name": call.bucket, "Prefix": prefix, "KeyCount": len(page), "IsTruncated": more})
        body += to_xml({"NextContinuationToken": str(end) if more else None})
        return _page(body + "".join(_listed(name, each) for name, each in page))

    def _delete_many(self, call: Call) -> Answer:
        keys = [each.text or "" for each in ElementTree.fromstring(call.body).iter() if each.tag.endswith("Key")]
        for key in keys:
            self.buckets[call.bucket].pop(key, None)
        return _page("".join(to_xml({"Deleted": {"Key": key}}) for key in keys), "DeleteResult")

    # --- objects ---

    def _put(self, call: Call) -> Answer:
        made = self.buckets[call.bucket][call.key] = Object(call.body, self.clock())
        return Answer(200, b"", headers={"ETag": made.headers["ETag"]})

    def _get(self, call: Call) -> Answer:
        found = self.buckets[call.bucket].get(call.key)
        if found is None:
            raise Refused("NoSuchKey", "The specified key does not exist.", 404)
        content, headers = found.content, {**found.headers, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
        if wanted is None:
            return Answer(200, content, "binary/octet-stream", headers=headers)
        start, end = int(wanted[1]), min(int(wanted[2] or len(content) - 1), len(content) - 1)
        if start >= len(content):
            raise Refused("InvalidRange", "The requested range is not satisfiable", 416)
        told = {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        return Answer(206, content[start : end + 1], "binary/octet-stream", headers=told)

    def _delete(self, call: Call) -> Answer:
        self.buckets[call.bucket].pop(call.key, None)
        return Answer(204, b"")

    def _upload(self, call: Call) -> Answer:
        if "uploads" in call.query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            told = {"Bucket": call.bucket, "Key": call.key, "UploadId": upload}
            return _xml("InitiateMultipartUploadResult", told)
        upload = call.query["uploadId"]
        if upload not in self.uploads:
            raise Refused("NoSuchUpload", "The specified upload does not exist.", 404)
        if call.method == "PUT":
            self.uploads[upload][int(call.query["partNumber"])] = call.body
            return Answer(200, b"", headers={"ETag": _etag(call.body)})
        parts = self.uploads.pop(upload)
        if call.method == "DELETE":
            return Answer(204, b"")
        content = b"".join(parts[number] for number in sorted(parts))
        self.buckets[call.bucket][call.key] = Object(content, self.clock())
        told = {"Bucket": call.bucket, "Key": call.key, "ETag": _etag(content)}
        return _xml("CompleteMultipartUploadResult", told)


def refusal(refused: Refused) -> Answer:
    body = to_xml({"Error": {"Code": refused.code, "Message": refused.message, "RequestId": "emulated"}})
    return Answer(refused.status, f'<?xml version="1.0" encoding="UTF-8"?>{body}'.encode(), "application/xml")


def unchunked(stream: io.BufferedIOBase) -> bytes:
    """A body in chunks, each after its size, until one of size 0; then lines up to an empty one."""
    found = bytearray()
    while size := int(stream.readline().split(b";")[0], 16):
        found += stream.read(size)
        stream.readline()
    while stream.readline().strip():
        continue
    return bytes(found)


def _payload(headers: Mapping[str, str], body: bytes) -> bytes:
    """SDKs send their own chunks inside of the body, with a checksum behind them."""
    length = headers.get("x-amz-decoded-content-length")
    found = body if length is None else unchunked(io.BytesIO(body))
    if length is not None and int(length) != len(found):
        raise Refused("IncompleteBody", f"{length} bytes were announced, {len(found)} came")
    return found


def _listed(name: str, found: Object | None) -> str:
    if found is None:
        return to_xml({"CommonPrefixes": {"Prefix": name}})
    told = {"Key": name, "LastModified": iso(found.at_s), "ETag": _etag(found.content), "Size": len(found.content)}
    return to_xml({"Contents": {**told, "StorageClass": "STANDARD"}})


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, told: Mapping[str, str]) -> Answer:
    return _page(to_xml(told), name)


def _page(body: str, name: str = "ListBucketResult") -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="{_NAMESPACE}">{body}</{name}>'
    return Answer(200, text.encode(), "application/xml")
