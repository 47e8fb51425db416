"""Keys of cells and of the agents' door: made once, found again, renewed in time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tradewind.cell_keys import DOOR_LIFE_S, DoorKeys, cell_keys, forget_cell
from tradewind.certificates import AUTHORITY_LIFE_S, DAY_S, Authority, addresses_of, expires_at_s
from tradewind.errors import ConfigError
from tradewind.node.folder_secrets import FolderSecrets

NOW_S = time.time()


@pytest.fixture
def store(tmp_path: Path) -> FolderSecrets:
    return FolderSecrets(tmp_path / "s")


def test_a_controller_that_starts_again_finds_its_keys(store: FolderSecrets) -> None:
    first = cell_keys(store, "f", "c", NOW_S)
    assert cell_keys(store, "f", "c", NOW_S + DAY_S) == first
    assert cell_keys(store, "f", "other", NOW_S) != first
    assert Authority.of(first.ca_pem, first.ca_key_pem).cert_pem == first.ca_pem


def test_workers_are_told_the_ray_token_alone(store: FolderSecrets) -> None:
    keys = cell_keys(store, "f", "c", NOW_S)
    assert json.loads(store.get("tradewind/f/c/node")) == {"ray_token": keys.ray_token}
    store.delete("tradewind/f/c/node")  # a controller died in between
    cell_keys(store, "f", "c", NOW_S)
    assert json.loads(store.get("tradewind/f/c/node")) == {"ray_token": keys.ray_token}


def test_a_new_head_may_have_new_keys(store: FolderSecrets) -> None:
    old, new = cell_keys(store, "f", "c", NOW_S), cell_keys(store, "f", "c", NOW_S, new=True)
    assert {old.ray_token, old.agent_token, old.ca_pem}.isdisjoint({new.ray_token, new.agent_token, new.ca_pem})
    assert cell_keys(store, "f", "c", NOW_S) == new


def test_down_leaves_nothing(store: FolderSecrets) -> None:
    cell_keys(store, "f", "c", NOW_S)
    forget_cell(store, "f", "c")
    forget_cell(store, "f", "c")
    assert store.list("") == []


def test_something_else_under_that_name_is_neither_used_nor_shown(store: FolderSecrets) -> None:
    store.put("tradewind/f/c/head", '{"password": "t0p"}')
    with pytest.raises(ConfigError) as caught:
        cell_keys(store, "f", "c", NOW_S)
    assert "t0p" not in str(caught.value)


def test_no_key_is_shown_by_accident(store: FolderSecrets) -> None:
    keys = cell_keys(store, "f", "c", NOW_S)
    assert keys.ray_token not in repr(keys)
    assert keys.agent_token not in repr(keys)
    assert "PRIVATE" not in repr(keys)


# --- the door ---------------------------------------------------------------------------------------------------


def test_the_doors_keys_are_kept_and_private(tmp_path: Path) -> None:
    first = DoorKeys.keep(tmp_path / "keys", ["10.0.0.1", "controller.example"], NOW_S)
    cert = first.tls.certificate.read_text()
    assert addresses_of(cert) == ("10.0.0.1", "controller.example")
    again = DoorKeys.keep(tmp_path / "keys", ["10.0.0.1", "controller.example"], NOW_S + DAY_S)
    assert again == first
    assert first.tls.certificate.read_text() == cert
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}


def test_another_address_and_age_make_a_new_certificate(tmp_path: Path) -> None:
    first = DoorKeys.keep(tmp_path, ["10.0.0.1"], NOW_S)
    moved = DoorKeys.keep(tmp_path, ["10.0.0.2"], NOW_S)
    assert moved.ca_pem == first.ca_pem  # heads still trust it
    assert addresses_of(moved.tls.certificate.read_text()) == ("10.0.0.2",)
    later_s = NOW_S + 0.9 * DOOR_LIFE_S
    DoorKeys.keep(tmp_path, ["10.0.0.2"], later_s)
    assert expires_at_s(moved.tls.certificate.read_text()) == pytest.approx(later_s + DOOR_LIFE_S, abs=2)


def test_a_head_trusts_the_door_over_a_change_of_authority(tmp_path: Path) -> None:
    """At any time in two lives of an authority: one that is told of the door then trusts it for months after."""
    told: list[tuple[float, str]] = []
    for day in range(0, 1400, 20):
        now_s = NOW_S + day * DAY_S
        keys = DoorKeys.keep(tmp_path, ["10.0.0.1"], now_s)
        served = keys.tls.certificate.read_text()
        told.append((now_s, keys.ca_pem))
        for at_s, ca_pem in told:
            if now_s - at_s < 200 * DAY_S:
                assert any(Authority(one, "").has_signed(served) for one in _split(ca_pem)), day
    assert AUTHORITY_LIFE_S < 1400 * DAY_S
    assert len({ca_pem for _, ca_pem in told}) > 2


def _split(ca_pem: str) -> list[str]:
    end = "-----END CERTIFICATE-----\n"
    return [part + end for part in ca_pem.split(end) if part]
