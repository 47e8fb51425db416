"""Where a cell's Ray head comes from: a process on this machine (LocalHead), or a node that the cell's loop buys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tradewind.cells.line import Line


class HeadSource(Protocol):
    """`alive`: Ray can be asked. The rest is empty as long as nothing is known of it."""

    @property
    def alive(self) -> bool: ...

    @property
    def gcs_address(self) -> str: ...

    @property
    def dashboard_url(self) -> str: ...

    @property
    def env(self) -> Mapping[str, str]:
        """What plain `ray` needs to be let in from this machine; empty: it cannot be."""
        ...


class RemoteHead:
    """A head that dials out: it lives while its agent is heard."""

    def __init__(self, line: Line) -> None:
        self.line = line

    @property
    def alive(self) -> bool:
        return self.line.present is not None

    @property
    def gcs_address(self) -> str:
        words = self.line.present
        return words.gcs_address if words else ""

    @property
    def dashboard_url(self) -> str:
        words = self.line.present
        return words.dashboard_url if words else ""

    @property
    def env(self) -> Mapping[str, str]:
        return {}
