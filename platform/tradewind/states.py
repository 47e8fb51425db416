"""The lives of a node and of a job, each as one table. Pure; a transition that is not in the table raises."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tradewind.errors import IllegalTransition


class NodeState(StrEnum):
    REQUESTED = "requested"  # intent is on record; the cloud may or may not have heard of it
    BOOTING = "booting"  # the cloud has it and bills it; Ray has not seen it
    READY = "ready"  # joined Ray
    DRAINING = "draining"  # takes no new work; ends at its deadline or when idle
    TERMINATING = "terminating"  # the cloud was asked to end it, and still lists it
    FAILED = "failed"  # never came to be: refused by the cloud. Nothing is billed
    GONE = "gone"  # the cloud no longer has it. Billing has ended


# from -> to, and why it happens
NODE_TRANSITIONS: Mapping[NodeState, frozenset[NodeState]] = {
    NodeState.REQUESTED: frozenset(
        {
            NodeState.BOOTING,  # the launch call succeeded, or a listing shows it after an ambiguous outcome
            NodeState.FAILED,  # the cloud refused
            NodeState.GONE,  # came and went between two looks
        }
    ),
    NodeState.BOOTING: frozenset(
        {
            NodeState.READY,  # joined Ray
            NodeState.DRAINING,  # notice before it joined
            NodeState.TERMINATING,  # never joined in time, or no longer wanted
            NodeState.GONE,  # preempted or crashed while booting
        }
    ),
    NodeState.READY: frozenset(
        {
            NodeState.DRAINING,  # idle, or notice of preemption
            NodeState.TERMINATING,  # Ray lost it, the cloud still bills it
            NodeState.GONE,  # preempted without notice
        }
    ),
    NodeState.DRAINING: frozenset(
        {
            NodeState.READY,  # the drain was refused or taken back
            NodeState.TERMINATING,  # drained
            NodeState.GONE,  # the cloud took it first
        }
    ),
    NodeState.TERMINATING: frozenset({NodeState.GONE}),
    NodeState.FAILED: frozenset(),
    NodeState.GONE: frozenset(),
}


class JobState(StrEnum):
    QUEUED = "queued"  # accepted; not yet started, or waiting for its first nodes
    RUNNING = "running"  # its driver runs; training or starting
    RECOVERING = "recovering"  # lost workers, is coming back by itself
    STOPPING = "stopping"  # asked to stop; saving
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


_ENDS = {JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED}

JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.STOPPING, *_ENDS}),
    # Back to the queue: its cell has lost its head, or it moves to another one.
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.RECOVERING, JobState.STOPPING, *_ENDS}),
    JobState.RECOVERING: frozenset({JobState.QUEUED, JobState.RUNNING, JobState.STOPPING, *_ENDS}),
    JobState.STOPPING: frozenset(_ENDS),  # it may finish or fail before the stop reaches it
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.STOPPED: frozenset(),
}


def is_alive(state: NodeState) -> bool:
    """The cloud may have it, and may bill it."""
    return state not in (NodeState.FAILED, NodeState.GONE)


def is_over(state: JobState) -> bool:
    return state in _ENDS


def move_node(current: NodeState, to: NodeState, name: str) -> NodeState:
    """The new state, or IllegalTransition."""
    if to not in NODE_TRANSITIONS[current]:
        raise IllegalTransition(f"node {name} cannot go from {current} to {to}")
    return to


def move_job(current: JobState, to: JobState, name: str) -> JobState:
    if to not in JOB_TRANSITIONS[current]:
        raise IllegalTransition(f"job {name} cannot go from {current} to {to}")
    return to
