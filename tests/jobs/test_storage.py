"""Every store keeps the same promises: a folder, a bucket by pyarrow, and S3 as moto speaks it."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tradewind.errors import JobError
from tradewind.jobs import storage
from tradewind.jobs.storage import LocalStore, ObjectStore, Store, open_store

pyarrow_fs = pytest.importorskip("pyarrow.fs")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket in a server of moto's, found like any other: by the environment."""
    boto3, server_module = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        boto3.client("s3").create_bucket(Bucket="tradewind")
        yield "s3://tradewind"
    server.stop()


@pytest.fixture(params=["folder", "pyarrow", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(tmp_path / "run")
    if request.param == "pyarrow":
        (tmp_path / "run").mkdir()
        filesystem = pyarrow_fs.SubTreeFileSystem(str(tmp_path), pyarrow_fs.LocalFileSystem())
        (tmp_path / "run" / "one").mkdir()  # object stores have no folders to make
        return ObjectStore(filesystem, "run", "pyarrow")
    return open_store(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def test_what_is_written_is_read_back_in_any_range(store: Store) -> None:
    content = os.urandom(storage.WRITE_BYTES + 17)  # two blocks
    store.write("one/data", memoryview(content))
    assert store.read("one/data") == content
    assert store.read("one/data", 5, 100) == content[5:105]
    assert store.read("one/data", len(content) - 3, 100) == content[-3:]  # it ends before
    assert store.read("one/data", len(content) + 5, 100) == b""
    target = bytearray(100)
    assert store.read_into("one/data", 7, memoryview(target)) == 100
    assert target == content[7:107]
    assert store.read_into("one/data", len(content) - 3, memoryview(target)) == 3
    assert store.read_into("one/data", len(content) + 3, memoryview(target)) == 0


def test_a_put_replaces(store: Store) -> None:
    store.put("one/note", b"first")
    store.put("one/note", b"second, and longer")
    assert store.read("one/note") == b"second, and longer"


def test_listing_and_removing(store: Store) -> None:
    store.put("one/a", b"12345")
    store.put("one/b", b"")
    assert dict(store.listing("one")) == {"a": 5, "b": 0}
    assert dict(store.listing()) == {"one": None}
    assert dict(store.listing("nothing here")) == {}
    store.remove("one/a")
    store.remove("one/a")  # gone already
    assert dict(store.listing("one")) == {"b": 0}
    store.remove("one")
    store.remove("one")
    assert dict(store.listing()) == {}
    with pytest.raises(FileNotFoundError):
        store.read("one/b")


def aligned(num_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, num_bytes))


def test_whole_pages_go_past_the_page_cache_and_the_rest_does_not(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    pages = aligned(8 * storage.PAGE_BYTES)
    pages[:] = os.urandom(pages.nbytes)
    for content in (pages, pages[:-1], pages[:0]):
        store.write("data", content)
        assert store.read("data") == content


@pytest.mark.parametrize("num_bytes", [2 * storage.PAGE_BYTES, 100])
def test_a_full_disk_is_told_and_the_half_written_file_is_gone(tmp_path: Path, num_bytes: int) -> None:
    (tmp_path / "data").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        LocalStore(tmp_path).write("data", aligned(num_bytes))
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "data").is_symlink()


def test_a_disk_that_is_too_full_is_not_filled_up(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(8 << 40)
    with (tmp_path / "sparse").open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with pytest.raises(OSError, match=r"8192.000 GiB to write, .* GiB are free"):
        LocalStore(tmp_path).write("data", memoryview(content))
    assert not (tmp_path / "data").exists()


def test_a_put_that_fails_leaves_the_one_before(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("note", b"before")
    (tmp_path / ".note.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        store.put("note", b"after")
    assert dict(store.listing()) == {"note": 6}
    assert store.read("note") == b"before"


@pytest.mark.parametrize(
    ("where", "kind"),
    [("gs://bucket/run", "GcsFileSystem"), ("abfss://box@account.dfs.core.windows.net/run", "AzureFileSystem")],
)
def test_other_clouds_are_opened_without_being_asked(where: str, kind: str) -> None:
    if not hasattr(pyarrow_fs, kind):
        pytest.skip(f"this pyarrow has no {kind}")
    store: Any = open_store(where)
    assert (type(store._fs).__name__, store.where) == (kind, where)


def test_unknown_places_are_refused_with_what_is_known() -> None:
    with pytest.raises(JobError, match="s3://, gs://, abfs://"):
        open_store("ftp://host/run")


def numbers(step: int) -> dict[str, Any]:
    import torch

    torch.manual_seed(step)
    return {f"x{number}": torch.randn(1000, number + 1) for number in range(4)} | {"note": {"step": step}}


def test_checkpoints_in_a_bucket(bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    from tradewind.jobs.checkpoint import Checkpoints
    from tradewind.jobs.committer import Committer
    from tradewind.jobs.dcp import restore
    from tradewind.jobs.saver import Saver
    from tradewind.jobs.shards import Layout

    checkpoints = Checkpoints.at(f"{bucket}/{tmp_path.name}")
    assert restore(checkpoints, dict) is None
    assert [checkpoints.next_attempt(), checkpoints.next_attempt()] == [1, 2]
    committer = Committer(checkpoints, keep=2)
    savers = [Saver(checkpoints.store, committer.add) for _ in range(2)]
    for step in (10, 20, 30):
        for rank, saver in enumerate(savers):
            saver.begin(numbers(step), step=step, attempt=2, layout=Layout(rank, 2))
            saver.wait()
    assert checkpoints.names() == ["step-00000020-attempt-002", "step-00000030-attempt-002"]

    newest = "step-00000030-attempt-002"
    path = next(f"{newest}/{file}" for file in checkpoints.store.listing(newest) if file.startswith("rank-00001"))
    content = checkpoints.store.read(path)
    content[100] ^= 1
    checkpoints.store.write(path, memoryview(content))
    meta, state = restore(
        checkpoints,
        lambda contents: {
            key: None if like is None else torch.zeros_like(like, device="cpu") for key, like in contents.items()
        },
    ) or pytest.fail("nothing found")
    assert (meta.step, meta.world, state["note"]) == (20, 2, {"step": 20})
    assert all(torch.equal(state[f"x{number}"], numbers(20)[f"x{number}"]) for number in range(4))
    assert "step-00000030-attempt-002 is damaged: rank-00001-" in caplog.text
    for saver in savers:
        saver.close()
