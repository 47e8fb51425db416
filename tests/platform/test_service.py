"""From a fleet file to the parts of a fleet: pure, no process is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tradewind.autoscaler.limits import Part, Rule
from tradewind.autoscaler.providers.local_market import Action, MarketScript
from tradewind.autoscaler.providers.raylets import MAX_SOCKET_PATH
from tradewind.autoscaler.view import LoopSettings
from tradewind.config import FleetConfig, load_fleet
from tradewind.errors import ConfigError
from tradewind.events import JobStateChanged, JobSubmitted
from tradewind.home import FleetHome
from tradewind.journal import Journal
from tradewind.model import Capacity, JobSpec
from tradewind.service import _orphaned_jobs, local_root, offers_of, remembered_config, script_of, settings_of
from tradewind.states import JobState
from tradewind.store import EventLog

ROOT = Path(__file__).parents[2]


def config(**sections: object) -> FleetConfig:
    return FleetConfig.model_validate({"name": "f", **sections})


# --- offers ---------------------------------------------------------------------------------------------------------


def test_the_default_fleet_may_buy_accelerators_and_plain_machines_in_three_clouds() -> None:
    offers = offers_of(config())
    assert {offer.market.cloud for offer in offers} == {"aws", "gcp", "azure"}
    assert {"", "L4", "T4", "A100"} <= {offer.accelerator for offer in offers}
    assert {offer.market.capacity for offer in offers} == set(Capacity)


@pytest.mark.parametrize("path", sorted((ROOT / "cluster-configs").glob("local*.yaml")), ids=lambda path: path.name)
def test_every_offer_of_a_shipped_fleet_has_a_price_one_host_and_a_place_of_its_own(path: Path) -> None:
    for fleet in (load_fleet(path), config()):
        offers = offers_of(fleet)
        assert offers
        assert all(offer.price_uusd_per_h and offer.hosts == 1 for offer in offers)
        assert len({offer.market.key for offer in offers}) == len(offers)


def test_a_selector_gives_what_it_names_and_nothing_else() -> None:
    offers = offers_of(config(offers=[{"cloud": "aws", "accelerator": "L4", "capacity": "spot"}]))
    assert offers
    found = {(offer.market.cloud, offer.accelerator, offer.market.capacity) for offer in offers}
    assert found == {("aws", "L4", Capacity.SPOT)}


def test_selectors_that_overlap_give_each_offer_once() -> None:
    one = {"cloud": "aws", "accelerator": "L4"}
    assert offers_of(config(offers=[one, {**one, "capacity": "spot"}])) == offers_of(config(offers=[one]))


def test_names_that_are_not_sold_together_are_a_mistake_in_that_line() -> None:
    with pytest.raises(ConfigError, match=r"offers\[1\]: the catalogue has nothing like this"):
        offers_of(config(offers=[{"cloud": "aws"}, {"cloud": "azure", "instance_type": "g4dn.xlarge"}]))


def test_an_unknown_name_is_a_mistake_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="A100"):
        offers_of(config(offers=[{"accelerator": "A1000"}]))


def test_a_selector_that_finds_nothing_that_can_be_bought_is_a_mistake_too() -> None:
    """The local cloud has no slices of many hosts: a fleet of nothing else could never start a job."""
    slices = {"cloud": "gcp", "instance_type": "tpu-v4-512"}
    with pytest.raises(ConfigError, match=r"offers\[0\]"):
        offers_of(config(offers=[slices]))


def test_slices_that_this_machine_can_pretend_to_have_are_sold() -> None:
    offers = offers_of(config(offers=[{"cloud": "gcp", "accelerator": "TPU-V4"}]))
    assert {offer.hosts for offer in offers} == {1, 2, 4, 8}


# --- script and settings --------------------------------------------------------------------------------------------


def test_the_shipped_fleet_file_becomes_its_script() -> None:
    script = script_of(load_fleet(ROOT / "cluster-configs/local.yaml"))
    assert (script.seed, script.launch_delay_s, script.stock, script.notice_s) == (7, (1.0, 3.0), 4, 30.0)
    assert script.hazard_per_h == {"aws/*/spot": 0.5, "*/on-demand": 0}
    told = [(event.at_s, event.action, event.notice_s, event.count, event.for_s) for event in script.events]
    assert told[0] == (60, Action.PREEMPT, 30.0, 1, None)  # the usual notice
    assert told[1] == (120, Action.PREEMPT, None, 1, None)  # `notice: none`
    assert told[2][:2] == (120, Action.STOCKOUT)
    assert told[2][-1] == 90
    assert (script.events[3].action, script.events[3].price_factor) == (Action.PRICE, 1.5)


def test_a_fleet_without_weather_has_a_steady_price_and_loses_nothing() -> None:
    script = script_of(config())
    assert script == MarketScript(launch_delay_s=(0.5, 2.0), notice_s=30.0, events=[])


def test_settings_carry_every_limit_and_time() -> None:
    fleet = config(
        limits={"max_nodes": 3, "max_usd_per_hour": 1.5, "max_launches_per_minute": 4},
        timing={"idle_timeout": "5s", "boot_timeout": "2m", "min_node_life": "7s"},
    )
    found = settings_of(fleet, "127.0.0.2:20379")
    limits = found.limits
    assert (limits.max_nodes, limits.max_uusd_per_h, limits.launches_per_minute) == (3, 1_500_000, 4)
    assert (found.idle_timeout_s, found.boot_timeout_s, found.min_node_life_s) == (5, 120, 7)
    assert (found.fleet, found.head_address) == ("f", "127.0.0.2:20379")


# --- where, and what is left of an earlier fleet --------------------------------------------------------------------


def test_every_home_and_fleet_has_a_short_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 150)
    roots = [local_root(FleetHome(home, name)) for home in (tmp_path, deep) for name in ("a", "b" * 32)]
    assert len(set(roots)) == 4
    assert all(len(str(root)) < MAX_SOCKET_PATH - 70 for root in roots)
    monkeypatch.chdir(tmp_path)
    assert local_root(FleetHome(Path(), "a")) == roots[0]  # the same place by another name
    (tmp_path / "link").symlink_to(tmp_path)
    assert local_root(FleetHome(tmp_path / "link", "a")) == roots[0]


def test_with_a_new_head_foreign_jobs_are_lost_and_ours_stay_to_be_resumed(tmp_path: Path) -> None:
    spec = JobSpec(name="n", entrypoint="true")
    with EventLog.open(tmp_path / "events.db") as log:
        journal = Journal.load(log)
        for job_id, foreign in (("ours", False), ("theirs", True), ("over", True)):
            journal.record(JobSubmitted(at_s=1.0, job_id=job_id, spec=spec, foreign=foreign))
        journal.record(JobStateChanged(at_s=2.0, job_id="over", state=JobState.SUCCEEDED))
        journal.record(*_orphaned_jobs(journal))
        states = {job.job_id: job.state for job in journal.fleet.jobs.values()}
    assert states == {"ours": JobState.QUEUED, "theirs": JobState.FAILED, "over": JobState.SUCCEEDED}


def test_a_start_without_a_fleet_file_goes_on_with_the_last(tmp_path: Path) -> None:
    place = FleetHome(tmp_path / "home", "f")
    assert remembered_config(place, None).limits.max_nodes == FleetConfig(name="f").limits.max_nodes
    given = tmp_path / "given.yaml"
    given.write_text("name: f\nlimits: {max_nodes: 3}\n")
    assert remembered_config(place, given).limits.max_nodes == 3
    given.unlink()
    assert remembered_config(place, None).limits.max_nodes == 3


def test_settings_carry_the_rules_of_limits() -> None:
    rules = [
        {"tenant": "research", "max_nodes": 4, "max_usd_per_hour": 8, "max_launches_per_minute": 2},
        {"cloud": "aws", "region": "us-east-1", "accelerator": "A100", "capacity": "spot", "max_accelerators": 16},
    ]
    found = settings_of(config(limits={"rules": rules}), "").limits.rules
    quota = Part(cloud="aws", region="us-east-1", accelerator="A100", capacity=(Capacity.SPOT,))
    assert found == (
        Rule(Part(tenant="research"), max_nodes=4, max_uusd_per_h=8_000_000, launches_per_minute=2),
        Rule(quota, max_accelerators=16),
    )


def test_a_rule_finds_its_names_as_an_offer_does() -> None:
    """A limit on a name that is only written otherwise must not be a limit on nothing."""
    rules = [{"accelerator": "l4", "max_accelerators": 1}, {"zone": "US-CENTRAL1-A", "max_nodes": 1}]
    rules += [{"instance_type": "standard nc4as t4 v3", "max_nodes": 1}]
    found = settings_of(config(limits={"rules": rules}), "").limits.rules
    assert [rule.part for rule in found] == [
        Part(accelerator="L4"),
        Part(zone="us-central1-a"),
        Part(instance_type="Standard_NC4as_T4_v3"),
    ]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"accelerator": "A1000"}, r"limits\.rules\[0\]\.accelerator: there is no 'A1000'; the nearest is A100"),
        ({"region": "us-esat-1"}, r"limits\.rules\[0\]\.region: there is no 'us-esat-1'"),
        ({"region": "US-EAST-1"}, r"limits\.rules\[0\]\.region: 'US-EAST-1' may be us-east-1 or us-east1"),
    ],
)
def test_a_rule_about_nothing_is_a_mistake(rule: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        settings_of(config(limits={"rules": [{**rule, "max_nodes": 1}]}), "")


def test_settings_carry_the_forecast_and_the_dry_run() -> None:
    forecast = {"buy_ahead": True, "step": "10m", "usual_boot": "4m", "waiting_factor": 3, "spare_timeout": "90s"}
    found = settings_of(config(forecast=forecast, dry_run=True), "127.0.0.2:20379")
    assert (found.buy_ahead, found.forecast_step_s, found.usual_boot_s) == (True, 600, 240)
    assert (found.waiting_factor, found.spare_timeout_s, found.dry_run) == (3, 90, True)
    plain = settings_of(config(), "127.0.0.2:20379")
    usual = LoopSettings(fleet="f")
    assert (plain.buy_ahead, plain.dry_run) == (False, False)
    names = ("forecast_step_s", "usual_boot_s", "waiting_factor", "spare_timeout_s")
    assert all(getattr(plain, name) == getattr(usual, name) for name in names)
