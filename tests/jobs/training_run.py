"""A training script as a process, for tests that take its nodes and workers away: what it has written, and waiting."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tradewind.jobs.sample_ledger import Audit, audit
from tradewind.model import JOB_ID_ENV

SCRIPT = Path(__file__).with_name("fit_script.py")
# A sum in another order differs in the last bits, and training carries the difference on.
NOISE = 1e-11


class Training:
    def __init__(self, folder: Path, env: dict[str, str], options: dict[str, Any]) -> None:
        self.folder, self.options = folder, options
        self.log = (folder / "log").open("a")
        command = [sys.executable, str(SCRIPT), "fit", str(folder), json.dumps(options)]
        self.process = subprocess.Popen(
            command, env=env | {JOB_ID_ENV: options["job_id"]}, stdout=self.log, stderr=subprocess.STDOUT
        )

    def put(self, name: str, value: float) -> None:
        aside = self.folder / f"{name}.tmp"
        aside.write_text(str(value))
        aside.rename(self.folder / name)

    def curve(self) -> list[dict[str, Any]]:
        path = self.folder / "curve.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def workers(self) -> dict[int, dict[str, Any]]:
        """By rank: the worker that has said last that it has it."""
        found = [json.loads(path.read_text()) for path in self.folder.glob("worker-*.json")]
        return {entry["rank"]: entry for entry in sorted(found, key=lambda entry: float(entry["at_s"]))}

    def wait_until(self, holds: Callable[[], bool], what: str, timeout_s: float = 150.0) -> None:
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end or self.process.poll() is not None:
                pytest.fail(f"never came: {what}\n{self.curve()[-1:]}\n{self.tail()}")
            time.sleep(0.1)

    def wait_for_group(self, workers: int, more_steps: int = 2) -> None:
        """Until `workers` take steps, and a few more."""
        self.wait_until(lambda: any(e["workers"] == workers for e in self.curve()[-1:]), f"{workers} workers")
        step = self.curve()[-1]["step"]
        self.wait_until(lambda: self.curve()[-1]["step"] >= step + more_steps, f"steps of {workers} workers")

    def end(self, timeout_s: float = 150.0) -> None:
        assert self.process.wait(timeout_s) == 0, self.tail()

    def tail(self) -> str:
        return (self.folder / "log").read_text()[-5000:]

    def check(self) -> Audit:
        """Nothing skipped, nothing repeated, the losses of an undisturbed run."""
        subprocess.run(
            [sys.executable, str(SCRIPT), "plain", str(self.folder), json.dumps(self.options)], check=True, timeout=120
        )
        plain = json.loads((self.folder / "plain.json").read_text())
        told = {entry["step"]: entry["loss"] for entry in self.curve()}
        for step, expected in enumerate(plain, 1):
            assert told.get(step) == (None if expected is None else pytest.approx(expected, rel=NOISE)), step
        found = audit(self.folder / "ledger")
        assert (found.last_step, found.skipped, found.repeated, found.misplaced_steps) == (len(plain), 0, 0, 0)
        return found


@contextlib.contextmanager
def training(folder: Path, env: dict[str, str], pace_s: float, **options: Any) -> Iterator[Training]:
    (folder / "pace").write_text(str(pace_s))
    run = Training(folder, env, {"job_id": folder.name.replace("_", "-"), **options})
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait(30)
        run.log.close()
