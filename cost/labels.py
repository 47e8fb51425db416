"""What a dollar bought. Every micro-dollar of a bill carries exactly one of these."""

from __future__ import annotations

from enum import StrEnum


class Label(StrEnum):
    USEFUL = "useful"  # optimizer steps taken for the first time
    RECOMPUTED = "recomputed"  # steps that had been committed before a loss
    STARTING = "starting"  # a job's workers start for the first time
    RESTARTING = "restarting"  # from the last step before an unplanned loss to the first after it
    RESIZING = "resizing"  # the same, for a planned change of size
    CHECKPOINTING = "checkpointing"  # saving, while no step is taken
    ENDING = "ending"  # held after the job said that it is done
    UNMEASURED = "unmeasured"  # held by a job that does not tell (any more, or yet) what it does
    BOOTING = "booting"  # billed, not yet in Ray
    QUEUED = "queued"  # in Ray, bought for jobs of which none has taken anything yet: it waits for the rest of a gang
    IDLE = "idle"  # in Ray, held by no job; and what a cloud bills beyond a node's end, as the least that it bills
    FAILED = "failed"  # billed, and gone without ever having joined Ray
    PLATFORM = "platform"  # the heads of cells: no job could run without them


# These are the fleet's: no job pays for them. All others are always some job's.
OVERHEAD = (Label.BOOTING, Label.QUEUED, Label.IDLE, Label.FAILED, Label.PLATFORM)
JOB_LABELS = tuple(label for label in Label if label not in OVERHEAD)
