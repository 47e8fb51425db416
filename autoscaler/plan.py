"""The ordered policies -> one Plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.policies import ahead, buy, contract, exchange, head, idle, lost, notice
from tradewind.autoscaler.policies.base import Draft, Policy
from tradewind.autoscaler.view import View
from tradewind.model import Target

# The order matters: without a head nothing else counts; then what is going is known, then what must be bought for the
# rest, then what contracts no longer want where it is, then what is worth buying before it is asked for, then what runs
# cheaper elsewhere, then what is left over.
POLICIES: tuple[Policy, ...] = (
    head.decide,
    lost.decide,
    notice.decide,
    buy.decide,
    contract.decide,
    ahead.decide,
    exchange.decide,
    idle.decide,
)


def make_plan(view: View, targets: Mapping[str, Target] | None = None, policies: Sequence[Policy] = POLICIES) -> Plan:
    draft = Draft()
    for policy in policies:
        draft = draft.plus(policy(view, draft))
    return Plan(view.now_s, draft.actions, dict(targets or {}))
