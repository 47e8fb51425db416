"""The HTTP API over the shipped fake, through a real server on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from tradewind import errors
from tradewind.api import ErrorBody
from tradewind.api_requests import SubmitRequest
from tradewind.model import Contract, JobSpec
from tradewind.server import STATUS_OF, RunningServer, create_app, serve
from tradewind.states import JobState
from tradewind.testing import FakeController

TOKEN = "a-token-for-tests"
BODY = {"name": "train", "entrypoint": "python train.py"}


@pytest.fixture
def fake() -> FakeController:
    return FakeController()


@pytest.fixture
def running(fake: FakeController) -> Iterator[RunningServer]:
    with serve(create_app(fake, TOKEN)) as server:
        yield server


@pytest.fixture
def http(running: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=running.url, headers=headers, timeout=20, trust_env=False) as client:
        yield client


def submitted(http: httpx.Client, **more: object) -> str:
    reply = http.post("/v1/jobs", json={**BODY, **more})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["job_id"])


def test_listens_on_loopback_only(running: RunningServer) -> None:
    assert running.host == "127.0.0.1"
    assert running.port > 0


def test_health_needs_no_token_and_everything_else_does(running: RunningServer) -> None:
    with httpx.Client(base_url=running.url, trust_env=False) as anybody:
        assert anybody.get("/healthz").json()["service"] == "tradewind"
        document = anybody.get("/openapi.json").json()
        for path, methods in document["paths"].items():
            if path == "/healthz":
                continue
            for method in methods:
                reply = anybody.request(method, path.replace("{job_id}", "x"))
                assert reply.status_code == 401, (method, path)
                assert reply.json()["error"] == "Unauthorized"
                assert reply.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("given", ["Bearer wrong", f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", "Bearer é"])
def test_a_wrong_token_is_refused(http: httpx.Client, given: str) -> None:
    assert http.get("/v1/status", headers={"Authorization": given.encode()}).status_code == 401


def test_no_token_no_server() -> None:
    with pytest.raises(errors.ControllerError):
        create_app(FakeController(), "")


def test_the_openapi_document_lists_every_route_and_all_its_references_lead_somewhere(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == {
        ("GET", "/healthz"),
        ("GET", "/v1/status"),
        ("GET", "/v1/nodes"),
        ("GET", "/v1/bill"),
        ("GET", "/v1/cost"),
        ("GET", "/v1/cost/report"),
        ("GET", "/v1/cost/focus"),
        ("GET", "/v1/nodes/{launch_id}/log"),
        ("GET", "/metrics"),
        ("POST", "/v1/jobs/{job_id}/resume"),
        ("GET", "/v1/events"),
        ("GET", "/v1/forecast"),
        ("GET", "/v1/why/now"),
        ("GET", "/v1/why/node/{launch_id}"),
        ("GET", "/v1/why/job/{job_id}"),
        ("POST", "/v1/preempt"),
        ("POST", "/v1/shutdown"),
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs/{job_id}"),
        ("POST", "/v1/jobs/{job_id}/stop"),
        ("POST", "/v1/jobs/{job_id}/resume"),
        ("GET", "/v1/cost"),
        ("GET", "/v1/cost/report"),
        ("GET", "/v1/cost/focus"),
        ("GET", "/metrics"),
        ("GET", "/v1/jobs/{job_id}/receipt"),
        ("GET", "/v1/jobs/{job_id}/logs"),
        ("GET", "/v1/jobs/{job_id}/logs/chunk"),
    }
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert all(operation["summary"] and operation["responses"] for operation in operations)
    assert "HTTPBearer" in document["components"]["securitySchemes"]
    for reference in _references(document):
        part = document
        for step in reference.removeprefix("#/").split("/"):
            part = part[step]
        assert part


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(found := part.get("$ref"), str):
            yield found
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def test_submit_reaches_the_controller_whole(http: httpx.Client, fake: FakeController) -> None:
    spec = JobSpec(
        name="train",
        entrypoint="python train.py",
        working_dir="/w",
        tenant="ann",
        min_workers=2,
        max_workers=4,
        worker_resources={"GPU": 0.5},
        worker_labels={"ray.io/market-type": "spot"},
        env={"A": "b"},
        contract=Contract(deadline_at_s=12.5, budget_uusd=7, work_s=60.0),
        max_retries=1,
    )
    assert SubmitRequest.of(spec).to_spec() == spec
    job_id = submitted(http, tenant="ann", min_workers=2, max_workers=4, worker_resources={"GPU": 0.5}, budget_uusd=7)
    event = next(line.event for line in fake.events() if line.event["kind"] == "job_submitted")
    assert event["job_id"] == job_id
    assert event["spec"]["worker_resources"] == {"GPU": 0.5}
    assert event["spec"]["contract"] == {"deadline_at_s": None, "budget_uusd": 7, "work_s": None}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"entrypoint": ""}, "entrypoint"),
        ({"entrypoint": "  "}, "entrypoint"),
        ({"name": 5}, "name"),
        ({"min_workers": -1}, "min_workers"),
        ({"min_workers": 4, "max_workers": 2}, "workers"),
        ({"budget_uusd": 0}, "budget_uusd"),
        ({"worker_resources": {"GPU": -1}}, "worker_resources.GPU"),
        ({"wokers": 4}, "wokers"),
    ],
)
def test_a_bad_request_is_told_field_by_field(http: httpx.Client, change: dict[str, object], field: str) -> None:
    reply = http.post("/v1/jobs", json={**BODY, **change})
    assert reply.status_code == 422
    body = reply.json()
    assert body["error"] == "ConfigError"
    assert [problem["field"] for problem in body["problems"]] == [field]
    assert http.get("/v1/jobs").json() == []


def test_an_unknown_job_is_404_with_the_nearest_id(http: httpx.Client) -> None:
    job_id = submitted(http)
    base = "/v1/jobs/tran-1"
    for method, path in [("GET", ""), ("POST", "/stop"), ("GET", "/receipt"), ("GET", "/logs"), ("GET", "/logs/chunk")]:
        reply = http.request(method, base + path)
        assert reply.status_code == 404, path
        assert reply.json()["error"] == "JobNotFound"
        assert f"did you mean {job_id}?" in reply.json()["hint"]


def test_a_beginning_that_several_jobs_have_is_told_as_such(http: httpx.Client) -> None:
    found = [submitted(http), submitted(http)]
    reply = http.get("/v1/jobs/train")
    assert reply.status_code == 404
    assert f"train is the beginning of 2 ids: {', '.join(found)}" in str(reply.json())
    assert reply.json()["hint"] == "give more of it"


def test_every_error_of_the_tree_has_a_status_and_comes_back_as_itself(
    http: httpx.Client, fake: FakeController
) -> None:
    tree = [errors.TradewindError, *_descendants(errors.TradewindError)]
    for cls in (found for found in tree if found.__module__ == "tradewind.errors"):
        problem = errors.Problem("fleet.yaml:3", "limits", "is wrong")
        error = errors.ConfigError([problem]) if cls is errors.ConfigError else cls("it happened", "do this")
        fake.break_with(error)
        reply = http.get("/v1/status")
        assert reply.status_code in STATUS_OF.values()
        again = ErrorBody(**{**reply.json(), "problems": (problem,)}).to_exception()
        assert type(again) is cls
        assert (again.message, again.hint) == (error.message, error.hint)


def _descendants(cls: type[errors.TradewindError]) -> Iterator[type[errors.TradewindError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _descendants(child)


def test_a_defect_in_the_controller_is_a_500_in_json(http: httpx.Client, fake: FakeController) -> None:
    fake.break_with(KeyError("nodes"))
    reply = http.get("/v1/status")
    assert reply.status_code == 500
    assert reply.json()["error"] == "ControllerError"
    assert "KeyError" in reply.json()["message"]
    fake.break_with(None)
    assert http.get("/v1/status").status_code == 200


def test_an_unknown_path_and_method_are_json_too(http: httpx.Client) -> None:
    assert (http.get("/v1/nothing").status_code, http.delete("/v1/jobs").status_code) == (404, 405)
    assert http.get("/v1/nothing").json()["error"] == "ControllerError"


def test_a_loss_that_is_no_number_does_not_break_the_answer(http: httpx.Client, fake: FakeController) -> None:
    job_id = submitted(http)
    fake.run(job_id)
    fake.step(job_id, 1, loss=float("nan"))
    assert http.get(f"/v1/jobs/{job_id}").json()["loss"] is None
    assert any(line["event"]["kind"] == "step_committed" for line in http.get("/v1/events").json())


def test_logs_come_as_text_and_follow_until_the_job_ends(http: httpx.Client, fake: FakeController) -> None:
    job_id = submitted(http)
    fake.run(job_id)
    fake.print(job_id, "one\ntwo\n")
    assert http.get(f"/v1/jobs/{job_id}/logs").text == "one\ntwo\n"
    assert http.get(f"/v1/jobs/{job_id}/logs", params={"tail": 1}).text == "two\n"
    with http.stream("GET", f"/v1/jobs/{job_id}/logs", params={"follow": True}) as reply:
        pieces = reply.iter_text()
        assert next(pieces) == "one\ntwo\n"
        fake.print(job_id, "three\n")
        assert next(pieces) == "three\n"
        fake.move(job_id, JobState.SUCCEEDED)
        assert list(pieces) == []


def test_a_log_larger_than_a_chunk_comes_whole(http: httpx.Client, fake: FakeController) -> None:
    job_id = submitted(http)
    text = "é" * 400_000
    fake.print(job_id, text)
    assert http.get(f"/v1/jobs/{job_id}/logs").text == text


def test_events_are_a_long_poll(http: httpx.Client, fake: FakeController) -> None:
    last = http.get("/v1/events").json()[-1]["sequence"]
    waiting = threading.Timer(0.1, lambda: fake.add_node("n1"))
    waiting.start()
    found = http.get("/v1/events", params={"after": last, "wait_s": 20}).json()
    waiting.join()
    assert found[0]["event"]["kind"] == "launch_requested"
    assert http.get("/v1/events", params={"wait_s": 1000}).status_code == 422


def test_stopping_the_server_ends_followers_and_long_polls(fake: FakeController) -> None:
    server = serve(create_app(fake, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as http:
        job_id = submitted(http)
        fake.print(job_id, "one\n")
        ended: list[str] = []
        entered = threading.Event()

        def follow() -> None:
            with http.stream("GET", f"/v1/jobs/{job_id}/logs", params={"follow": True}) as reply:
                for piece in reply.iter_text():
                    entered.set()
                    ended.append(piece)

        thread = threading.Thread(target=follow)
        thread.start()
        assert entered.wait(20)
        server.stop()
        thread.join(20)
        assert not thread.is_alive()
        assert ended == ["one\n"]
    with socket.socket() as probe:
        assert probe.connect_ex((server.host, server.port)) != 0


def test_a_taken_port_is_told() -> None:
    with (
        serve(create_app(FakeController(), TOKEN)) as first,
        pytest.raises(errors.ControllerError, match="cannot listen"),
    ):
        serve(create_app(FakeController(), TOKEN), port=first.port)


def test_preempt_and_shutdown(http: httpx.Client, fake: FakeController) -> None:
    job_id = submitted(http)
    for launch_id in ("n1", "n2", "n3"):
        fake.add_node(launch_id, job_id=job_id)
    assert http.post("/v1/preempt", json={"target": "n1"}).json() == {"launch_ids": ["n1"]}
    assert http.post("/v1/preempt", json={"target": "aws/*", "notice_s": 5}).json() == {"launch_ids": ["n2", "n3"]}
    assert http.post("/v1/preempt", json={"target": "nothing"}).status_code == 404
    report = http.post("/v1/shutdown").json()
    assert report["jobs_stopped"] == [job_id]
    assert report["nodes_ended"] == ["n2", "n3"]
    assert report["left"] == []
