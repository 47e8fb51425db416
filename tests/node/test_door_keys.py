"""The keys of the agents' door over the years: kept, private, and trusted by heads that were told of them earlier."""

from __future__ import annotations

import time
from pathlib import Path

from tradewind.cells.keys import DoorKeys
from tradewind.certificates import AUTHORITY_LIFE_S, DAY_S, Authority, addresses_of, expires_at_s

NOW_S = time.time()


def test_they_are_kept_and_private(tmp_path: Path) -> None:
    first = DoorKeys.keep(tmp_path / "keys", ("10.0.0.1", "controller.example"), NOW_S)
    moved = DoorKeys.keep(tmp_path / "keys", ("10.0.0.2",), NOW_S + DAY_S)
    assert moved.ca_pem == first.ca_pem
    assert addresses_of(moved.tls.certificate.read_text()) == ("10.0.0.2",)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}


def test_a_head_trusts_the_door_over_a_change_of_authority(tmp_path: Path) -> None:
    """Whenever it was told in two lives of an authority, for more than half a year."""
    told: list[tuple[float, str]] = []
    for day in range(0, 1400, 40):
        now_s = NOW_S + day * DAY_S
        keys = DoorKeys.keep(tmp_path, ("10.0.0.1",), now_s)
        served = keys.tls.certificate.read_text()
        told.append((now_s, keys.ca_pem))
        assert expires_at_s(served) > now_s + 30 * DAY_S
        for at_s, ca_pem in told:
            if now_s - at_s < 180 * DAY_S:
                assert any(Authority(one, "").has_signed(served) for one in _split(ca_pem)), day
    assert AUTHORITY_LIFE_S < 1400 * DAY_S
    assert len({ca_pem for _, ca_pem in told}) > 2


def _split(ca_pem: str) -> list[str]:
    end = "-----END CERTIFICATE-----\n"
    return [part + end for part in ca_pem.split(end) if part]
