"""The join desk over real HTTPS on loopback: who gets a certificate, who is refused and why, what it keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tradewind.certificates import Authority, addresses_of, make_key, make_request
from tradewind.errors import Conflict, InvalidRequest, RayError, Unauthorized
from tradewind.node.desk_client import DeskClient
from tradewind.node.desk_server import MAX_BODY_BYTES, Allowance, desk_app, open_desk
from tradewind.node.join_desk import MAX_LOG_CHARS, BootReport, EnergyReport, JoinDesk, JoinRequest
from tradewind.node.versions import Versions
from tradewind.server import RunningServer, Tls

TOKEN = "t0k3n" * 8
HERE = Versions("0.1.0", "2.60.0", "3.11.9", "2.13.0+cpu")
CA = Authority.make("cell", time.time())
NODE = "127.0.0.9"


@pytest.fixture
def desk() -> JoinDesk:
    return JoinDesk(CA, HERE, time.time)


@pytest.fixture
def server(desk: JoinDesk, tmp_path: Path) -> Iterator[RunningServer]:
    identity = CA.identity(["127.0.0.8"], time.time())
    (tmp_path / "c").write_text(identity.cert_pem)
    (tmp_path / "k").write_text(identity.key_pem)
    with open_desk(
        desk_app(desk, TOKEN, Allowance(burst=10.0)), "127.0.0.8", Tls(tmp_path / "c", tmp_path / "k")
    ) as found:
        yield found


@pytest.fixture
def client(server: RunningServer) -> Iterator[DeskClient]:
    found = DeskClient(server.url, CA.cert_pem, TOKEN, NODE)
    yield found
    found.close()


def request(launch_id: str = "n1", versions: Versions = HERE, address: str = NODE) -> JoinRequest:
    return JoinRequest(launch_id, versions, make_request(make_key(), launch_id), (address,))


def test_a_node_that_fits_gets_a_certificate_for_its_address(client: DeskClient) -> None:
    assert addresses_of(client.join(request())) == (NODE, "127.0.0.1", "localhost")


def test_nobody_gets_one_for_anothers_address(client: DeskClient) -> None:
    with pytest.raises(InvalidRequest, match=r"127.0.0.8 is not the address that the node speaks from \(127.0.0.9\)"):
        client.join(request(address="127.0.0.8"))


def test_another_version_is_refused_with_both_named(client: DeskClient, desk: JoinDesk) -> None:
    with pytest.raises(Conflict, match=r"torch 2.12.0 on the node, 2.13.0 on the head"):
        client.join(request(versions=replace(HERE, torch="2.12.0")))
    assert desk.reports() == (("n1", "refused by the head: torch 2.12.0 on the node, 2.13.0 on the head"),)


def test_a_wrong_token_gets_nothing(server: RunningServer, desk: JoinDesk) -> None:
    for token in ("x", TOKEN[:-1], TOKEN + "x"):
        client = DeskClient(server.url, CA.cert_pem, token, NODE)
        with pytest.raises(Unauthorized):
            client.join(request())
        with pytest.raises(Unauthorized):
            client.report(BootReport("n1", "lies"))
        client.close()
    assert desk.reports() == ()


def test_a_desk_of_another_cell_is_not_told_the_token(server: RunningServer) -> None:
    client = DeskClient(server.url, Authority.make("other", time.time()).cert_pem, TOKEN, NODE)
    with pytest.raises(RayError, match="CERTIFICATE_VERIFY_FAILED"):
        client.join(request())


def test_a_failed_boot_is_kept_and_told(client: DeskClient, desk: JoinDesk) -> None:
    client.report(BootReport("n1", "Ray ended with status 1", "line 1\nline 2"))
    client.report(BootReport("n2", "", "all well"))
    assert desk.reports() == (("n1", "Ray ended with status 1"),)
    assert desk.log("n1") == "line 1\nline 2\nRay ended with status 1"
    assert desk.log("n2") == "all well"
    assert desk.log("n3") == ""


def test_of_a_long_log_the_end_is_kept(desk: JoinDesk) -> None:
    desk.report(BootReport("n1", "", "x" * MAX_LOG_CHARS + "the end"))
    assert len(desk.log("n1")) == MAX_LOG_CHARS
    assert desk.log("n1").endswith("the end")


def test_too_long_and_endless_requests_are_not_read(server: RunningServer, tmp_path: Path) -> None:
    import ssl

    trust = ssl.create_default_context(cadata=CA.cert_pem)
    with httpx.Client(base_url=server.url, verify=trust, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        assert http.post("/report", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
        assert http.post("/report", content=iter([b"{", b"}"])).status_code == 411
        assert http.post("/join", json={"launch_id": "n1"}).status_code == 422
        assert http.get("/openapi.json").status_code == 404


def test_a_second_desk_of_one_address_takes_another_port(server: RunningServer, desk: JoinDesk, tmp_path: Path) -> None:
    with open_desk(desk_app(desk, TOKEN), "127.0.0.8", Tls(tmp_path / "c", tmp_path / "k")) as other:
        assert other.port != server.port


def test_one_address_cannot_keep_the_desk_busy(server: RunningServer, desk: JoinDesk) -> None:
    loud, other = (DeskClient(server.url, CA.cert_pem, TOKEN, address) for address in ("127.0.0.66", NODE))
    for _ in range(8):
        loud.report(BootReport("loud"))
    with pytest.raises(RayError, match="too many requests"):
        _report_often(loud)
    other.report(BootReport("n1", "still heard"))
    assert ("n1", "still heard") in desk.reports()
    loud.close()
    other.close()


def _report_often(client: DeskClient) -> None:
    for _ in range(50):
        client.report(BootReport("loud"))


def test_an_allowance_comes_back_with_time() -> None:
    allowance = Allowance(rate_per_s=2.0, burst=3.0)
    assert [allowance.take("a", 100.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.take("a", 100.6)
    assert not allowance.take("a", 100.7)
    assert allowance.take("b", 100.7)


def test_drivers_are_compared_with_the_nodes_that_live() -> None:
    alive = {"n1"}
    desk = JoinDesk(CA, HERE, time.time, is_alive=alive.__contains__)
    old, new = replace(HERE, driver="550.54.14"), replace(HERE, driver="570.10")
    desk.join(request("n1", old), NODE)
    desk.join(request("n2", replace(HERE, driver="550.90.07")), NODE)
    with pytest.raises(Conflict, match=r"NVIDIA driver 570.10 on the node, 550.54.14 on the cell's other nodes"):
        desk.join(request("n3", new), NODE)
    desk.join(request("n4", HERE), NODE)  # no GPU
    alive.clear()
    desk.join(request("n5", new), NODE)


def test_a_renewed_certificate_is_shown_to_new_connections(server: RunningServer, tmp_path: Path) -> None:
    other = Authority.make("cell", time.time())
    identity = other.identity(["127.0.0.8"], time.time())
    (tmp_path / "c").write_text(identity.cert_pem)
    (tmp_path / "k").write_text(identity.key_pem)
    server.renew()
    client = DeskClient(server.url, other.cert_pem, TOKEN, NODE)
    client.report(BootReport("n1"))
    client.close()


def test_readings_go_to_the_desk_and_the_last_is_kept(client: DeskClient, desk: JoinDesk) -> None:
    client.measured(EnergyReport("n1", "", 60.0, 6000.0, None))
    client.measured(EnergyReport("n1", "", 120.0, 12000.0, None))
    client.measured(EnergyReport("n2", "3", 60.0, None, 100.0))
    assert desk.energy() == (EnergyReport("n1", "", 120.0, 12000.0, None), EnergyReport("n2", "3", 60.0, None, 100.0))
    with pytest.raises(InvalidRequest, match="no meter reads"):
        client.measured(EnergyReport("n1", "", 120.0, -1.0, None))
