"""Calls to a head that only dials out: over real HTTPS on loopback, on ports in memory."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from door_world import TOKEN, DoorWorld, until

from tradewind import __version__
from tradewind.autoscaler.ray_snapshot import DrainReason, Gang, RayNode, RayReport, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.cells import door
from tradewind.cells.calls import CALLS, Answer, Call, read_result, write_result
from tradewind.cells.line import Dismissed, Line, UnknownSession
from tradewind.errors import Conflict, RayError
from tradewind.events import PhaseChanged, decode
from tradewind.model import LABEL_LAUNCH_ID, Phase, Target
from tradewind.node.join_desk import BootReport, EnergyReport

GPU = {"CPU": 1, "GPU": 1}
NO_CLOSE = threading.Event()


def snapshot_of(count: int) -> RaySnapshot:
    nodes = tuple(
        RayNode(
            ray_node_id=f"{number:056x}",
            launch_id=f"tw-{number:012x}",
            status=RayStatus.RUNNING,
            total={"CPU": 8.0, "GPU": 1.0, "memory": 3.2e10, f"node:10.0.{number // 256}.{number % 256}": 1.0},
            available={"CPU": 2.0, "memory": 1e10},
            labels={LABEL_LAUNCH_ID: f"tw-{number:012x}", "ray.io/market-type": "spot"},
            idle_s=0.5,
        )
        for number in range(count)
    )
    shape = Shape.of(GPU, {"ray.io/market-type": "spot"})
    return RaySnapshot(
        nodes=nodes,
        pending=((shape, 3),),
        pending_actors={"job-1": ((shape, 3),)},
        gangs=(Gang("g1", Strategy.STRICT_SPREAD, (shape, shape), "job-1", frozenset({nodes[0].ray_node_id})),),
        constraints=((Shape.of({"CPU": 4}), 2),),
        holdings={("job-1", node.ray_node_id): {"GPU": 1.0} for node in nodes},
        version=7,
    )


# --- the ports ------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_same_after_its_journey(world: DoorWorld) -> None:
    world.dial()
    world.met()
    world.ray.submit(GPU, count=3)
    world.ray.submit_gang([GPU, GPU], Strategy.PACK)
    assert world.remote_ray.snapshot() == world.ray.snapshot()
    found = snapshot_of(3)
    assert read_result("ray.snapshot", json.loads(json.dumps(write_result("ray.snapshot", found)))) == found


def test_ten_thousand_nodes_pass_in_one_answer(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    large = snapshot_of(10_000)
    monkeypatch.setattr(world.ray, "snapshot", lambda: large)
    world.dial()
    assert world.met().remote_ray.snapshot() == large


def test_drains_and_reports_reach_ray_and_their_answers_come_back(world: DoorWorld) -> None:
    world.dial()
    world.met()
    head = world.ray.snapshot().nodes[0].ray_node_id
    assert world.remote_ray.drain(head, DrainReason.PREEMPTION, "taken", 5.0) == (True, "")
    assert world.ray.drains == [(head, DrainReason.PREEMPTION)]
    report = RayReport(pending=(("g6", "tw-1", "booting"),), infeasible=(Shape.of(GPU),), version=3)
    world.remote_ray.report(report)
    assert world.ray.reports == [report]
    with pytest.raises(RayError, match="is not a Ray node id"):
        world.remote_ray.drain("nonsense", DrainReason.IDLE, "")
    world.ray.is_down = True
    with pytest.raises(RayError, match="does not answer"):
        world.remote_ray.snapshot()


def test_what_nodes_told_the_desk_is_asked_for(world: DoorWorld) -> None:
    reading = EnergyReport("tw-1", "", 60.0, 9000.0, None)
    world.desk.measured(reading)
    world.desk.report(BootReport("tw-2", "no driver"))
    world.dial()
    line = world.met().line
    assert line.call("node.energy") == (reading,)
    assert line.call("node.reports") == (("tw-2", "no driver"),)


def test_jobs_are_refused_in_the_words_and_by_the_errors_of_ray(world: DoorWorld) -> None:
    world.dial()
    jobs = world.met().remote_jobs
    given = {"entrypoint": "python x.py", "runtime_env": {"env_vars": {"A": "b"}}, "metadata": {"tenant": "t"}}
    assert jobs.submit_job(submission_id="j", **given) == "j"  # type: ignore[arg-type]
    assert world.jobs.rows["j"].runtime_env == {"env_vars": {"A": "b"}}
    with pytest.raises(RuntimeError, match="already exists"):
        jobs.submit_job(submission_id="j", **given)  # type: ignore[arg-type]
    world.jobs.print("j", "Grüße\n")
    assert jobs.get_job_logs("j") == "Grüße\n"
    [row] = jobs.list_jobs()
    assert (row.submission_id, row.status) == ("j", "PENDING")
    assert jobs.stop_job("j") is True
    with pytest.raises(RuntimeError, match="does not exist"):
        jobs.stop_job("unknown")
    world.jobs.fault = ConnectionError("the dashboard is away")
    with pytest.raises(ConnectionError, match="the dashboard is away"):
        jobs.list_jobs()


def test_what_a_coordinator_says_arrives_as_it_was_said(world: DoorWorld) -> None:
    world.dial()
    remote = world.met().remote_coordinators
    assert remote.poll("j", 0) is None
    assert remote.set_target("j", Target(1, 2)) is False
    coordinator = world.coordinators.start("j")
    coordinator._turn(Phase.STARTING)
    report = remote.poll("j", 0)
    assert report is not None
    [event] = [decode(payload) for payload in report["events"]]
    assert isinstance(event, PhaseChanged)
    assert remote.set_target("j", Target(5, 2)) is True
    assert world.coordinators.targets == [("j", Target(5, 2))]
    world.coordinators.faults["j"] = TimeoutError("busy")
    with pytest.raises(TimeoutError):
        remote.poll("j", 0)


def test_a_defect_on_the_head_is_told_and_the_agent_goes_on(world: DoorWorld) -> None:
    world.dial()
    world.met()
    world.jobs.fault = ZeroDivisionError("a defect")
    with pytest.raises(ConnectionError, match="ZeroDivisionError: a defect"):
        world.remote_jobs.list_jobs()
    assert world.remote_ray.snapshot().nodes


def test_slow_calls_do_not_hold_up_others_and_fail_when_their_time_is_over(
    world: DoorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.dial()
    world.met()
    go = threading.Event()
    monkeypatch.setattr(world.jobs, "get_job_logs", lambda job_id: str(go.wait(30)))
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(world.remote_jobs.get_job_logs, "j")
        until(lambda: slow.running(), "it is under way")
        assert world.remote_ray.snapshot().nodes, "meanwhile others are answered"
        go.set()
        assert slow.result(timeout=20) == "True"
    never = threading.Event()
    monkeypatch.setattr(world.jobs, "list_jobs", lambda: never.wait(30))
    with pytest.raises(RayError, match="no answer to"):
        world.line.call("jobs.list_jobs", timeout_s=0.2)
    never.set()


# --- lives ----------------------------------------------------------------------------------------------------------


def test_without_an_agent_a_call_fails_at_once(world: DoorWorld) -> None:
    with pytest.raises(RayError, match="has not called yet"):
        world.remote_ray.snapshot()
    assert world.line.present is None
    assert world.line.silent_for_s() is None


def test_the_words_of_the_agent_are_known(world: DoorWorld) -> None:
    world.dial()
    present = world.met().line.present
    assert present is not None
    assert (present.launch_id, present.gcs_address, present.join_url) == (
        "tw-head",
        "10.0.0.4:6379",
        "https://10.0.0.4:8441",
    )
    assert present.versions["tradewind"] == __version__


def test_an_agent_survives_a_controller_that_dies_and_returns(world: DoorWorld) -> None:
    world.dial()
    assert world.met().remote_ray.snapshot().nodes
    world.close()
    world.open()
    assert world.met().remote_ray.snapshot().nodes
    assert world.callers[0].said == []


def test_a_controller_survives_an_agent_that_dies_and_returns(world: DoorWorld) -> None:
    first = world.dial()
    world.met()
    first.end()
    assert first.said == [""]
    with pytest.raises(RayError):
        world.line.call("ray.snapshot", timeout_s=0.2)
    with pytest.raises(RayError, match="does not answer"):
        world.remote_ray.snapshot()  # at once: nobody is waited for twice
    assert world.line.present is None
    world.dial()
    assert world.met().remote_ray.snapshot().nodes


def test_of_two_agents_on_one_head_the_older_one_goes(world: DoorWorld) -> None:
    older = world.dial(world.hello(started_at_s=1.0))
    world.met()
    newer = world.dial(world.hello(started_at_s=2.0))
    until(lambda: older.said, "the older one is told to go")
    assert "another agent" in older.said[0]
    assert world.remote_ray.snapshot().nodes
    again = world.dial(world.hello(started_at_s=1.5))
    until(lambda: again.said, "one that comes late, too")
    assert newer.said == []


def test_an_agent_of_an_earlier_head_goes_and_the_expected_one_speaks(world: DoorWorld) -> None:
    old = world.dial(world.hello("tw-old"))
    world.met()
    world.line.expect("tw-new")
    until(lambda: old.said, "the old one is told to go")
    assert "tw-new" in old.said[0] or "another agent" in old.said[0]
    world.dial(world.hello("tw-new"))
    present = world.met().line.present
    assert present is not None
    assert present.launch_id == "tw-new"


def test_a_head_of_another_version_is_refused_and_the_reason_is_told() -> None:
    line = Line("c")
    hello = DoorWorld.hello
    with pytest.raises(Conflict, match=rf"the head runs tradewind 0\.0\.0, the controller {__version__}"):
        line.hello(hello(None, tradewind="0.0.0"))  # type: ignore[arg-type]
    assert line.present is None


def test_a_call_that_nobody_waits_for_is_not_handed_out() -> None:
    line = Line("c")
    session = line.hello(DoorWorld.hello(None, tradewind=__version__))  # type: ignore[arg-type]
    with pytest.raises(RayError, match="no answer"):
        line.call("ray.snapshot", timeout_s=0.01)
    assert line.poll(session, 0.0, NO_CLOSE) == ()


def test_answers_of_the_past_are_dropped() -> None:
    line = Line("c")
    first = line.hello(DoorWorld.hello(None, tradewind=__version__))  # type: ignore[arg-type]
    line.answer("unknown", Answer(first, 1))
    second = line.hello(DoorWorld.hello(None, tradewind=__version__))  # type: ignore[arg-type]
    with pytest.raises(Dismissed):
        line.answer("unknown", Answer(first, 1))
    with pytest.raises(UnknownSession):
        Line("c").poll(second, 0.0, NO_CLOSE)


# --- the door -------------------------------------------------------------------------------------------------------


def http(world: DoorWorld, token: str = TOKEN) -> httpx.Client:
    return httpx.Client(
        base_url=f"https://127.0.0.1:{world.port}/v1/cells/",
        headers={"Authorization": f"Bearer {token}"},
        verify=ssl.create_default_context(cadata=world.tls.certificate.read_text()),
    )


def test_only_the_token_of_the_cell_opens_its_door(world: DoorWorld) -> None:
    for cell, token in [("aws-us-east-1", "wrong"), ("aws-us-east-1", TOKEN + "x"), ("other", TOKEN)]:
        with http(world, token) as client:
            for path in ("hello", "calls", "calls/1"):
                assert client.post(f"{cell}/{path}", content=b"{}").status_code == 401
            assert client.get(f"{cell}/folders/abc").status_code == 401


def test_a_wrong_token_keeps_the_agent_out_and_it_goes_on_trying(world: DoorWorld) -> None:
    caller = world.dial(token="wrong")
    with pytest.raises(RayError, match="has not called yet"):
        world.remote_ray.snapshot()
    assert caller.said == []
    caller.end()


def test_people_find_nothing_at_this_door(world: DoorWorld) -> None:
    with http(world) as client:
        for path in ("/v1/status", "/healthz", "/openapi.json", "/"):
            assert client.get(f"https://127.0.0.1:{world.port}{path}").status_code == 404


def test_without_our_certificate_nobody_is_spoken_to(world: DoorWorld) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://127.0.0.1:{world.port}/")


def test_bodies_have_a_size(world: DoorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WIRE_BYTES", 4096)
    monkeypatch.setattr(door, "BODY_BYTES", 8192)
    with http(world) as client:
        assert client.post("aws-us-east-1/hello", content=b"x" * (door.SMALL_BYTES + 1)).status_code == 413
        assert client.post("aws-us-east-1/calls/1", content=b"x" * 5000).status_code == 413
        bomb = gzip.compress(b"0" * 1_000_000)
        assert len(bomb) < 4096
        packed = {"Content-Encoding": "gzip"}
        assert client.post("aws-us-east-1/calls/1", content=bomb, headers=packed).status_code == 413
        assert client.post("aws-us-east-1/calls/1", content=bomb[:200], headers=packed).status_code in (413, 422)
        assert client.post("aws-us-east-1/calls/1", content=b"no gzip", headers=packed).status_code == 422
        assert client.post("aws-us-east-1/hello", content=b"[]").status_code == 422


def test_a_call_that_the_agent_does_not_know_is_an_answer_not_a_crash(world: DoorWorld) -> None:
    world.dial()
    world.met()
    with world.line._changed:
        world.line._queue.append(Call("x", "ray.unheard_of", []))
        world.line._changed.notify_all()
    assert world.remote_ray.snapshot().nodes


def test_every_call_has_a_carrier(world: DoorWorld) -> None:
    assert set(world.dial().agent._carry) == set(CALLS)
