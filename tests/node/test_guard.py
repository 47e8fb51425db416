"""The guard over a node that is up, with any process in Ray's place."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tradewind.certificates import DAY_S, Authority, Identity, renew_at_s
from tradewind.errors import RayError
from tradewind.node.boot_plan import BootPlan
from tradewind.node.guard import Up, stand_guard
from tradewind.node.ray_node import NodeFiles, has_raylet

CA = Authority.make("cell", time.time())


def identity(life_s: float = 90 * DAY_S, since_s: float = 0.0) -> Identity:
    return CA.identity(["127.0.0.9"], time.time() - since_s, life_s)


def plan(**more: object) -> BootPlan:
    given = {
        "head_address": "127.0.0.8:1",
        "join_url": "https://127.0.0.8:1",
        "role": "worker",
        "dead_man_s": 0.2,
        **more,
    }
    return BootPlan("f", "c", "n1", "local", "here", secret="s", ca_pem=CA.cert_pem, **given)  # type: ignore[arg-type]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    files = NodeFiles(tmp_path)
    first = identity()
    files.write_identity(first)
    files.ray_log.write_text("last words\n")
    ray = subprocess.Popen(["sleep", "600"])
    yield Up(plan(), files, ray, first.cert_pem, answers=lambda: True, renew=lambda: None)
    ray.kill()
    ray.wait()


def test_it_stays_while_its_head_answers_and_ends_with_ray_when_told(up: Up) -> None:
    stop, looks = threading.Event(), []

    def answers() -> bool:
        looks.append(1)
        if len(looks) == 20:  # ten times its patience
            stop.set()
        return True

    up.answers = answers
    assert stand_guard(up, stop) == ""
    assert up.ray.poll() is not None


def test_it_ends_when_its_head_is_gone(up: Up) -> None:
    up.answers = lambda: False
    assert stand_guard(up, threading.Event()).startswith("its head has not answered")
    assert up.ray.poll() is not None


def test_it_ends_when_ray_has_ended(up: Up) -> None:
    up.ray.kill()
    assert stand_guard(up, threading.Event()) == "Ray has ended with status -9: last words"


def test_it_ends_when_its_node_was_drained(up: Up, tmp_path: Path) -> None:
    """Ray's own command goes on then, with all but the raylet."""
    (tmp_path / "raylet").symlink_to("/bin/sleep")
    with subprocess.Popen(["bash", "-c", f"{tmp_path}/raylet 0.5; exec sleep 600"]) as ray:
        up.ray, looks = ray, []

        def runs() -> bool:
            looks.append(has_raylet(ray))
            return looks[-1] or True not in looks  # it may not have begun yet

        up.has_raylet = runs
        assert stand_guard(up, threading.Event()) == "its node has left Ray: drained, and without work"
    assert not has_raylet(ray)


def test_it_ends_when_a_part_of_it_has_stopped(up: Up) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    up.threads = {"notice watcher": thread}
    assert stand_guard(up, threading.Event()) == "its notice watcher has stopped"


def test_a_head_with_jobs_outlasts_its_controller(up: Up) -> None:
    """Asked only when it would go otherwise."""
    stop, asked = threading.Event(), []

    def is_busy() -> bool:
        asked.append(time.monotonic())
        if len(asked) == 8:
            stop.set()
        return True

    up.plan, up.answers, up.is_busy = plan(role="head", dead_man_s=0.05), lambda: False, is_busy
    assert stand_guard(up, stop) == ""


def test_a_certificate_is_renewed_in_time_and_tried_again(up: Up) -> None:
    old = identity(since_s=61 * DAY_S)
    up.files.write_identity(old)
    stop, tries = threading.Event(), []

    def renew() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise RayError("the desk does not answer")
        up.files.write_identity(identity())
        stop.set()

    up.renew = renew
    assert stand_guard(up, stop) == ""
    assert len(tries) == 3
    assert renew_at_s(up.files.cert.read_text()) > time.time() + 50 * DAY_S


def test_it_drains_before_the_end_of_the_certificate_that_ray_holds(up: Up) -> None:
    """New files do not help the processes that run: they never read them again. Told once, when Ray has taken it."""
    up.first_cert_pem = identity(life_s=7200).cert_pem
    stop, told = threading.Event(), []

    def drain(reason: str, deadline_s: float) -> tuple[bool, str]:
        told.append((reason, deadline_s))
        if len(told) == 1:
            raise RayError("the head does not answer")
        threading.Timer(0.3, stop.set).start()
        return True, ""

    up.drain = drain
    assert stand_guard(up, stop) == ""
    assert len(told) == 2
    assert "certificate" in told[1][0]
    assert told[1][1] == pytest.approx(time.time() + 3600, abs=60)


def test_it_ends_before_the_certificate_that_ray_holds(up: Up) -> None:
    up.first_cert_pem = identity(life_s=1800).cert_pem
    assert "certificate" in stand_guard(up, threading.Event())
