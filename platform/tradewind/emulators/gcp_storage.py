"""The emulated Cloud Storage: buckets and objects in memory, as pyarrow's client uses them for a checkpoint store.

Simulated: objects and ranges of them, resumable uploads in parts, listings with prefix, delimiter and pages, deletion,
missing buckets and objects. Not: generations to go back to, conditions, copies, access lists.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import uuid
from dataclasses import dataclass, field
from urllib.parse import unquote

from tradewind.emulators.gcp_http import JSON, Answer, Refused, Request
from tradewind.emulators.gcp_state import Timeline

_OBJECTS = re.compile(r"(?P<how>/upload|/download)?/storage/v1/b/(?P<bucket>[^/]+)/o(?:/(?P<name>[^/]+))?")


@dataclass
class Upload:
    bucket: str
    name: str
    content: bytearray = field(default_factory=bytearray)


@dataclass
class CloudStorage:
    time: Timeline
    page_size: int
    url: str = ""
    buckets: dict[str, dict[str, tuple[bytes, JSON]]] = field(default_factory=dict)  # content, and what is told of it
    uploads: dict[str, Upload] = field(default_factory=dict)
    _generations: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def answer(self, request: Request) -> Answer:
        matched = _OBJECTS.fullmatch(request.path)
        if matched is None:
            raise Refused(404, "notFound", f"{request.method} {request.path} is not emulated")
        bucket, name = unquote(matched["bucket"]), unquote(matched["name"] or "")
        if bucket not in self.buckets:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        if matched["how"] == "/upload":
            return self._upload(request, bucket)
        if not name:
            return 200, self._list(request, bucket)
        if name not in self.buckets[bucket]:
            raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
        content, told = self.buckets[bucket][name]
        if request.method == "DELETE":
            del self.buckets[bucket][name]
            return 204, ""
        if request.query.get("alt") == "media" or matched["how"] == "/download":
            return _media(request, content, told)
        return 200, told

    def _list(self, request: Request, bucket: str) -> JSON:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        items: list[JSON | str] = []
        for name, (_, told) in sorted(self.buckets[bucket].items()):
            folder, cut, _ = name.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
            entry = f"{prefix}{folder}{cut}" if cut else told
            if name.startswith(prefix) and entry not in items:
                items.append(entry)
        start = int(request.query.get("pageToken") or 0)
        end = start + min(self.page_size, int(request.query.get("maxResults") or 1000))
        page = items[start:end]
        more = {"nextPageToken": str(end)} if end < len(items) else {}
        folders = [each for each in page if isinstance(each, str)]
        return {
            "kind": "storage#objects",
            "items": [each for each in page if each not in folders],
            "prefixes": folders,
            **more,
        }

    def _upload(self, request: Request, bucket: str) -> Answer:
        if request.method == "POST":
            if request.query.get("uploadType") != "resumable":
                raise Refused(400, "invalid", "only resumable uploads are emulated")
            number = uuid.uuid4().hex
            self.uploads[number] = Upload(bucket, request.query.get("name") or str(request.body["name"]))
            link = f"{self.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={number}"
            return 200, "", {"Location": link}
        upload = self.uploads.get(request.query.get("upload_id", ""))
        if upload is None:
            raise Refused(410, "gone", "The upload is over.")
        return self._continue(request, upload)

    def _continue(self, request: Request, upload: Upload) -> Answer:
        """`Content-Range: bytes 0-99/*` goes on, `.../100` is the last one, and `bytes */*` only asks."""
        place = re.fullmatch(r"bytes (\*|(\d+)-(\d+))/(\*|\d+)", request.headers.get("content-range", "bytes */0"))
        if place is None or (place[2] and int(place[2]) != len(upload.content)):
            raise Refused(400, "invalid", f"The range {request.headers.get('content-range')} does not fit.")
        upload.content += request.raw
        if place[4] == "*" or int(place[4]) > len(upload.content):
            so_far = {"Range": f"bytes=0-{len(upload.content) - 1}"} if upload.content else {}
            return 308, "", so_far
        del self.uploads[request.query["upload_id"]]
        return 200, self.put(upload.bucket, upload.name, bytes(upload.content))

    def put(self, bucket: str, name: str, content: bytes) -> JSON:
        stamp = self.time.stamp()
        told: JSON = {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(next(self._generations)),
            "metageneration": "1",
            "size": str(len(content)),
            "md5Hash": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
            "timeCreated": stamp,
            "updated": stamp,
        }
        self.buckets[bucket][name] = (content, told)
        return told


def _media(request: Request, content: bytes, told: JSON) -> Answer:
    headers = {"x-goog-generation": told["generation"], "x-goog-stored-content-length": told["size"]}
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
    if wanted is None:
        return 200, content, headers
    start, end = int(wanted[1]), min(int(wanted[2] or len(content) - 1), len(content) - 1)
    if start >= len(content):
        raise Refused(416, "requestedRangeNotSatisfiable", "The range cannot be satisfied.")
    return 206, content[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
