"""Small histories whose amounts were worked out by hand. A node costs 1000 micro-dollars a second unless told."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tradewind.cost.figures import summary
from tradewind.cost.labels import Label
from tradewind.cost.ledger import Ledger
from tradewind.cost.receipt import bill, receipt
from tradewind.errors import JobNotFound
from tradewind.model import Capacity, EndReason, Offer, Phase
from tradewind.states import JobState

History = Any  # the builder of conftest.py


def costs(ledger: Ledger, now_s: float) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for entry in ledger.entries(now_s):
        key = (entry.job_id, str(entry.label))
        found[key] = found.get(key, 0) + entry.cost_uusd
    return found


def job_costs(history: History, job_id: str, now_s: float) -> dict[str, int]:
    found = receipt(history.ledger, job_id, now_s).labels_uusd
    return {str(label): cost for label, cost in found.items() if cost}


def training(history: History) -> History:
    """Boots 0-10, idle to 12, starts to 20, steps 1-10 to 30, held to 33."""
    history.simulated().job("j").node("n", 0.0, joined_s=10.0)
    history.hold("j", "n", 12.0).phase("j", 13.0, Phase.STARTING).phase("j", 18.0, Phase.TRAINING)
    return history.steps("j", 20.0, 30.0, 1, 10)


def test_a_node_alone_boots_and_idles(history: History) -> None:
    history.node("n", 0.0, joined_s=10.0, gone_s=25.0)
    assert costs(history.ledger, 5.0) == {("", "booting"): 5_000}
    assert costs(history.ledger, 20.0) == {("", "booting"): 10_000, ("", "idle"): 10_000}
    assert costs(history.ledger, 1000.0) == {("", "booting"): 10_000, ("", "idle"): 15_000}


def test_a_node_that_never_joined_failed_when_it_is_gone(history: History) -> None:
    history.node("n", 0.0, gone_s=30.0, end=EndReason.CRASHED)
    assert costs(history.ledger, 20.0) == {("", "booting"): 20_000}
    assert costs(history.ledger, 40.0) == {("", "failed"): 30_000}


def test_a_launch_that_never_came_costs_nothing(history: History) -> None:
    history.node("n", 5.0)
    assert costs(history.ledger, 4.0) == {}
    assert bill(history.ledger, 4.0).nodes == ()


def test_first_start_and_useful_steps(history: History) -> None:
    training(history)
    assert costs(history.ledger, 30.0) == {
        ("", "booting"): 10_000,
        ("", "idle"): 2_000,
        ("j", "starting"): 8_000,  # 1 s before the first report, 5 s starting, 2 s training without a step
        ("j", "useful"): 10_000,
    }


def test_time_after_the_last_step_is_unmeasured_until_the_next_report_explains_it(history: History) -> None:
    training(history)
    assert job_costs(history, "j", 33.0) == {"starting": 8_000, "useful": 10_000, "unmeasured": 3_000}
    history.phase("j", 33.0, Phase.RESTARTING, attempt=2)
    assert job_costs(history, "j", 33.0) == {"starting": 8_000, "useful": 10_000, "restarting": 3_000}


def test_a_loss_costs_the_restart_and_the_steps_that_are_taken_again(history: History) -> None:
    training(history).phase("j", 32.0, Phase.RESTARTING, attempt=2).phase("j", 35.0, Phase.TRAINING, attempt=2)
    history.steps("j", 40.0, 50.0, 8, 12, attempt=2)  # 8, 9, 10 again: three fifths of the time
    assert job_costs(history, "j", 50.0) == {
        "starting": 8_000,
        "useful": 10_000 + 4_000,
        "recomputed": 6_000,
        "restarting": 10_000,  # 2 s until it was seen, 3 s restarting, 5 s until the first step
    }
    told = receipt(history.ledger, "j", 50.0)
    assert (told.steps, told.recomputed_steps, told.samples, told.attempts) == (12, 3, 120, 2)


def test_resizing_and_checkpointing_have_labels_of_their_own(history: History) -> None:
    training(history).phase("j", 30.0, Phase.CHECKPOINTING).phase("j", 32.0, Phase.TRAINING)
    history.steps("j", 32.0, 40.0, 11, 18).phase("j", 41.0, Phase.RESIZING, attempt=2)
    history.phase("j", 42.0, Phase.STARTING, attempt=2).phase("j", 44.0, Phase.TRAINING, attempt=2)
    history.steps("j", 45.0, 50.0, 19, 20, attempt=2).phase("j", 51.0, Phase.DONE, attempt=2)
    history.release("j", "n", 53.0)
    assert job_costs(history, "j", 60.0) == {
        "starting": 8_000,
        "useful": 23_000,
        "checkpointing": 2_000,
        "resizing": 5_000,  # a start within a resize is part of it
        "ending": 3_000,
    }


def test_a_gap_between_two_steps_belongs_to_the_second(history: History) -> None:
    training(history).steps("j", 31.0, 35.0, 11, 14)
    assert job_costs(history, "j", 35.0) == {"starting": 8_000, "useful": 15_000}


def test_a_phase_told_inside_a_step_takes_effect_after_it(history: History) -> None:
    training(history).phase("j", 36.0, Phase.CHECKPOINTING)
    history.steps("j", 30.0, 38.0, 11, 12).phase("j", 40.0, Phase.TRAINING)
    assert job_costs(history, "j", 40.0) == {"starting": 8_000, "useful": 18_000, "checkpointing": 2_000}


def test_a_start_after_work_was_done_is_a_restart(history: History) -> None:
    training(history).phase("j", 30.0, Phase.STARTING, attempt=2)
    assert job_costs(history, "j", 34.0) == {"starting": 8_000, "useful": 10_000, "restarting": 4_000}


def test_foreign_jobs_are_unmeasured_ours_are_starting(history: History) -> None:
    history.job("ours").job("theirs", foreign=True).node("a", 0.0, 0.0).node("b", 0.0, 0.0)
    history.hold("ours", "a", 0.0).hold("theirs", "b", 0.0)
    assert costs(history.ledger, 10.0) == {("ours", "starting"): 10_000, ("theirs", "unmeasured"): 10_000}


def test_a_foreign_job_that_reports_is_measured(history: History) -> None:
    history.job("j", foreign=True).node("n", 0.0, 0.0).hold("j", "n", 0.0).steps("j", 2.0, 10.0, 1, 4)
    assert job_costs(history, "j", 10.0) == {"starting": 2_000, "useful": 8_000}


def test_jobs_share_a_node_by_accelerators_and_the_rest_is_idle(history: History, gpu_offer: Offer) -> None:
    four = replace(gpu_offer, accelerator_count=4.0, vcpus=8.0)
    history.job("a").job("b", foreign=True).node("n", 0.0, 0.0, offer=four)
    history.hold("a", "n", 0.0, {"CPU": 8.0, "GPU": 1.0}).hold("b", "n", 4.0, {"GPU": 2.0}).release("a", "n", 8.0)
    assert costs(history.ledger, 10.0) == {
        ("", "idle"): 3_000 + 1_000 + 1_000,
        ("a", "starting"): 2_000,
        ("b", "unmeasured"): 3_000,
    }
    assert receipt(history.ledger, "b", 10.0).accelerator_hours == pytest.approx(2 * 6 / 3600)


def test_jobs_share_a_plain_machine_by_cpus(history: History, gpu_offer: Offer) -> None:
    plain = replace(gpu_offer, accelerator="", accelerator_count=0.0)
    history.job("a").job("b").node("n", 0.0, 0.0, offer=plain)
    history.hold("a", "n", 0.0, {"CPU": 1.0}).hold("b", "n", 0.0, {"CPU": 2.0})
    assert costs(history.ledger, 8.0) == {("", "idle"): 2_000, ("a", "starting"): 2_000, ("b", "starting"): 4_000}
    assert receipt(history.ledger, "a", 8.0).paid_uusd_per_accelerator_h is None


def test_more_held_than_there_is_shrinks_in_proportion(history: History) -> None:
    history.job("a").job("b").node("n", 0.0, 0.0)
    history.hold("a", "n", 0.0, {"GPU": 1.0}).hold("b", "n", 0.0, {"CPU": 4.0})  # all GPUs, all CPUs
    assert costs(history.ledger, 8.0) == {("a", "starting"): 4_000, ("b", "starting"): 4_000}
    assert receipt(history.ledger, "b", 8.0).accelerator_hours == 0


def test_spot_prices_move(history: History) -> None:
    history.price(-5.0, 36_000_000).node("n", 0.0, 0.0).price(10.0, 7_200_000).price(15.0, 1_800_000)
    assert costs(history.ledger, 20.0) == {("", "idle"): 10_000 + 10_000 + 2_500}
    assert bill(history.ledger, 20.0).rate_uusd_per_h == 1_800_000
    assert bill(history.ledger, 12.0).rate_uusd_per_h == 7_200_000


def test_a_price_that_changed_between_request_and_launch_counts(history: History) -> None:
    history.price(-0.2, 7_200_000).node("n", 0.0, 0.0)  # requested at -0.5
    assert costs(history.ledger, 10.0) == {("", "idle"): 20_000}


def test_an_unknown_price_is_listed_and_spoils_no_sum(history: History, gpu_offer: Offer) -> None:
    unknown = replace(gpu_offer, price_uusd_per_h=None, market=replace(gpu_offer.market, zone="use1-az9"))
    history.job("j").node("n", 0.0, 0.0).node("u", 0.0, 0.0, offer=unknown).hold("j", "n", 0.0).hold("j", "u", 0.0)
    told = receipt(history.ledger, "j", 10.0)
    assert told.total_uusd == 10_000
    assert told.unpriced_nodes == ("u",)
    assert told.on_demand_uusd == 40_000
    assert (told.saved_uusd, told.paid_uusd_per_accelerator_h) == (None, None)
    assert bill(history.ledger, 10.0).unpriced_nodes == ("u",)
    history.price(4.0, 3_600_000, unknown.market)  # from here on it is known
    late = receipt(history.ledger, "j", 10.0)
    assert (late.total_uusd, late.unpriced_nodes) == (16_000, ("u",))


def test_receipt_compares_with_on_demand(history: History) -> None:
    training(history)
    told = receipt(history.ledger, "j", 30.0)
    assert (told.total_uusd, told.on_demand_uusd, told.saved_uusd) == (18_000, 36_000, 18_000)
    assert told.saved_fraction == 0.5
    assert told.accelerator_hours == pytest.approx(18 / 3600)
    assert told.paid_uusd_per_accelerator_h == 3_600_000
    assert told.effective_uusd_per_accelerator_h == 6_480_000  # 18,000 for 10 useful seconds


def test_unknown_on_demand_price_is_not_compared(history: History, gpu_offer: Offer) -> None:
    history.job("j").node("n", 0.0, 0.0, offer=replace(gpu_offer, on_demand_uusd_per_h=None)).hold("j", "n", 0.0)
    told = receipt(history.ledger, "j", 10.0)
    assert (told.on_demand_uusd, told.saved_uusd, told.saved_fraction) == (None, None, None)


def test_an_on_demand_node_saves_exactly_nothing(history: History, gpu_offer: Offer) -> None:
    market = replace(gpu_offer.market, capacity=Capacity.ON_DEMAND)
    listed = replace(gpu_offer, market=market, price_uusd_per_h=1_234_567, on_demand_uusd_per_h=None)
    training(history).node("d", 0.0, 1.0, offer=listed).job("k").hold("k", "d", 3.333)
    told = receipt(history.ledger, "k", 77.777)
    assert told.total_uusd == told.on_demand_uusd
    assert told.saved_uusd == 0


def test_lost_nodes_and_notices_are_counted_for_the_jobs_on_them(history: History) -> None:
    history.job("j").job("k")
    for name in ("taken", "announced", "returned", "left", "elsewhere"):
        history.node(name, 0.0, 0.0).hold("k" if name == "elsewhere" else "j", name, 1.0)
    history.gone("taken", 100.0, EndReason.PREEMPTED)
    history.notice("announced", 90.0).release("j", "announced", 95.0).gone("announced", 99.0, EndReason.TERMINATED)
    history.release("j", "returned", 100.0).gone("returned", 110.0, EndReason.TERMINATED)
    history.release("j", "left", 10.0).gone("left", 110.0, EndReason.PREEMPTED)  # a minute after it was let go
    history.gone("elsewhere", 100.0, EndReason.LOST)
    told = receipt(history.ledger, "j", 200.0)
    assert (told.preemptions, told.notices) == (2, 1)
    assert receipt(history.ledger, "j", 92.0).preemptions == 0
    assert receipt(history.ledger, "k", 200.0).preemptions == 1


def test_holdings_seen_to_end_just_before_the_loss_count_as_lost(history: History) -> None:
    history.job("j").node("n", 0.0, 0.0).hold("j", "n", 1.0).release("j", "n", 99.0)
    history.gone("n", 101.0, EndReason.PREEMPTED)
    assert receipt(history.ledger, "j", 200.0).preemptions == 1


def test_order_and_repetition_of_reports_change_nothing(history: History) -> None:
    training(history).phase("j", 32.0, Phase.RESTARTING, attempt=2).phase("j", 35.0, Phase.TRAINING, attempt=2)
    history.steps("j", 40.0, 50.0, 8, 12, attempt=2).steps("j", 50.0, 60.0, 13, 20, attempt=2)
    reports = [event for event in history.events if hasattr(event, "sequence")]
    others = [event for event in history.events if not hasattr(event, "sequence")]
    expected = receipt(history.ledger, "j", 60.0)
    for seed in range(20):
        shuffled = reports * 2
        random.Random(seed).shuffle(shuffled)
        assert receipt(Ledger.fold(others + shuffled), "j", 60.0) == expected


def test_asking_in_between_does_not_disturb_the_fold(history: History) -> None:
    training(history).steps("j", 30.0, 40.0, 11, 20).gone("n", 41.0, EndReason.PREEMPTED)
    history.phase("j", 42.0, Phase.RESTARTING)
    late = history.events.pop(-3)  # steps 11-20 come last, after node and restart
    history.events.append(late)
    asked = Ledger(minimum_ms={})
    for event in history.events:
        asked.apply(event)
        bill(asked, 50.0)
    assert bill(asked, 50.0) == bill(history.ledger, 50.0)
    assert bill(asked, 50.0).labels_uusd[Label.USEFUL] == 20_000


def test_reports_after_the_holdings_ended_still_count(history: History) -> None:
    training(history).release("j", "n", 40.0).steps("j", 30.0, 40.0, 11, 20)
    assert job_costs(history, "j", 99.0) == {"starting": 8_000, "useful": 20_000}


def test_bill_is_jobs_and_overhead(history: History) -> None:
    training(history).state("j", 30.0, JobState.RUNNING)
    told = bill(history.ledger, 30.0)
    assert (told.total_uusd, told.jobs_uusd, told.overhead_uusd) == (30_000, 18_000, 12_000)
    assert told.simulated
    assert [(line.job_id, line.cost_uusd, line.state) for line in told.jobs] == [("j", 18_000, JobState.RUNNING)]
    assert [(line.nodes, line.held_s, line.cost_uusd) for line in told.markets] == [(1, 30.0, 30_000)]
    (node,) = told.nodes
    assert (node.launched_s, node.joined_s, node.ended_s, node.end) == (0.0, 10.0, None, None)
    assert node.labels_uusd[Label.BOOTING] == 10_000


def test_an_unknown_job_is_told(history: History) -> None:
    with pytest.raises(JobNotFound, match="no job 'x'"):
        receipt(history.ledger, "x", 1.0)


# --- what is bought and not yet used, and what is billed beyond an end ----------------------------------------------


def test_a_node_that_waits_for_the_rest_of_a_gang_is_queued_capacity(history: History) -> None:
    history.job("j").node("n", 0.0, joined_s=10.0).bought_for("n", "j").node("m", 0.0, joined_s=10.0)
    history.hold("j", "n", 25.0).release("j", "n", 30.0)
    assert costs(history.ledger, 20.0) == {("", "booting"): 20_000, ("", "queued"): 10_000, ("", "idle"): 10_000}
    after = costs(history.ledger, 40.0)
    assert after["", "queued"] == 15_000  # from joining to the first holding
    assert after["", "idle"] == 40_000  # m all the time, n after the release


def test_nothing_waits_for_a_job_that_is_over(history: History) -> None:
    history.job("j").node("n", 0.0, joined_s=10.0).bought_for("n", "j").state("j", 15.0, JobState.STOPPED)
    assert costs(history.ledger, 20.0) == {("", "booting"): 10_000, ("", "queued"): 5_000, ("", "idle"): 5_000}


def test_a_short_life_is_billed_for_the_minimum(history: History, gpu_offer: Offer) -> None:
    history.job("j").node("n", 0.0, joined_s=10.0, gone_s=30.0).hold("j", "n", 10.0).node("f", 0.0, gone_s=5.0)
    azure = replace(gpu_offer, market=replace(gpu_offer.market, cloud="azure"))
    history.node("z", 0.0, gone_s=5.0, offer=azure)
    ledger = Ledger.fold(history.events)
    assert costs(ledger, 20.0) == {("", "booting"): 10_000, ("j", "starting"): 10_000, ("", "failed"): 25_000}
    assert costs(ledger, 1000.0) == {
        ("", "booting"): 10_000,
        ("j", "starting"): 20_000,
        ("", "idle"): 30_000,  # to the end of the first minute: nobody holds a node that is gone
        ("", "failed"): 65_000,  # a minute of AWS, five seconds of Azure
    }
    assert {line.launch_id: line.cost_uusd for line in bill(ledger, 1000.0).nodes} == {
        "f": 60_000,
        "n": 60_000,
        "z": 5_000,
    }


# --- days -------------------------------------------------------------------------------------------------------------

DAY_S = 86_400.0


def test_days_are_settled_once_and_again_when_something_new_is_heard_of_them(history: History) -> None:
    history.job("j").node("n", 0.0, joined_s=0.0).hold("j", "n", 0.0).phase("j", 0.0, Phase.TRAINING)
    history.steps("j", 0.0, DAY_S * 2.5, 1, 10)
    ledger = history.ledger
    assert costs(ledger, DAY_S * 3) == {("j", "useful"): 216_000_000, ("j", "unmeasured"): 43_200_000}
    history.price(DAY_S * 1.5, 7_200_000).phase("j", DAY_S * 2.75, Phase.RESTARTING, attempt=2)
    for event in history.events[-2:]:
        ledger.apply(event)
    expected = {("j", "useful"): 129_600_000 + 172_800_000, ("j", "restarting"): 86_400_000}
    assert costs(ledger, DAY_S * 3) == costs(history.ledger, DAY_S * 3) == expected
    assert costs(ledger, DAY_S) == {("j", "useful"): 86_400_000}  # the past can still be asked about
    assert costs(ledger, DAY_S * 3) == expected


def test_a_node_that_boots_over_midnight_and_fails(history: History) -> None:
    history.node("n", DAY_S - 10.0, gone_s=DAY_S + 10.0, end=EndReason.CRASHED)
    ledger = history.ledger
    assert costs(ledger, DAY_S + 5.0) == {("", "booting"): 15_000}
    assert costs(ledger, DAY_S + 20.0) == {("", "failed"): 20_000}
    by_day = {line.name: line.cost_uusd for line in summary(ledger, "day", DAY_S + 20.0).lines}
    assert by_day == {"1970-01-01": 10_000, "1970-01-02": 10_000}
