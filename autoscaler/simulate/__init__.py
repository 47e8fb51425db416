"""Replays a trace of jobs through the policies of the loop on a virtual clock: what each would have cost."""

from tradewind.autoscaler.simulate.foresight import AfterRises, Clairvoyant, Foresight, HeadRoom, Learned, Nothing
from tradewind.autoscaler.simulate.replay import Outcome, Scenario, replay
from tradewind.autoscaler.simulate.trace import TraceJob, made_up

__all__ = [
    "AfterRises",
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
