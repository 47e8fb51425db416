"""Storage that is slow, refuses, or has no room, under a run that goes on: nothing of it is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from training_run import training
from werkzeug.serving import make_server

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Bucket:
    """S3 as moto speaks it, and as slow as it is told to be."""

    app: Any
    write_s: float = 0.0
    refuses: bool = False
    writes: int = 0
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            self.writes += 1
            time.sleep(self.write_s)
            if self.refuses:
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [b"<Error><Code>AccessDenied</Code><Message>not now</Message></Error>"]
        return self.app(environ, start_response)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto.server")
    found = Bucket(moto.DomainDispatcherApplication(moto.create_backend_app))
    server = make_server("127.0.0.1", 0, found, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=found.env["AWS_ENDPOINT_URL"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="tradewind")
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_bucket_that_is_slow_and_then_refuses(cell: Any, tmp_path: Path, bucket: Bucket) -> None:
    """Steps go on while a save takes seconds; a worker is lost meanwhile. A second run finds the end of the first."""
    where = {"storage": "s3://tradewind/runs", "worker_env": bucket.env, "workers": [1, 2], "checkpoint_every": 10}
    bucket.write_s = 0.4
    with cell.nodes(1, cpus=2, gpus=2):
        with training(tmp_path, cell.env | bucket.env, 0.1, steps=90, **where) as run:
            run.wait_for_group(2, more_steps=12)
            assert bucket.writes  # a save is under way, and steps are taken
            os.kill(run.workers()[1]["pid"], signal.SIGKILL)
            run.wait_for_group(1)
            bucket.refuses = True
            run.wait_until(lambda: "was not written" in run.tail(), "a refused save")
            bucket.write_s, bucket.refuses = 0.0, False
            run.put("pace", 0.0)
            run.end()
            assert run.check().recomputed_steps == 0
        with training(tmp_path, cell.env | bucket.env, 0.0, steps=100, **where) as run:
            run.end()
            assert run.check().recomputed_steps == 0  # it went on after step 90


def test_a_disk_without_room_costs_checkpoints_not_steps(cell: Any, tmp_path: Path) -> None:
    options = {"workers": [2, 2], "checkpoint_every": 10, "ballast": 200_000, "full_at": [15, 60]}
    with cell.nodes(1, cpus=2, gpus=2), training(tmp_path, cell.env, 0.05, steps=100, **options) as run:
        run.wait_until(lambda: "File too large" in run.tail(), "a message about the disk")
        run.end()
        assert run.check().recomputed_steps == 0
        names = [path.name for path in (tmp_path / "run").iterdir()]
        assert not [name for name in names if "0030" in name or "0040" in name]
        assert [name for name in names if "0100" in name]
