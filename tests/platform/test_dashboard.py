"""The web page: what is served, and what a real browser makes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tradewind.events import DecisionRecorded
from tradewind.model import JobSpec
from tradewind.server import RunningServer, create_app, serve
from tradewind.testing import FakeController

TOKEN = "a-token-for-tests"
EVIL = "<img src=x onerror=document.title='taken'>"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-quic", "--virtual-time-budget=6000"]


@pytest.fixture
def fake() -> FakeController:
    fake = FakeController("harbour")
    job = fake.submit(JobSpec(name=EVIL, entrypoint="python train.py", min_workers=1, max_workers=2))
    fake.add_node("tw-1", job_id=job.job_id)
    fake.run(job.job_id)
    fake.step(job.job_id, 40, total_steps=100, loss=0.25)
    reason = "cheapest that fits"
    fake.record(DecisionRecorded(at_s=fake.now_s, action="launch", subject="tw-1", reason=reason))
    return fake


@pytest.fixture
def running(fake: FakeController) -> Iterator[RunningServer]:
    with serve(create_app(fake, TOKEN)) as server:
        yield server


def test_the_page_needs_no_token_holds_no_data_and_loads_nothing_from_elsewhere(running: RunningServer) -> None:
    with httpx.Client(base_url=running.url, trust_env=False) as anybody:
        page = anybody.get("/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
            found = anybody.get(path)
            assert found.status_code == 200, path
            assert not re.search(r"https?://", found.text), path
        assert "harbour" not in page.text
        assert not re.search(r'(?:src|href)="(?:https?:)?//', page.text)


def test_every_element_that_the_script_asks_for_is_there() -> None:
    folder = Path(__file__).parents[2] / "platform" / "tradewind" / "dashboard"
    asked = set(re.findall(r'at\("([a-z-]+)"\)', (folder / "app.js").read_text()))
    there = set(re.findall(r'id="([a-z-]+)"', (folder / "index.html").read_text()))
    assert asked <= there


def seen(running: RunningServer, fragment: str, tmp_path: Path) -> str:
    """The page as the browser has it after some seconds."""
    command = ["chromium", *FLAGS, "--dump-dom", f"--user-data-dir={tmp_path}", f"{running.url}/{fragment}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="the Debian package `chromium` is absent")


@pytest.mark.slow
@browser
def test_a_browser_shows_the_fleet_and_takes_names_as_words(running: RunningServer, tmp_path: Path) -> None:
    page = seen(running, f"#token={TOKEN}", tmp_path)
    assert "harbour" in page
    assert 'value="40" max="100"' in page
    assert "cheapest that fits" in page
    assert "&lt;img src=x" in page  # the name of the job, as text
    assert "<title>Tradewind: harbour</title>" in page
    assert TOKEN not in page


@pytest.mark.slow
@browser
@pytest.mark.parametrize("fragment", ["", "#token=wrong"])
def test_without_the_token_a_browser_shows_the_door_alone(
    running: RunningServer, tmp_path: Path, fragment: str
) -> None:
    page = seen(running, fragment, tmp_path)
    assert '<main id="main" hidden' in page
    assert '<form id="door">' in page
    assert "harbour" not in page
