"""A job's folder on its way to a cell: what is packed, under which name, and how the head gets it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from door_world import DoorWorld

from tradewind.cells import folders
from tradewind.cells.folders import DIGEST_SCHEME, files_of, pack_folder
from tradewind.errors import ConfigError


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    return [name for name, _ in files_of(folder)]


def test_what_ignore_files_name_stays_at_home(tmp_path: Path) -> None:
    write(
        tmp_path, train_dot_py="", data__big_dot_bin="", src__a_dot_py="", src__a_dot_tmp="", keep_dot_tmp="", x__y=""
    )
    write(tmp_path, _dot_gitignore="# a comment\n*.tmp\n!keep.tmp\n/data/\n\n", _dot_rayignore="x/**\n")
    write(tmp_path, _dot_git__config="", __pycache____a_dot_pyc="", _dot_venv__bin="")
    assert names(tmp_path) == [".gitignore", ".rayignore", "keep.tmp", "src/a.py", "train.py"]


def test_an_ignore_file_counts_for_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path, a__out_dot_txt="", b__out_dot_txt="", a___dot_gitignore="/out.txt\n")
    assert names(tmp_path) == ["a/.gitignore", "b/out.txt"]


def test_the_same_files_have_the_same_name_and_others_another(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", a_dot_py="1", b_dot_py="2"), write(tmp_path / "two", b_dot_py="2", a_dot_py="1")
    os.utime(two / "a.py", (1, 1))
    into = tmp_path / "packed"
    digest = pack_folder(one, into)
    assert pack_folder(two, into) == digest
    assert [path.name for path in into.iterdir()] == [f"{digest}.zip"]
    write(two, a_dot_py="12", b_dot_py="")
    assert pack_folder(two, into) != digest
    (one / "a.py").chmod(0o755)
    assert pack_folder(one, into) != digest


def test_a_folder_that_is_too_large_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "MAX_FILES", 2)
    write(tmp_path, a="", b="", c="")
    with pytest.raises(ConfigError, match=r"3 files .* at most 2 files") as caught:
        pack_folder(tmp_path, tmp_path / "packed")
    assert ".rayignore" in caught.value.hint


def test_the_head_fetches_it_once_and_gives_it_to_ray(world: DoorWorld, tmp_path: Path) -> None:
    source = write(tmp_path / "source", train_dot_py="print(1)", pkg__a_dot_py="2")
    digest = pack_folder(source, world.folder / "packed")
    world.dial()
    jobs = world.met().remote_jobs
    given = {"env_vars": {"A": "b"}, "working_dir": f"{DIGEST_SCHEME}{digest}"}
    for name in ("j", "j.tw2"):
        jobs.submit_job(entrypoint="python train.py", submission_id=name, runtime_env=given, metadata={})
        (world.folder / "packed" / f"{digest}.zip").unlink(missing_ok=True)  # the second time it is there
    env = world.jobs.rows["j.tw2"].runtime_env
    assert env is not None
    assert env["env_vars"] == {"A": "b"}
    with zipfile.ZipFile(env["working_dir"]) as packed:
        assert sorted(packed.namelist()) == ["pkg/a.py", "train.py"]


def test_a_folder_that_is_not_there_is_told_and_paths_lead_nowhere(world: DoorWorld) -> None:
    (world.folder / "secret.zip").write_text("no")
    world.dial()
    jobs = world.met().remote_jobs
    for digest in ("abc", "..%2fsecret"):
        with pytest.raises(RuntimeError, match="has no folder"):
            jobs.submit_job(
                entrypoint="x",
                submission_id="j",
                runtime_env={"working_dir": f"{DIGEST_SCHEME}{digest}"},
                metadata={},
            )
    assert world.jobs.rows == {}
