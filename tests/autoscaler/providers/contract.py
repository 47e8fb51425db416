"""The contract that every provider keeps, as cases over a World (cloud_world.py).

`test_contract.py` runs each case on each world; `python contract_table.py [WORLD ...]` prints the table of both.
A case is a function of a fresh world. What it needs and a world cannot do is "n/a", with the world's reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from cloud_world import (
    BOOTED_S,
    CELL,
    ENDED_S,
    FLEET,
    OTHER_FLEET,
    World,
    make_spec,
    max_price,
)

from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.market import refused_scope
from tradewind.autoscaler.providers.base import CloudNode, CloudState, Provider
from tradewind.errors import (
    AmbiguousOutcome,
    AuthError,
    Conflict,
    InvalidRequest,
    NotFound,
    PriceTooHigh,
    ProviderError,
    QuotaExceeded,
    Scope,
    Stockout,
    Throttled,
    Transient,
    Unsupported,
)
from tradewind.model import Capacity, EndReason, Offer
from tradewind.states import NodeState

LIVING = (CloudState.PENDING, CloudState.RUNNING)


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    run: Callable[[World], None]
    needs: tuple[str, ...]

    def why_not(self, world: World) -> str:
        """Why this world cannot be asked this; "" if it can."""
        return next((world.cannot[need] for need in self.needs if need in world.cannot), "")


CASES: list[Case] = []


def case(*needs: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    def register(run: Callable[[World], None]) -> Callable[[World], None]:
        CASES.append(Case(run.__name__, run, needs))
        return run

    return register


# --- words ---------------------------------------------------------------------------------------------------------


def launch(world: World, launch_id: str = "tw-1", offer: Offer | None = None, by: Provider | None = None) -> CloudNode:
    return (by or world.provider()).launch(make_spec(launch_id, offer or world.spot))


def error_of(call: Callable[[], object]) -> ProviderError | None:
    try:
        call()
    except ProviderError as error:
        return error
    return None


def refusal(world: World, name: str = "tw-1", offer: Offer | None = None, by: Provider | None = None) -> ProviderError:
    """The error of a launch that must fail."""
    error = error_of(lambda: launch(world, name, offer, by))
    assert error is not None, "the launch was not refused"
    return error


def listed(provider: Provider) -> dict[str, CloudNode]:
    nodes = provider.list_nodes()
    found = {node.launch_id: node for node in nodes}
    assert len(found) == len(nodes), f"listed twice: {sorted(node.launch_id for node in nodes)}"
    return found


def living(provider: Provider) -> set[str]:
    return {name for name, node in listed(provider).items() if node.state in LIVING}


def ids(world: World) -> list[str]:
    """Launch ids of all that really is there, repetitions included."""
    return sorted(truth.launch_id for truth in world.instances() if truth.launch_id)


def running(world: World, *launch_ids: str, by: Provider | None = None) -> Provider:
    """A provider, and these launches booted."""
    provider = by or world.provider()
    for launch_id in launch_ids:
        launch(world, launch_id, by=provider)
    world.advance(BOOTED_S)
    return provider


def ended(world: World, provider: Provider, *launch_ids: str) -> None:
    provider.terminate(launch_ids)
    world.advance(ENDED_S)


# --- a launch, and the same again ----------------------------------------------------------------------------------


@case()
def launch_makes_one_node(world: World) -> None:
    node = launch(world)
    assert node.launch_id == "tw-1"
    assert node.instance_id
    assert node.state in LIVING
    assert node.offer.market == world.spot.market
    [truth] = world.instances()
    assert (truth.launch_id, truth.instance_id) == ("tw-1", node.instance_id)


@case()
def a_node_runs_and_is_billed_from_then(world: World) -> None:
    provider = running(world, "tw-1")
    node = listed(provider)["tw-1"]
    assert node.state is CloudState.RUNNING
    assert node.billed_from_s is not None
    assert node.created_at_s <= node.billed_from_s <= world.now_s()
    assert node.end is None
    assert [truth.state for truth in world.instances()] == ["running"]


@case()
def the_same_launch_id_twice(world: World) -> None:
    provider = world.provider()
    first, second = launch(world, by=provider), launch(world, by=provider)
    assert first.instance_id == second.instance_id
    assert ids(world) == ["tw-1"]


@case()
def the_same_launch_id_after_a_restart(world: World) -> None:
    first = launch(world)
    world.advance(BOOTED_S)
    assert launch(world).instance_id == first.instance_id
    assert ids(world) == ["tw-1"]


@case()
def the_same_launch_id_from_two_threads(world: World) -> None:
    provider = world.provider()
    with ThreadPoolExecutor(2) as pool:
        nodes = list(pool.map(lambda _: _launch_or_error(world, "tw-1", provider), range(2)))
    made = {node.instance_id for node in nodes if isinstance(node, CloudNode)}
    assert len(made) == 1, nodes  # the other may be told "not now" or "no answer", never another instance
    assert ids(world) == ["tw-1"]


@case()
def ten_launches_at_once(world: World) -> None:
    provider, names = world.provider(), [f"tw-{n}" for n in range(10)]
    with ThreadPoolExecutor(4) as pool:
        nodes = list(pool.map(lambda name: launch(world, name, by=provider), names))
    assert len({node.instance_id for node in nodes}) == 10
    assert ids(world) == sorted(names)


@case()
def the_same_launch_id_in_another_zone(world: World) -> None:
    _never_two(world, world.other_zone, restart=False)


@case()
def the_same_launch_id_in_another_zone_after_a_restart(world: World) -> None:
    _never_two(world, world.other_zone, restart=True)


@case()
def the_same_launch_id_in_another_region(world: World) -> None:
    _never_two(world, world.other_region, restart=False)


@case()
def the_same_launch_id_as_on_demand(world: World) -> None:
    _never_two(world, world.on_demand, restart=False)


def _never_two(world: World, offer: Offer, *, restart: bool) -> None:
    provider = world.provider()
    first = launch(world, by=provider)
    try:
        second = launch(world, "tw-1", offer, None if restart else provider)
        assert second.instance_id == first.instance_id
    except Conflict:
        pass  # just as well
    assert ids(world) == ["tw-1"]


@case()
def a_launch_id_whose_node_has_ended(world: World) -> None:
    provider = running(world, "tw-1")
    ended(world, provider, "tw-1")
    answer = _launch_or_error(world, "tw-1", provider)
    if isinstance(answer, ProviderError):
        assert not answer.retryable, answer  # otherwise it would be asked for again and again
    else:
        assert answer.state in (CloudState.GONE, CloudState.STOPPING)
    assert ids(world) == []


@case("killed_launch")
def the_controller_is_killed_between_request_and_answer(world: World) -> None:
    world.killed_launch("tw-1")
    world.advance(BOOTED_S)
    provider = world.provider()
    found = listed(provider)["tw-1"]
    assert found.state is CloudState.RUNNING
    assert launch(world, by=provider).instance_id == found.instance_id
    assert ids(world) == ["tw-1"]


def _launch_or_error(world: World, launch_id: str, provider: Provider) -> CloudNode | ProviderError:
    try:
        return launch(world, launch_id, by=provider)
    except ProviderError as error:
        return error


# --- what is launched ----------------------------------------------------------------------------------------------


@case()
def spot_is_spot(world: World) -> None:
    launch(world, offer=world.spot)
    assert [truth.market for truth in world.instances()] == [world.spot.market]


@case()
def on_demand_is_on_demand(world: World) -> None:
    launch(world, offer=world.on_demand)
    assert [truth.market for truth in world.instances()] == [world.on_demand.market]
    assert world.on_demand.market.capacity is Capacity.ON_DEMAND


@case()
def a_listed_node_has_the_whole_offer(world: World) -> None:
    """A controller that lost its log adopts nodes by what is listed."""
    running(world, "tw-1")
    offer = listed(world.provider())["tw-1"].offer
    assert offer.market == world.spot.market
    assert offer.resources == world.spot.resources
    assert offer.labels == world.spot.labels
    assert offer.price_uusd_per_h is None or offer.price_uusd_per_h > 0


@case("disks")
def tags_are_on_the_instance_and_its_parts(world: World) -> None:
    launch(world)
    world.advance(BOOTED_S)
    [truth] = world.instances()
    ours = {"launch_id": "tw-1", "fleet": FLEET, "cell": CELL}
    assert truth.tags == ours
    assert truth.parts
    assert {name: tags for name, tags in truth.parts.items() if tags != ours} == {}


@case("user_data")
def user_data_arrives(world: World) -> None:
    launch(world)
    assert ["tw-1" in truth.user_data for truth in world.instances()] == [True]


@case("secrets")
def secrets_are_nowhere(world: World) -> None:
    said = _Said()
    with said:
        provider = running(world, "tw-1")
        world.throttle(1)
        _launch_or_error(world, "tw-2", provider)
        listed(provider)
        provider.preflight()
    shown = [said.text, repr(provider), *(repr(truth) for truth in world.instances())]
    assert [secret for secret in world.secrets for text in shown if secret in text] == []


@case()
def a_node_is_safe_by_default(world: World) -> None:
    launch(world)
    launch(world, "tw-2", world.on_demand)
    assert [list(truth.unsafe) for truth in world.instances()] == [[], []]


@case()
def a_launch_id_that_no_tag_can_hold(world: World) -> None:
    for launch_id in ("", "a b/c", "x" * 200):
        assert isinstance(refusal(world, launch_id), InvalidRequest)
    assert world.instances() == []


@case()
def a_type_that_nobody_sells(world: World) -> None:
    market = replace(world.spot.market, instance_type="no-such-type")
    error = refusal(world, offer=replace(world.spot, market=market))
    assert isinstance(error, InvalidRequest | Unsupported)
    assert not error.retryable
    assert world.instances() == []


# --- refusals ------------------------------------------------------------------------------------------------------


@case("stock_out")
def a_stock_out_blocks_the_zone(world: World) -> None:
    world.stock_out(world.spot)
    error = refusal(world)
    assert isinstance(error, Stockout)
    assert error.scope is Scope.ZONE
    assert error.block_s > 0
    assert world.instances() == []


@case("stock_out")
def a_stock_out_in_zone_a_then_b_then_another_region(world: World) -> None:
    provider = world.provider()
    world.stock_out(world.spot)
    assert isinstance(refusal(world, "tw-1", world.spot, provider), Stockout)
    world.stock_out(world.other_zone)
    assert isinstance(refusal(world, "tw-2", world.other_zone, provider), Stockout)
    node = launch(world, "tw-3", world.other_region, provider)
    assert node.offer.market == world.other_region.market
    assert ids(world) == ["tw-3"]
    world.advance(BOOTED_S)
    assert living(provider) == {"tw-3"}


@case("stock_out")
def a_restock_sells_again(world: World) -> None:
    provider = world.provider()
    world.stock_out(world.spot)
    refusal(world, "tw-1", by=provider)
    world.restock()
    launch(world, "tw-2", by=provider)
    world.advance(BOOTED_S)
    assert living(provider) == {"tw-2"}


@case("stock_out")
def a_refused_launch_leaves_nothing(world: World) -> None:
    provider = world.provider()
    world.stock_out(world.spot)
    refusal(world, by=provider)
    world.advance(BOOTED_S)
    assert living(provider) == set()
    provider.terminate(["tw-1"])
    provider.delete_debris(provider.list_debris())  # a cloud may leave a failed machine or a NIC: found, and removed
    world.advance(ENDED_S)
    assert (world.instances(), world.debris()) == ([], [])


@case("limit_quota")
def the_quota_blocks_the_region(world: World) -> None:
    world.limit_quota(2)
    provider = running(world, "tw-1", "tw-2")
    error = refusal(world, "tw-3", by=provider)
    assert isinstance(error, QuotaExceeded)
    assert error.scope is Scope.REGION
    assert error.block_s > 0
    assert ids(world) == ["tw-1", "tw-2"]


@case("price_above")
def a_price_above_the_limit(world: World) -> None:
    limit_uusd = max_price(world.spot)
    provider = world.provider()
    provider.launch(make_spec("tw-1", world.spot, max_price_uusd_per_h=limit_uusd))
    world.price_above(world.spot)
    error = error_of(lambda: provider.launch(make_spec("tw-2", world.spot, max_price_uusd_per_h=limit_uusd)))
    assert isinstance(error, PriceTooHigh)
    assert error.scope is Scope.OFFER
    assert error.block_s > 0
    assert ids(world) == ["tw-1"]


@case("throttle")
def a_throttled_launch_is_retryable(world: World) -> None:
    provider = world.provider()
    world.throttle(1)
    error = refusal(world, by=provider)
    assert isinstance(error, Throttled)
    assert error.retryable
    assert world.instances() == []
    launch(world, by=provider)
    assert ids(world) == ["tw-1"]


@case("throttle")
def a_throttled_listing_is_whole_or_an_error(world: World) -> None:
    provider = running(world, "tw-1", "tw-2")
    world.throttle(1)
    _whole_or_error(provider, {"tw-1", "tw-2"})
    world.throttle(100)
    error = _error_of_listing(provider)
    assert isinstance(error, Throttled | Transient)


@case("throttle")
def a_throttled_end_is_asked_again(world: World) -> None:
    provider = running(world, "tw-1")
    world.throttle(1)
    error = error_of(lambda: provider.terminate(["tw-1"]))
    if error is not None:
        assert error.retryable, error
        provider.terminate(["tw-1"])
    world.advance(ENDED_S)
    assert ids(world) == []


@case("fail_server")
def a_server_error_is_transient(world: World) -> None:
    provider = world.provider()
    world.fail_server(1)
    error = refusal(world, by=provider)
    assert isinstance(error, Transient)
    assert error.retryable
    launch(world, by=provider)
    assert ids(world) == ["tw-1"]


@case("fail_server")
def a_failing_listing_is_whole_or_an_error(world: World) -> None:
    provider = running(world, "tw-1")
    world.fail_server(1)
    _whole_or_error(provider, {"tw-1"})
    world.fail_server(100)
    assert isinstance(_error_of_listing(provider), Transient)


@case("expire_credentials")
def expired_credentials(world: World) -> None:
    provider = running(world, "tw-1")
    world.expire_credentials()
    for error in (refusal(world, "tw-2", by=provider), _error_of_listing(provider)):
        assert isinstance(error, AuthError)
        assert not error.retryable
        assert error.hint
    assert ids(world) == ["tw-1"]


@case("deny")
def a_missing_permission_is_named(world: World) -> None:
    permission = world.deny()
    error = refusal(world)
    assert isinstance(error, AuthError)
    assert permission in f"{error.message} {error.hint}"
    assert world.instances() == []


@case("refuse_unknown")
def an_unknown_error_code_is_loud_and_safe(world: World) -> None:
    """Not retried blindly, and the offer is left alone for a while: the next best is tried."""
    world.refuse_unknown("NobodyKnowsThis")
    said = _Said()
    with said:
        error = refusal(world)
    assert not error.retryable
    assert error.scope is Scope.OFFER
    assert error.block_s > 0
    assert error.code == "NobodyKnowsThis"
    assert any(record.levelno >= logging.ERROR and "NobodyKnowsThis" in record.getMessage() for record in said.records)
    assert world.instances() == []


@case("cut_after_sending")
def an_answer_that_never_came_is_ambiguous(world: World) -> None:
    provider = world.provider()
    world.cut_after_sending(1)
    assert isinstance(refusal(world, by=provider), AmbiguousOutcome)
    world.advance(BOOTED_S)
    assert living(provider) == {"tw-1"}
    assert launch(world, by=provider).instance_id == world.instances()[0].instance_id
    assert ids(world) == ["tw-1"]


@case("cut_after_sending")
def an_answer_that_never_came_and_a_restart(world: World) -> None:
    world.cut_after_sending(1)
    refusal(world)
    node = launch(world)  # at once, by a new controller
    assert [truth.instance_id for truth in world.instances()] == [node.instance_id]


@case("cut_before_doing")
def a_request_that_never_arrived(world: World) -> None:
    provider = world.provider()
    world.cut_before_doing(1)
    assert isinstance(refusal(world, by=provider), AmbiguousOutcome | Transient)
    assert world.instances() == []
    launch(world, by=provider)
    assert ids(world) == ["tw-1"]


# --- listing -------------------------------------------------------------------------------------------------------


@case()
def an_empty_cloud_lists_nothing(world: World) -> None:
    provider = world.provider()
    assert list(provider.list_nodes()) == []
    assert list(provider.list_debris()) == []


@case()
def every_region_is_listed(world: World) -> None:
    provider = world.provider()
    launch(world, "tw-1", world.spot, provider)
    launch(world, "tw-2", world.other_region, provider)
    world.advance(BOOTED_S)
    found = listed(world.provider())
    markets = {name: node.offer.market for name, node in found.items()}
    assert markets == {"tw-1": world.spot.market, "tw-2": world.other_region.market}


@case("lag_listing")
def a_new_node_is_listed_late(world: World) -> None:
    world.lag_listing(30)
    provider = world.provider()
    node = launch(world, by=provider)
    assert "tw-1" not in listed(world.provider())
    assert launch(world).instance_id == node.instance_id  # by its token, not by the listing
    world.advance(BOOTED_S)
    assert living(world.provider()) == {"tw-1"}
    assert ids(world) == ["tw-1"]


@case("lag_listing")
def a_node_is_ended_before_it_is_listed(world: World) -> None:
    world.lag_listing(30)
    provider = world.provider()
    launch(world, by=provider)
    provider.terminate(["tw-1"])
    world.advance(ENDED_S)
    assert ids(world) == []


@case("crowd")
def a_thousand_nodes_over_pages(world: World) -> None:
    world.crowd(1000)
    assert len(listed(world.provider())) == 1000


@case("foreign")
def what_others_own_is_neither_listed_nor_ended(world: World) -> None:
    world.foreign()
    before = sorted(truth.instance_id for truth in world.instances())
    assert before
    provider = running(world, "tw-1")
    assert set(listed(provider)) == {"tw-1"}
    provider.terminate(["tw-1", "", *before])
    world.advance(ENDED_S)
    assert sorted(truth.instance_id for truth in world.instances()) == before


@case()
def two_fleets_do_not_see_each_other(world: World) -> None:
    ours, theirs = world.provider(), world.provider(OTHER_FLEET)
    ours.launch(make_spec("tw-1", world.spot))
    theirs.launch(make_spec("tw-2", world.spot, fleet=OTHER_FLEET))
    world.advance(BOOTED_S)
    assert (living(ours), living(theirs)) == ({"tw-1"}, {"tw-2"})
    assert (list(ours.list_debris()), list(theirs.list_debris())) == ([], [])
    ours.terminate(["tw-2"])
    theirs.terminate(["tw-1"])
    world.advance(ENDED_S)
    assert (living(ours), living(theirs)) == ({"tw-1"}, {"tw-2"})


@case("vanish")
def a_node_vanishes(world: World) -> None:
    provider = running(world, "tw-1", "tw-2")
    assert living(provider) == {"tw-1", "tw-2"}  # it has been seen: this is no late listing
    world.vanish("tw-1")
    assert living(provider) == {"tw-2"}
    provider.terminate(["tw-1"])
    assert list(provider.wait_terminated(["tw-1"], 10)) == []


@case("list_ended")
def an_ended_node_is_listed_for_ten_minutes(world: World) -> None:
    provider = running(world, "tw-1")
    world.advance(60)
    ended(world, provider, "tw-1")
    world.advance(600 - ENDED_S)
    node = listed(world.provider())["tw-1"]
    assert node.state is CloudState.GONE
    assert node.end is EndReason.TERMINATED
    assert node.billed_from_s is not None
    assert node.billed_until_s is not None
    assert node.billed_from_s < node.billed_until_s <= world.now_s() - 600 + ENDED_S


@case("blackout")
def one_region_is_dead(world: World) -> None:
    """A listing that lacks a region is an error, never a short list: the nodes there would be taken for lost."""
    provider = world.provider()
    launch(world, "tw-1", world.spot, provider)
    launch(world, "tw-2", world.other_region, provider)
    world.advance(BOOTED_S)
    world.blackout(world.other_region.market.region)
    assert isinstance(_error_of_listing(provider), ProviderError)
    provider.terminate(["tw-1"])  # what can be reached can be ended
    world.advance(ENDED_S)
    assert ids(world) == ["tw-2"]


@case("skew")
def the_clouds_clock_is_ahead(world: World) -> None:
    world.skew(240)
    provider = running(world, "tw-1")
    assert living(provider) == {"tw-1"}
    ended(world, provider, "tw-1")
    assert ids(world) == []
    assert living(provider) == set()


@case("skew")
def the_clouds_clock_is_behind(world: World) -> None:
    world.skew(-240)
    provider = running(world, "tw-1")
    assert living(provider) == {"tw-1"}
    ended(world, provider, "tw-1")
    assert ids(world) == []
    assert living(provider) == set()


# --- consoles ------------------------------------------------------------------------------------------------------


@case("speak")
def a_console_tells_what_the_machine_wrote(world: World) -> None:
    provider = running(world, "tw-1")
    launch(world, "tw-2", by=provider)
    world.advance(BOOTED_S)
    world.speak("tw-1", "TRADEWIND BOOT FAILED: no luck\n")
    assert "no luck" in provider.console("tw-1")
    assert "no luck" in world.provider().console("tw-1"), "after a restart"
    assert "no luck" not in provider.console("tw-2")


@case("speak")
def a_console_that_is_empty_is_no_error(world: World) -> None:
    assert running(world, "tw-1").console("tw-1") == ""


@case()
def an_unknown_console_is_not_found(world: World) -> None:
    running(world, "tw-1")
    error = error_of(lambda: world.provider().console("tw-nobody"))
    assert isinstance(error, NotFound | Unsupported), error


# --- ends ----------------------------------------------------------------------------------------------------------


@case()
def terminate_ends_it_and_nothing_else(world: World) -> None:
    provider = running(world, "tw-1", "tw-2", "tw-3")
    ended(world, provider, "tw-2")
    assert ids(world) == ["tw-1", "tw-3"]
    assert living(provider) == {"tw-1", "tw-3"}


@case()
def terminate_after_a_restart(world: World) -> None:
    running(world, "tw-1")
    ended(world, world.provider(), "tw-1")
    assert ids(world) == []


@case()
def terminate_in_every_region(world: World) -> None:
    provider = world.provider()
    launch(world, "tw-1", world.spot, provider)
    launch(world, "tw-2", world.other_region, provider)
    world.advance(BOOTED_S)
    ended(world, world.provider(), "tw-1", "tw-2")
    assert ids(world) == []


@case()
def terminate_twice(world: World) -> None:
    provider = running(world, "tw-1")
    provider.terminate(["tw-1"])
    provider.terminate(["tw-1"])
    world.advance(ENDED_S)
    provider.terminate(["tw-1"])
    assert ids(world) == []


@case()
def terminate_while_it_boots(world: World) -> None:
    provider = world.provider()
    launch(world, by=provider)
    ended(world, provider, "tw-1")
    assert ids(world) == []
    assert living(provider) == set()


@case()
def terminate_an_unknown_id(world: World) -> None:
    provider = running(world, "tw-1")
    provider.terminate(["tw-nobody", ""])
    provider.terminate([])
    world.advance(ENDED_S)
    assert ids(world) == ["tw-1"]


@case()
def wait_until_it_is_gone(world: World) -> None:
    provider = running(world, "tw-1", "tw-2")
    provider.terminate(["tw-1"])
    assert list(provider.wait_terminated(["tw-1"], ENDED_S)) == []
    assert ids(world) == ["tw-2"]


@case()
def wait_for_what_stays(world: World) -> None:
    provider = running(world, "tw-1")
    assert list(provider.wait_terminated(["tw-1", "tw-nobody"], 0)) == ["tw-1"]
    assert list(provider.wait_terminated(["tw-nobody"], 5)) == []


@case("preempt", "list_ended")
def a_preemption_is_told_apart(world: World) -> None:
    provider = running(world, "tw-1", "tw-2")
    world.preempt("tw-1", 0)
    world.advance(ENDED_S)
    node = listed(provider)["tw-1"]
    assert (node.state, node.end) == (CloudState.GONE, EndReason.PREEMPTED)
    assert node.detail
    assert living(provider) == {"tw-2"}


@case("preempt", "notice_listed")
def a_notice_is_listed_with_its_deadline(world: World) -> None:
    provider = running(world, "tw-1")
    deadline_s = world.now_s() + 120
    world.preempt("tw-1", 120)
    node = listed(provider)["tw-1"]
    assert node.state is CloudState.RUNNING
    assert node.notice_deadline_s is not None
    assert abs(node.notice_deadline_s - deadline_s) <= 1
    world.advance(120 + ENDED_S)
    assert "tw-1" not in living(provider)
    assert ids(world) == []


@case("fail_boot")
def a_failed_boot_leaves_nothing_billed(world: World) -> None:
    world.fail_boot(1)
    provider = running(world, "tw-1")
    node = listed(provider).get("tw-1")
    if node is not None:
        assert node.state is not CloudState.RUNNING
        assert node.detail
    provider.terminate(["tw-1"])
    world.advance(ENDED_S)
    assert ids(world) == []


@case("half_launch")
def half_a_launch_is_no_launch(world: World) -> None:
    """Several machines that count as one come all or none; what came is given back."""
    world.half_launch(1)
    provider = world.provider()
    _launch_or_error(world, "tw-1", provider)
    world.advance(BOOTED_S)
    assert "tw-1" not in {name for name, node in listed(provider).items() if node.state is CloudState.RUNNING}
    provider.terminate(["tw-1"])
    provider.delete_debris(provider.list_debris())
    world.advance(ENDED_S)
    assert (world.instances(), world.debris()) == ([], [])


# --- debris --------------------------------------------------------------------------------------------------------


@case()
def a_normal_life_leaves_nothing(world: World) -> None:
    provider = running(world, "tw-1", "tw-2")
    assert list(provider.list_debris()) == []
    ended(world, provider, "tw-1", "tw-2")
    assert (world.instances(), world.debris(), list(provider.list_debris())) == ([], [], [])


@case("litter")
def debris_is_found_and_removed(world: World) -> None:
    world.litter()
    assert world.debris()
    provider = running(world, "tw-1")
    found = list(provider.list_debris())
    assert found
    provider.delete_debris(found)
    provider.delete_debris(found)  # once more is no error
    world.advance(ENDED_S)
    assert world.debris() == []
    assert ids(world) == ["tw-1"]


@case("litter", "foreign")
def debris_of_others_is_left_alone(world: World) -> None:
    world.foreign()
    before = world.debris()
    assert before
    provider = world.provider()
    assert list(provider.list_debris()) == []
    error = error_of(lambda: provider.delete_debris(before))
    assert error is None or not error.retryable, error
    world.litter()
    assert list(world.provider(OTHER_FLEET).list_debris()) == []
    provider.delete_debris(provider.list_debris())
    assert world.debris() == before


# --- placement groups ------------------------------------------------------------------------------------------------

GANG = "tw-contract-0123456789ab"  # as placement.group_name makes them


def launch_in(world: World, provider: Provider, launch_id: str, group: str = GANG) -> CloudNode:
    return provider.launch(make_spec(launch_id, world.spot, placement_group=group))


@case("groups")
def a_gang_lies_in_one_group(world: World) -> None:
    provider = world.provider()
    for launch_id in ("tw-1", "tw-2"):
        launch_in(world, provider, launch_id)
    launch(world, "tw-3", by=provider)
    world.advance(BOOTED_S)
    assert world.groups() == {GANG: ["tw-1", "tw-2"]}
    found = {name: node.placement_group for name, node in listed(world.provider()).items()}
    assert found == {"tw-1": GANG, "tw-2": GANG, "tw-3": ""}, "a controller that lost its log learns it"


@case("groups")
def the_same_launch_id_in_a_group_twice(world: World) -> None:
    provider = world.provider()
    first = launch_in(world, provider, "tw-1")
    assert launch_in(world, provider, "tw-1").instance_id == first.instance_id
    assert launch_in(world, world.provider(), "tw-1").instance_id == first.instance_id, "after a restart"
    assert world.groups() == {GANG: ["tw-1"]}
    assert ids(world) == ["tw-1"]


@case("groups")
def a_gang_is_launched_at_once_into_a_group_that_is_not_there(world: World) -> None:
    provider, names = world.provider(), [f"tw-{n}" for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: launch_in(world, provider, name), names))
    assert world.groups() == {GANG: names}


@case("group_room")
def a_stock_out_in_a_group_leaves_the_market_open(world: World) -> None:
    provider = world.provider()
    world.limit_group(1)
    launch_in(world, provider, "tw-1")
    error = error_of(lambda: launch_in(world, provider, "tw-2"))
    assert isinstance(error, Stockout), error
    node = NodeRecord("tw-2", world.spot, CELL, "", NodeState.REQUESTED, 0.0, 0.0, placement_group=GANG)
    assert refused_scope(node, error) is Scope.GROUP
    launch(world, "tw-3", by=provider)
    world.advance(BOOTED_S)
    assert living(provider) == {"tw-1", "tw-3"}
    assert world.groups() == {GANG: ["tw-1"]}


@case("groups", "debris")
def an_empty_group_is_debris(world: World) -> None:
    provider = world.provider()
    launch_in(world, provider, "tw-1")
    launch_in(world, provider, "tw-2")
    world.advance(BOOTED_S)
    ended(world, provider, "tw-1")
    assert list(world.provider().list_debris()) == [], "somebody is still in it"
    ended(world, provider, "tw-2")
    fresh = world.provider()
    found = list(fresh.list_debris())
    assert len(found) == 1
    assert GANG in found[0]
    fresh.delete_debris(found)
    fresh.delete_debris(found)  # once more is no error
    assert world.groups() == {}
    assert (list(fresh.list_debris()), world.debris()) == ([], [])


@case("groups", "debris")
def a_group_that_was_swept_up_is_made_again(world: World) -> None:
    provider = world.provider()
    launch_in(world, provider, "tw-1")
    world.advance(BOOTED_S)
    ended(world, provider, "tw-1")
    other = world.provider()
    other.delete_debris(other.list_debris())
    error = error_of(lambda: launch_in(world, provider, "tw-2"))
    if error is not None:
        assert error.retryable, error
        launch_in(world, provider, "tw-2")
    assert world.groups() == {GANG: ["tw-2"]}


@case("groups", "debris")
def groups_of_others_are_left_alone(world: World) -> None:
    theirs = world.provider(OTHER_FLEET)
    group = GANG.replace(FLEET, OTHER_FLEET)
    theirs.launch(make_spec("tw-1", world.spot, fleet=OTHER_FLEET, placement_group=group))
    world.advance(BOOTED_S)
    ended(world, theirs, "tw-1")
    ours = world.provider()
    assert list(ours.list_debris()) == []
    ours.delete_debris(theirs.list_debris())
    assert world.groups() == {group: []}


@case("groups", "deny_groups", "litter")
def a_missing_right_to_make_groups_blocks_no_offer(world: World) -> None:
    permission, provider = world.deny_groups(), world.provider()
    error = error_of(lambda: launch_in(world, provider, "tw-1"))
    assert isinstance(error, AuthError), error
    assert error.scope is Scope.GROUP
    assert permission in str(error)
    launch(world, "tw-2", by=provider)
    assert ids(world) == ["tw-2"]
    world.litter()
    assert list(provider.list_debris()), "a policy that is older than groups does not hide disks"
    wrong = [check for check in provider.preflight() if not check.ok]
    assert wrong
    assert all(permission in f"{check.found} {check.fix}" for check in wrong), wrong
    assert all("placement groups" in check.name for check in wrong), "the fleet comes up without them"


# --- preflight and prices ------------------------------------------------------------------------------------------


@case("preflight_ok")
def preflight_finds_nothing_wrong(world: World) -> None:
    checks = world.provider().preflight()
    assert [check for check in checks if not check.ok] == []
    assert all(check.name and check.found for check in checks)
    assert world.instances() == []


@case("flawed")
def preflight_tells_how_to_mend_each_flaw(world: World) -> None:
    seen = 0
    for flaw, provider in world.flawed():
        wrong = [check for check in provider.preflight() if not check.ok]
        assert wrong, f"not found: {flaw}"
        assert all(check.fix for check in wrong), f"no advice: {wrong}"
        seen += 1
    assert seen >= 2


@case("expire_credentials")
def preflight_survives_expired_credentials(world: World) -> None:
    world.expire_credentials()
    wrong = [check for check in world.provider().preflight() if not check.ok]
    assert wrong
    assert all(check.fix for check in wrong)


@case("deny")
def preflight_names_a_missing_permission(world: World) -> None:
    permission = world.deny()
    wrong = [check for check in world.provider().preflight() if not check.ok]
    assert any(permission in f"{check.found} {check.fix}" for check in wrong), wrong


@case("prices")
def prices_are_known_or_none(world: World) -> None:
    offers = {offer.market: offer for offer in world.prices().offers(world.now_s())}
    for wanted in (world.spot, world.on_demand, world.other_zone, world.other_region):
        price = offers[wanted.market].price_uusd_per_h
        assert price is None or price > 0
    assert offers[world.spot.market].price_uusd_per_h == world.spot.price_uusd_per_h


@case("prices", "price_above")
def a_rising_price_is_seen(world: World) -> None:
    source = world.prices()
    source.offers(world.now_s())
    world.price_above(world.spot)
    world.advance(600)  # prices may be kept for some minutes
    offers = {offer.market: offer for offer in source.offers(world.now_s())}
    assert (offers[world.spot.market].price_uusd_per_h or 0) > max_price(world.spot)


# --- more words ----------------------------------------------------------------------------------------------------


def _error_of_listing(provider: Provider) -> ProviderError:
    error = error_of(provider.list_nodes)
    assert error is not None, "the listing must fail"
    return error


def _whole_or_error(provider: Provider, expected: set[str]) -> None:
    found: set[str] = set()
    error = error_of(lambda: found.update(living(provider)))
    assert found == expected if error is None else error.retryable, error


class _Said(logging.Handler):
    """Everything that is logged inside of the `with`, from DEBUG on; only ours, since SDKs log what they send."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        return "\n".join(record.getMessage() for record in self.records)

    def __enter__(self) -> None:
        self._logger = logging.getLogger("tradewind")
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
