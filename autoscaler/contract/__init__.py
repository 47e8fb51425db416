"""Jobs with a deadline or a budget: which market, spot or on-demand, how many replicas, at the lowest expected cost.

odds.py       what is believed of the markets, from what was seen
induction.py  expected costs of all states, by backward induction
view.py       what the policy sees, and what it answers
decide.py     the decision of a tick, behind a safety net
"""

from tradewind.autoscaler.contract.decide import choose, decide
from tradewind.autoscaler.contract.odds import Odds, Sightings, Tally, Watch
from tradewind.autoscaler.contract.view import Choice, ContractDecision, ContractView, Running, SpotMarket

__all__ = [
    "Choice",
    "ContractDecision",
    "ContractView",
    "Odds",
    "Running",
    "Sightings",
    "SpotMarket",
    "Tally",
    "Watch",
    "choose",
    "decide",
]
