"""Replays a job trace through the policies of the loop on a virtual clock: what a policy would have cost, and spared."""

from tradewind.autoscaler.simulate.foresight import Clairvoyant, Foresight, HeadRoom, Learned, Nothing
from tradewind.autoscaler.simulate.replay import Outcome, Scenario, replay
from tradewind.autoscaler.simulate.trace import TraceJob, made_up

__all__ = [
    "Clairvoyant",
    "Foresight",
    "HeadRoom",
    "Learned",
    "Nothing",
    "Outcome",
    "Scenario",
    "TraceJob",
    "made_up",
    "replay",
]
