"""The part of the HTTP API that is about money: summaries, the report, FOCUS, metrics. It only reads the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from tradewind.api import ControllerPort
from tradewind.cost.figures import By, Summary, summary
from tradewind.cost.focus import focus_csv
from tradewind.cost.page import Report
from tradewind.metrics import CONTENT_TYPE, metrics_text

_SUMMARY: TypeAdapter[Summary] = TypeAdapter(Summary)
_REPORT: TypeAdapter[Report] = TypeAdapter(Report)
_LINES = 500  # of FOCUS in one piece

Since = Annotated[float | None, Query(ge=0, description="leave out the days before this moment (seconds since 1970)")]


def cost_routes(port: ControllerPort, route_class: type[APIRoute]) -> APIRouter:
    routes = APIRouter(prefix="/cost", tags=["cost"], route_class=route_class)

    @routes.get("", summary="All cost, added up by job, tenant, team, market, cloud, day or label")
    def cost(by: By = "day", from_s: Since = None) -> dict[str, Any]:
        with port.ledger() as (ledger, now_s):
            return _plain(_SUMMARY, summary(ledger, by, now_s, from_s=from_s))

    @routes.get("/report", summary="The same cost by day, tenant, job and market, as the HTML report shows it")
    def report(from_s: Since = None) -> dict[str, Any]:
        status = port.status()
        with port.ledger() as (ledger, now_s):
            found = Report(
                fleet=status.fleet,
                days=summary(ledger, "day", now_s, from_s=from_s),
                tenants=summary(ledger, "team", now_s, from_s=from_s),
                jobs=summary(ledger, "job", now_s, from_s=from_s),
                markets=summary(ledger, "market", now_s, from_s=from_s),
                rate_uusd_per_h=status.price_uusd_per_h,
            )
        return _plain(_REPORT, found)

    @routes.get("/focus", response_class=StreamingResponse, summary="Every node, day, job and label as FOCUS 1.0 CSV")
    def focus() -> StreamingResponse:
        fleet = port.status().fleet
        with port.ledger() as (ledger, now_s):
            lines = list(focus_csv(ledger, fleet, now_s))  # here: the ledger is read as of one moment
        return StreamingResponse(_pieces(lines), media_type="text/csv; charset=utf-8")

    return routes


def metrics_routes(port: ControllerPort, route_class: type[APIRoute]) -> APIRouter:
    routes = APIRouter(tags=["metrics"], route_class=route_class)

    @routes.get("/metrics", response_class=Response, summary="For Prometheus")
    def metrics() -> Response:
        return Response(metrics_text(port), media_type=CONTENT_TYPE)

    return routes


def _plain(adapter: TypeAdapter[Any], value: object) -> dict[str, Any]:
    found: dict[str, Any] = adapter.dump_python(value, mode="json")
    return found


def _pieces(lines: list[str]) -> Iterator[str]:
    return ("".join(lines[i : i + _LINES]) for i in range(0, len(lines), _LINES))
