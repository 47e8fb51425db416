"""What `import tradewind` gives, and the pure parts around the SDK: log pieces, views, tables, progress lines."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tradewind as tw
from tradewind.api import EventLine, FleetStatus, JobInfo, job_not_found
from tradewind.events import (
    AnyEvent,
    ClockJumped,
    ControllerStarted,
    ControllerStopped,
    DemandChanged,
    JobStateChanged,
    encode,
)
from tradewind.logfile import read_chunk, tail_offset
from tradewind.model import Phase
from tradewind.render import bar, event_text, jobs_table, nodes_table, progress_line, status_screen, table
from tradewind.states import JobState
from tradewind.testing import FakeController
from tradewind.watch import LINE_EVERY_S, plain_lines, watch_job


def test_every_public_name_is_there() -> None:
    for name in tw.__all__:
        assert getattr(tw, name) is not None
    assert set(tw.__all__) <= set(dir(tw))
    with pytest.raises(AttributeError, match="nothing"):
        _ = tw.nothing


def test_importing_the_sdk_is_light() -> None:
    code = "import sys, tradewind; print([n for n in ('ray', 'torch', 'pydantic', 'httpx') if n in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip() == "[]"


# --- logs in pieces --------------------------------------------------------------------------------------------


@given(st.text(), st.integers(1, 7))
def test_pieces_of_any_size_make_the_whole_text(text: str, limit_bytes: int) -> None:
    raw = text.encode(errors="ignore")
    offset, found = 0, ""
    for _ in range(4 * len(raw) + 4):
        chunk = read_chunk(io.BytesIO(raw), offset, over=True, limit_bytes=max(4, limit_bytes))
        found, offset = found + chunk.text, chunk.next_offset
        if not chunk.more:
            break
    assert found == raw.decode()
    assert offset == len(raw)


def test_half_a_character_waits_for_its_other_half() -> None:
    raw = "aé".encode()
    half = read_chunk(io.BytesIO(raw[:2]), 0, over=False)
    assert (half.text, half.next_offset, half.over) == ("a", 1, False)
    assert read_chunk(io.BytesIO(raw), 1, over=False).text == "é"
    assert read_chunk(io.BytesIO(raw[:2]), 1, over=True).text == "�"


@given(st.lists(st.text("ab é", max_size=5), max_size=8), st.integers(0, 10), st.booleans(), st.integers(1, 9))
def test_the_tail_is_the_last_lines(lines: list[str], wanted: int, ended: bool, block: int) -> None:
    text = "\n".join(lines) + ("\n" if ended and lines else "")
    raw = text.encode()
    found = raw[tail_offset(io.BytesIO(raw), wanted, block_bytes=block) :].decode()
    assert found == "".join(text.splitlines(keepends=True)[-wanted:] if wanted else [])


# --- text ------------------------------------------------------------------------------------------------------


def job(**more: object) -> JobInfo:
    fields = {"job_id": "train-1", "name": "train", "tenant": "t", "state": JobState.RUNNING, "submitted_at_s": 0.0}
    return JobInfo(**{**fields, **more})  # type: ignore[arg-type]


def test_tables_fit_the_screen() -> None:
    text = table(("A", ">B", "C"), [("x", "1", "long " * 40), ("yy", "22", "")])
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[1].endswith("…")
    assert lines[0] == "A    B  C"
    assert lines[2] == "yy  22"


@pytest.mark.parametrize("width", [60, 70, 80])
def test_a_table_of_jobs_never_passes_the_width_and_keeps_ids_and_figures(width: int) -> None:
    jobs = [job(job_id="experiment-1a2b3c", name="another name", reason="waits for nodes " * 9, cost_uusd=12_340_000)]
    lines = jobs_table(jobs, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "experiment-1a2b3c" in lines[1]
    assert "$12.34" in lines[1]


def test_a_column_that_nobody_needs_is_left_out() -> None:
    assert "NAME" not in jobs_table([job(job_id="train-1a2b3c", name="train")])


def test_a_full_status_fits_the_screen() -> None:
    fake = FakeController(now_s=1000.0)
    from tradewind.model import JobSpec

    for i in range(3):
        info = fake.submit(JobSpec(name="a-rather-long-name-of-a-job", entrypoint="x", min_workers=2, max_workers=16))
        fake.add_node(f"fake-aws-{i:08d}", job_id=info.job_id)
        fake.run(info.job_id, workers=12)
        fake.step(info.job_id, 123_456, total_steps=999_999)
    text = status_screen(fake.status())
    assert "a-rather-long-name-of-a-job-1" in text
    assert jobs_table(fake.jobs()) in text
    assert nodes_table(fake.nodes()) in text


def test_progress_in_one_line() -> None:
    line = progress_line(job(phase=Phase.TRAINING, workers=4, step=3, total_steps=9, loss=1.23456, cost_uusd=10_000))
    assert line == "train-1 running  training  workers 4  step 3/9  loss 1.235  $0.0100"
    assert progress_line(job(state=JobState.FAILED, reason="exit 1")) == "train-1 failed  $0.00  (exit 1)"
    assert (bar(5, 10, 10), bar(5, None), bar(20, 10, 4)) == ("[#####-----]", "", "[####]")


def test_an_event_in_one_line() -> None:
    event = {"kind": "launch_refused", "at_s": 0.0, "launch_id": "n1", "error": "Stockout", "message": "none left"}
    assert event_text(EventLine(sequence=1, event=event)).endswith("launch_refused n1: Stockout none left")


LOG_END = "Job entrypoint command failed with exit code 1, last available logs:\n\nTraceback\n\n  boom\n" + "x" * 400


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (JobStateChanged(at_s=1.0, job_id="j", state=JobState.FAILED, reason=LOG_END), "logs: Traceback boom xxx"),
        (DemandChanged(at_s=1.0, cell="local"), "demand_changed local nothing is asked for"),
        (DemandChanged(at_s=1.0, cell="local", goes_on=True, changes=((0, 2.0),)), "demand_changed local 1 series"),
        (ClockJumped(at_s=1.0, jump_s=61.2), "clock_jumped by 61 s"),
        (ControllerStarted(at_s=1.0, fleet="lab", pid=1, version="1.2", simulated=True), "controller_started lab 1.2"),
        (ControllerStopped(at_s=1.0, reason="\n"), "controller_stopped"),
    ],
)
def test_every_event_is_one_line_that_says_something(event: AnyEvent, told: str) -> None:
    text = event_text(EventLine(sequence=1, event=json.loads(encode(event))))
    assert told in text
    assert text == text.strip()
    assert len(text.splitlines()) == 1
    assert len(text) < 320


def test_the_line_of_a_job_is_one_line() -> None:
    assert len(progress_line(job(state=JobState.FAILED, reason=LOG_END)).splitlines()) == 1


def test_lines_come_on_change_and_now_and_then_for_steps() -> None:
    now_s, lines = [0.0], list[str]()
    show = plain_lines(lines.append, clock=lambda: now_s[0])
    for at_s, info in [
        (0.0, job(step=1)),
        (0.1, job(step=2)),  # too soon
        (0.2, job(step=2, workers=2)),  # a change
        (0.3, job(step=3, workers=2)),  # too soon
        (0.3 + LINE_EVERY_S, job(step=4, workers=2)),
        (0.4 + 3 * LINE_EVERY_S, job(step=4, workers=2)),  # nothing new
    ]:
        now_s[0] = at_s
        show(info)
    assert [line.split("step ")[1].split()[0] for line in lines] == ["1", "2", "4"]


def test_an_unknown_job_gets_the_nearest_id() -> None:
    assert "train-12?" in job_not_found("trian-12", ["other-1", "train-12"]).hint
    assert "did you mean" not in job_not_found("x", ["other-1"]).hint
    assert "train-12?" in job_not_found("12", ["other-1", "train-12"]).hint


def test_an_unknown_price_is_not_shown_as_zero() -> None:
    from dataclasses import replace

    from tradewind.testing import SPOT_A100

    fake = FakeController()
    fake.add_node("n1", replace(SPOT_A100, price_uusd_per_h=None))
    assert " ? " in nodes_table(fake.nodes())


def test_a_node_says_for_what_it_is_and_not_all_that_why_tells() -> None:
    from dataclasses import replace

    fake = FakeController()
    fake.add_node("n1")
    [node] = fake.nodes()
    long = "cheapest for 1 x {GPU: 1} (tasks and actors): $0.53/h list, $0.60/h with boots of 180 s"
    assert nodes_table([replace(node, reason=long)], 200).endswith("(tasks and actors)")
    idle = nodes_table([replace(node, reason=long, state="ready")], 200)
    assert idle.endswith("idle; bought as cheapest for 1 x {GPU: 1} (tasks and actors)")
    assert nodes_table([replace(node, reason="a head is needed", role="head")], 200).endswith("head; a head is needed")


def test_demand_that_is_held_back_is_told() -> None:
    from tradewind.api import DemandLine

    line = DemandLine(what="GPU: 9", count=2, hold="no offer has GPU: 9")
    status = FleetStatus(fleet="f", version="0", simulated=False, uptime_s=1.0, demand=(line,))
    assert "2 x GPU: 9: held back, no offer has GPU: 9" in status_screen(status)
    assert "simulated" not in status_screen(status)


def test_a_notebook_gets_one_cell_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[str] = []

    class ZMQInteractiveShell:
        """What IPython calls its shell inside a notebook."""

    handle = SimpleNamespace(update=cells.append)
    display = SimpleNamespace(HTML=lambda text: text, display=lambda first, display_id: handle)
    shell = SimpleNamespace(get_ipython=ZMQInteractiveShell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    looks = iter([job(step=1, total_steps=2), job(state=JobState.SUCCEEDED, step=2, total_steps=2)])
    watch_job(SimpleNamespace(status=lambda: next(looks)), refresh_s=0.0)  # type: ignore[arg-type]
    assert ['value="1"' in cells[0], 'value="2"' in cells[1], len(cells)] == [True, True, 2]
