"""The web page of a fleet: three files that hold no data. What they show they ask of /v1, with the token."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute

# Nothing is loaded from anywhere else, and nobody may frame the page: it holds a token.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard/style.css": ("style.css", "text/css; charset=utf-8"),
    "/dashboard/app.js": ("app.js", "text/javascript; charset=utf-8"),
}


def dashboard_routes(route_class: type[APIRoute]) -> APIRouter:
    routes = APIRouter(route_class=route_class)
    for path, (name, media_type) in _FILES.items():
        routes.add_api_route(path, _answer(name, media_type), include_in_schema=False, response_class=Response)
    return routes


def _answer(name: str, media_type: str) -> Callable[[], Response]:
    text = (files("tradewind") / "dashboard" / name).read_text(encoding="utf-8")

    def answer() -> Response:
        return Response(text, media_type=media_type, headers=_HEADERS)

    return answer
