"""The seam of a decision: a policy looks at the view and at what earlier policies have decided, and adds actions.

Policies are pure: `now` is in the view, ids are made later, nothing is called. A new one is a file beside this one and
a place in the order of plan.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tradewind.autoscaler.actions import Action, Drain, Launch, Terminate
from tradewind.autoscaler.view import View
from tradewind.model import Offer


@dataclass(frozen=True, slots=True)
class Draft:
    """What earlier policies of the same tick have decided."""

    actions: tuple[Action, ...] = ()
    needed: frozenset[str] | None = None  # launch ids on which the present demand lies; None: nobody has packed it yet

    @property
    def gone(self) -> frozenset[str]:
        """Launch ids that no longer count as capacity."""
        return frozenset(action.launch_id for action in self.actions if isinstance(action, Drain | Terminate))

    @property
    def bought(self) -> list[Offer]:
        return [action.offer for action in self.actions if isinstance(action, Launch)]

    def plus(self, found: tuple[Action, ...] | Packed) -> Draft:
        if isinstance(found, Packed):
            return Draft((*self.actions, *found.actions), found.needed)
        return Draft((*self.actions, *found), self.needed)


@dataclass(frozen=True, slots=True)
class Packed:
    """The answer of a policy that has packed the demand: a later one need not do it again."""

    actions: tuple[Action, ...]
    needed: frozenset[str]


class Policy(Protocol):
    def __call__(self, view: View, draft: Draft) -> tuple[Action, ...] | Packed: ...
