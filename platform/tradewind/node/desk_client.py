"""A node's way to the join desk of its head. An edge."""

from __future__ import annotations

import ssl
from dataclasses import asdict

import httpx

from tradewind.errors import Conflict, InvalidRequest, RayError, TradewindError, Unauthorized
from tradewind.node.join_desk import BootReport, EnergyReport, JoinRequest

_TIMEOUT_S = 15.0
_ERRORS: dict[int, type[TradewindError]] = {401: Unauthorized, 409: Conflict, 413: InvalidRequest, 422: InvalidRequest}


class DeskClient:
    """Speaks from the node's own address: that is the one that it gets a certificate for."""

    def __init__(self, url: str, ca_pem: str, token: str, address: str) -> None:
        self.url = url
        trust = ssl.create_default_context(cadata=ca_pem)
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            transport=httpx.HTTPTransport(verify=trust, local_address=address, trust_env=False),
            timeout=_TIMEOUT_S,
        )

    def join(self, request: JoinRequest) -> str:
        """The certificate. RayError: no answer, try again; anything else is final."""
        found = self._post("/join", asdict(request)).json()
        return str(found["certificate_pem"])

    def report(self, report: BootReport) -> None:
        self._post("/report", asdict(report))

    def measured(self, report: EnergyReport) -> None:
        self._post("/energy", asdict(report))

    def close(self) -> None:
        self._http.close()

    def _post(self, path: str, body: object) -> httpx.Response:
        try:
            answer = self._http.post(path, json=body)
        except httpx.HTTPError as error:
            what = f"{type(error).__name__}: {error}"
            raise RayError(f"the join desk at {self.url} does not answer: {what}", "it is asked again") from error
        if answer.is_success:
            return answer
        told = answer.json() if "json" in answer.headers.get("content-type", "") else {}
        message = str(told.get("message") or told.get("detail") or answer.reason_phrase)
        raise _ERRORS.get(answer.status_code, RayError)(message, str(told.get("hint") or ""))
