"""Emulators on their own: what they tell a person to export lets any process's SDK in, and nothing else does; the fleet
file that they write is one that comes up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tradewind.cli import cli
from tradewind.clouds.preflight import check_clouds
from tradewind.config import load_fleet
from tradewind.config_models import FleetConfig
from tradewind.config_yaml import parse
from tradewind.emulators.azure import AzureEmulator
from tradewind.emulators.fleet_file import azure_section, fleet_text, gcp_section
from tradewind.emulators.gcp import GcpEmulator

pytestmark = pytest.mark.slow  # SDKs of all clouds, over HTTP


@contextmanager
def alone(cloud: str, folder: Path) -> Iterator[dict[str, str]]:
    """An emulator as a person starts it; what it says has to be exported."""
    more = ["--credentials", str(folder / "login.json")] if cloud == "gcp" else []
    command = [sys.executable, "-m", f"tradewind.emulators.{cloud}", "--fleet", str(folder / "fleet.yaml"), *more]
    emulator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert emulator.stdout is not None
        assert "127.0.0.1" in emulator.stdout.readline()
        said = [emulator.stdout.readline() for _ in range({"aws": 2, "gcp": 2, "azure": 5}[cloud])]
        yield dict(line.removeprefix("export ").strip().split("=", 1) for line in said)
    finally:
        emulator.terminate()
        assert emulator.wait(30) == 0


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_what_an_emulator_says_and_writes_is_all_that_is_needed(
    cloud: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone(cloud, tmp_path) as login:
        for name, value in login.items():
            monkeypatch.setenv(name, value)
        asked = ["--home", str(tmp_path / "home"), "doctor", str(tmp_path / "fleet.yaml"), "--cloud", cloud]
        done = CliRunner().invoke(cli, asked)
        assert done.exit_code == 0, done.output
        assert all(line.startswith("ok    ") for line in done.stdout.splitlines())
    assert [cell.cloud for cell in _cells(tmp_path / "fleet.yaml")] == [cloud]


def _cells(file: Path) -> list[FleetConfig]:
    from tradewind.clouds import cells_of

    return list(cells_of(load_fleet(file)))  # type: ignore[arg-type]


def config_of(text: str) -> FleetConfig:
    return parse(text, "fleet.yaml", FleetConfig)


def test_google_takes_no_other_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = GcpEmulator().start(), GcpEmulator().start()
    try:
        mine.environment(tmp_path / "mine.json")
        key = json.loads(other.credentials_file(tmp_path / "other.json").read_text())
        key["token_uri"] = f"{mine.url}/token"
        (tmp_path / "other.json").write_text(json.dumps(key))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "other.json"))
        text = fleet_text({"gcp": gcp_section(mine)}, tmp_path / "runs")
        first = check_clouds(config_of(text))[0]
        assert not first.ok
        assert "gcloud auth application-default login" in first.fix
    finally:
        mine.close()
        other.close()


def test_azure_takes_no_other_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = AzureEmulator().start()
    try:
        for name, value in {**emulator.environment(), "AZURE_CLIENT_SECRET": "guessed"}.items():
            monkeypatch.setenv(name, value)
        text = fleet_text({"azure": azure_section(emulator)}, tmp_path / "runs")
        first = check_clouds(config_of(text))[0]
        assert not first.ok
        assert "az login" in first.fix
        assert "guessed" not in f"{first}"
    finally:
        emulator.close()


def test_a_login_is_for_its_owner_alone(tmp_path: Path) -> None:
    emulator = GcpEmulator().start()
    try:
        path = emulator.credentials_file(tmp_path / "login.json")
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert json.loads(path.read_text())["private_key"].splitlines()[1] in emulator.secrets
    finally:
        emulator.close()
