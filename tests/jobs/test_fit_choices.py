"""What a user may get wrong in a call of `fit`, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tradewind.errors import JobError
from tradewind.jobs.examples import digits
from tradewind.jobs.layout import Layout
from tradewind.jobs.sizing import Limits
from tradewind.jobs.trainer import FitResult, _check_choices, _place, _storage


@pytest.mark.parametrize(
    ("limits", "layout", "precision", "on_nan", "words"),
    [
        (Limits(4, 2), Layout(), None, "fail", "make no sense"),
        (Limits(0, 2), Layout(), None, "fail", "make no sense"),
        (Limits(2, 3), Layout(tp=2), None, "fail", "at most 3"),
        (Limits(1, 2), Layout(), "fp8", "fail", "fp8"),
        (Limits(1, 2), Layout(), None, "ignore", "ignore"),
    ],
)
def test_mistakes_are_named(limits: Limits, layout: Layout, precision: str | None, on_nan: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        _check_choices(limits, layout, precision, on_nan)


def test_what_is_right_passes() -> None:
    _check_choices(Limits(2, 4), Layout(fsdp=2), "bf16", "skip")


def test_an_example_that_was_done_before_it_began_has_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    done = FitResult("digits", 300, None, "step-300", "folder", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "fit", lambda *_, **__: done)
        digits.main([])
    assert capsys.readouterr().out == "done: step 300, loss -, 1 worker groups, step-300\n"


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({}, "~/.tradewind/runs"),
        ({"TRADEWIND_HOME": ""}, "~/.tradewind/runs"),
        ({"TRADEWIND_HOME": "/data/tw"}, "/data/tw/runs"),
        ({"TRADEWIND_HOME": "~/tw"}, "~/tw/runs"),
        ({"TRADEWIND_HOME": "/data/tw", "TRADEWIND_STORAGE": "s3://models/runs"}, "s3://models/runs"),
    ],
)
def test_runs_outside_of_a_fleet_are_kept_in_the_home_of_all_fleets(environ: dict[str, str], folder: str) -> None:
    assert _storage(environ) == folder


def test_the_home_of_runs_may_be_relative_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _place(_storage({"TRADEWIND_HOME": "~/tw"}), "run-1") == str(tmp_path / "tw" / "runs" / "run-1")
