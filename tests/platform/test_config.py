"""Config: good files become typed values, bad ones one readable line per mistake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tradewind.config import FleetConfig, JobConfig, Settings, json_schema, load_fleet, load_job
from tradewind.config_yaml import parse
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity

ROOT = Path(__file__).parents[2]


def problems(text: str, model: type[FleetConfig] | type[JobConfig] = FleetConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x.yaml", model)
    return [str(problem) for problem in caught.value.problems]


def fleet(text: str) -> FleetConfig:
    return parse("name: x\n" + text, "x.yaml", FleetConfig)


def job(text: str) -> JobConfig:
    return parse("entrypoint: python train.py\n" + text, "x.yaml", JobConfig)


# --- good files ------------------------------------------------------------------------------------------------


def test_a_name_is_enough_for_a_fleet() -> None:
    found = fleet("")
    assert (found.name, found.cloud, found.offers) == ("x", "local", ())
    assert found.limits.max_nodes > 0
    assert found.timing.boot_timeout_s > found.timing.tick_s > 0
    assert found.local.hazards_per_h == {}


def test_every_key_of_a_fleet() -> None:
    found = fleet(
        """
offers:
  - {cloud: aws, region: us-east-1, zone: use1-az4, instance_type: g6.xlarge, accelerator: L4, capacity: spot}
  - capacity: [spot, on-demand]
limits: {max_nodes: 3, max_usd_per_hour: $12.50, max_launches_per_minute: 5}
timing: {tick: 500ms, idle_timeout: 1h30m, boot_timeout: 90, min_node_life: "0"}
local:
  seed: -3
  launch_delay: [1s, 2m]
  boot_failures: 0.25
  hazard_per_hour: {"aws/*": 2, "*": 0.5}
  notice: none
  cpus_per_node: 2
"""
    )
    assert found.offers[0].capacity == (Capacity.SPOT,)
    assert found.offers[1].capacity == (Capacity.SPOT, Capacity.ON_DEMAND)
    assert (found.limits.max_nodes, found.limits.max_uusd_per_h) == (3, 12_500_000)
    timing = found.timing
    assert (timing.tick_s, timing.idle_timeout_s, timing.boot_timeout_s, timing.min_node_life_s) == (0.5, 5400, 90, 0)
    local = found.local
    assert (local.seed, local.launch_delay_s, local.boot_failures, local.notice_s) == (-3, (1, 120), 0.25, None)
    assert local.hazards_per_h == {"aws/*": 2, "*": 0.5}


def test_rules_of_limits() -> None:
    rules = fleet(
        """
limits:
  rules:
    - {tenant: research, max_nodes: 4, max_usd_per_hour: 8}
    - {tenant: "*", max_launches_per_minute: 5}
    - {cloud: aws, region: us-east-1, accelerator: A100, capacity: spot, max_accelerators: 16}
"""
    ).limits.rules
    assert [(rule.tenant, rule.max_nodes, rule.max_uusd_per_h) for rule in rules[:1]] == [("research", 4, 8_000_000)]
    assert (rules[1].tenant, rules[1].max_launches_per_minute) == ("*", 5)
    assert (rules[2].capacity, rules[2].max_accelerators, rules[2].tenant) == ((Capacity.SPOT,), 16, None)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{max_nodes: 3}", "says not what it is about; give one of tenant, cloud, region"),
        ("{cloud: aws}", "has no limit; give one of max_nodes, max_usd_per_hour, max_accelerators"),
        ("{tenant: a b, max_nodes: 1}", "limits.rules[0].tenant"),
        ("{cloud: aws, max_nodes: -1}", "allowed: 0 or more"),
        ("{clod: aws, max_nodes: 1}", "did you mean 'cloud'?"),
        ("{cloud: aws, max_nodes: 1, max_usd_per_hour: 0}", "limits.rules[0].max_usd_per_hour"),
    ],
)
def test_a_rule_says_what_it_is_about_and_how_much(rule: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fleet(f"limits: {{rules: [{rule}]}}")
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_forecast_and_dry_run() -> None:
    found = fleet("forecast: {buy_ahead: true, step: 10m, spare_timeout: 90s}\ndry_run: true")
    assert (found.forecast.buy_ahead, found.forecast.step_s, found.forecast.spare_timeout_s) == (True, 600, 90)
    assert found.dry_run
    assert not fleet("").dry_run
    with pytest.raises(ConfigError, match="true or false"):
        fleet("dry_run: yes")


def test_short_forms() -> None:
    local = fleet("local: {launch_delay: 3s, hazard_per_hour: 1.5}").local
    assert local.launch_delay_s == (3, 3)
    assert local.hazards_per_h == {"*": 1.5}


def test_sections_with_nothing_in_them_are_as_if_left_out() -> None:
    assert fleet("limits:\ntiming:\nlocal:\n  script:\n  hazard_per_hour:\noffers:\n") == fleet("")
    assert job("env:\nlabels:\nresources:\nworkers:\n") == job("")


def test_script_steps_come_in_order_and_with_the_usual_notice() -> None:
    local = fleet(
        """
local:
  notice: 45s
  script:
    - {at: 2m, do: preempt, notice: none}
    - {at: 1m, do: preempt, market: aws/*, count: 2}
    - {at: 30s, do: price, price_factor: 1.5, for: 10s}
    - {at: 90s, do: preempt, notice: 5s}
"""
    ).local
    assert [step.at_s for step in local.steps] == [30, 60, 90, 120]
    assert [step.notice_s for step in local.steps] == [45, 45, 5, None]
    assert (local.steps[0].for_s, local.steps[0].price_factor, local.steps[1].count) == (10, 1.5, 2)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        fleet("").limits.max_nodes = 4


def test_a_whole_job(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    file = tmp_path / "job.yaml"
    file.write_text(
        """
name: resnet
entrypoint: python train.py
working_dir: code
workers: 2..4
resources: {cpu: 2, accelerator: A100, custom: {disk: 1}, memory_gib: 0.5}
labels: {ray.io/market-type: spot}
tenant: vision
deadline: 6h
budget: 12.50
env: {PORT: 8080, MODE: "yes"}
max_retries: 2
"""
    )
    spec = load_job(file).to_spec(now_s=1000.0)
    assert (spec.name, spec.tenant, spec.min_workers, spec.max_workers) == ("resnet", "vision", 2, 4)
    assert spec.working_dir == str(tmp_path / "code")
    expected = {"CPU": 2, "GPU": 1, "accelerator_type:A100": 0.001, "disk": 1, "memory": 2**29}
    assert spec.worker_resources == expected
    assert spec.env == {"PORT": "8080", "MODE": "yes"}
    assert (spec.contract.deadline_at_s, spec.contract.budget_uusd) == (1000 + 6 * 3600, 12_500_000)
    assert (spec.max_retries, spec.worker_labels) == (2, {"ray.io/market-type": "spot"})


def test_a_job_without_workers_asks_ray_itself() -> None:
    spec = job("").to_spec(0.0)
    assert (spec.min_workers, spec.max_workers, spec.worker_resources, spec.working_dir) == (0, 0, {}, "")
    assert job("workers: 1").to_spec(0.0).worker_resources == {"CPU": 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", (4, 4)), ("2..4", (2, 4)), ('"2 .. 4"', (2, 4)), ("[2, 4]", (2, 4)), ("{min: 2, max: 4}", (2, 4))],
)
def test_forms_of_workers(text: str, expected: tuple[int, int]) -> None:
    assert job(f"workers: {text}").workers == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{gpu: 0.5}", {"CPU": 1, "GPU": 0.5}),
        ("{accelerator: TPU-V4}", {"CPU": 1, "TPU": 1, "accelerator_type:TPU-V4": 0.001}),
        ("{accelerator: L4, gpu: 4, cpu: 0}", {"GPU": 4, "accelerator_type:L4": 0.001}),
    ],
)
def test_resources(text: str, expected: dict[str, float]) -> None:
    assert job(f"resources: {text}").to_spec(0.0).worker_resources == expected


def test_a_deadline_may_be_a_point_in_time() -> None:
    for text in ("2030-01-01T00:00Z", "2030-01-01T02:00:00+02:00", '"2030-01-01 00:00:00Z"'):
        assert job(f"deadline: {text}").to_spec(5.0).contract.deadline_at_s == 1_893_456_000


def test_remote_working_dirs_are_passed_on() -> None:
    assert job("working_dir: s3://bucket/code.zip").working_dir == "s3://bucket/code.zip"


def test_anchors_and_merges_work() -> None:
    found = fleet("local: {script: [&one {at: 1s, do: preempt}, {<<: *one, at: 2s}]}")
    assert [(step.at_s, step.do) for step in found.local.script] == [(1, "preempt"), (2, "preempt")]


# --- bad files -------------------------------------------------------------------------------------------------

BAD_FLEET = """\
nmae: x
cloud: awz
max_nodes: 3
offers:
  - cloud: awz
    capacity: sopt
limits:
  max_nodes: yes
  max_usd_per_hour: lots
timing:
  tick: 5 parsecs
  idle_timout: 3s
  boot_timeout: -4
local:
  seed: 1.5
  launch_delay: [3s, 1s]
  boot_failures: 2
  hazard_per_hour: {"aws/*": -1}
  notice: soon
  script:
    - at: 10s
      do: premept
    - do: preempt
    - {at: 1, do: price}
    - {at: 1, do: restock, count: 3}
    - 7
"""


def test_every_mistake_is_told_at_once_with_line_field_and_what_is_allowed() -> None:
    duration = "a duration, like 90s, 5m, 6h, 2d or 1h30m; a bare number is seconds"
    top = "allowed: name, cloud, offers, limits, budgets, carbon, timing, forecast, market, placement, dry_run, local"
    top = top.replace("cloud,", "cloud, clouds,") + ", aws, gcp, azure, head, boot, controller, storage"
    assert problems(BAD_FLEET) == [
        f"x.yaml:1: nmae: is not a key here (did you mean 'name'?); {top}",
        "x.yaml:2: cloud: found 'awz' (text); allowed: local, aws, gcp, azure (did you mean 'aws'?)",
        f"x.yaml:3: max_nodes: is not a key here (it belongs under limits or limits.rules); {top}",
        "x.yaml:5: offers[0].cloud: found 'awz' (text); allowed: aws, gcp, azure (did you mean 'aws'?)",
        "x.yaml:6: offers[0].capacity: found 'sopt' (text); "
        "allowed: spot, on-demand, or a list of both (did you mean 'spot'?)",
        "x.yaml:8: limits.max_nodes: found 'yes' (text); allowed: a whole number",
        "x.yaml:9: limits.max_usd_per_hour: found 'lots' (text); allowed: an amount of US dollars, like 12.50",
        f"x.yaml:11: timing.tick: found '5 parsecs' (text); allowed: {duration}",
        "x.yaml:12: timing.idle_timout: is not a key here (did you mean 'idle_timeout'?); "
        "allowed: tick, idle_timeout, boot_timeout, min_node_life, look_deadline, launch_deadline, end_deadline",
        "x.yaml:13: timing.boot_timeout: found -4; allowed: 0 or more",
        "x.yaml:15: local.seed: found 1.5; allowed: a whole number",
        "x.yaml:16: local.launch_delay: found a list of 2; "
        "allowed: [shortest, longest], with 0 <= shortest <= longest",
        "x.yaml:17: local.boot_failures: found 2; allowed: 1 or less",
        "x.yaml:18: local.hazard_per_hour.aws/*: found -1; allowed: 0 or more",
        f"x.yaml:19: local.notice: found 'soon' (text); allowed: {duration}; or none",
        "x.yaml:22: local.script[0].do: found 'premept' (text); "
        "allowed: preempt, stockout, restock, price, boot_failure (did you mean 'preempt'?)",
        "x.yaml:23: local.script[1].at: is missing; allowed: a duration like 20s, from the start of the fleet",
        "x.yaml:24: local.script[2]: `do: price` needs a price_factor, like 1.5",
        "x.yaml:25: local.script[3]: `do: restock` has no use for count",
        "x.yaml:26: local.script[4]: found 7; allowed: a mapping (`key: value` lines)",
    ]  # fmt: skip


def test_every_mistake_in_a_job() -> None:
    text = """\
name: "two words"
workers: 4..2
resources: {gpus: 1, cpu: .inf}
working_dir: no/such/folder
deadline: 2030-01-01
budget: -1
env: {A: 1.10, B: true, C: }
labels: [a]
max_retries: 1.5
tenant: 7
"""
    found = problems(text, JobConfig)
    assert [line.split(": ")[0] for line in found] == [
        f"x.yaml:{i}" for i in (1, 1, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8, 9, 10)
    ]
    text_of_all = "\n".join(found)
    for words in (
        "x.yaml:1: entrypoint: is missing; allowed: a shell command, like `python train.py`",
        "name: found 'two words' (text); allowed: up to 63 letters",
        "workers: found '4..2' (text); the minimum (4) is above the maximum (2)",
        "resources.gpus: is not a key here (did you mean 'gpu'?)",
        "resources.cpu: found inf; allowed: a finite number",
        "working_dir: found 'no/such/folder' (text); there is no folder",
        "deadline: found '2030-01-01' (text); the time zone is missing",
        "budget: found -1; allowed: more than 0",
        "env.A: found 1.1; allowed: text (put it in quotes)",
        "env.B: found true; allowed: text (put it in quotes)",
        "env.C: found nothing (null); allowed: text (put it in quotes)",
        "labels: found a list of 1; allowed: a mapping (`key: value` lines)",
        "max_retries: found 1.5; allowed: a whole number",
        "tenant: found 7; allowed: text (put it in quotes)",
    ):
        assert words in text_of_all


@pytest.mark.parametrize(
    "value", ["0", "[1, 2, 3]", "{mn: 1, max: 2}", "{min: 1}", "two", "2.5", "true", "2...4", "[1, x]"]
)
def test_workers_that_are_none(value: str) -> None:
    (line,) = problems(f"entrypoint: x\nworkers: {value}", JobConfig)
    assert line.startswith("x.yaml:2: workers: ")
    assert "allowed: " in line


@pytest.mark.parametrize("value", ["1:30", "tomorrow", "0s", "[1]", "2030-13-01T00:00Z"])
def test_deadlines_that_are_none(value: str) -> None:
    (line,) = problems(f"entrypoint: x\ndeadline: {value}", JobConfig)
    assert "allowed: a duration" in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "x.yaml: the file is empty; allowed: `key: value` lines (name, cloud"),
        ("# nothing\n", "x.yaml: the file is empty"),
        ("- a\n- b\n", "x.yaml: found a list of 2 at the top"),
        ("hello", "x.yaml: found 'hello' (text) at the top"),
        ("name: [1\n", "x.yaml:2: not YAML: expected ',' or ']'"),
        ("name: x\nlimits:\n\tmax_nodes: 1\n", "x.yaml:3: not YAML: a tab; indent with spaces (column 1)"),
        ("name: x\n---\nname: y\n", "x.yaml:2: not YAML: but found another document"),
        ("name: x\nname: y\n", "x.yaml:2: name: stands twice, here and in line 1; keep one"),
        ("name: x\nlimits:\n  max_nodes: 1\n  max_nodes: 1\n", "x.yaml:4: limits.max_nodes: stands twice"),
        ("name: &a [*a]", "x.yaml:1: not YAML: an alias that contains itself"),
        ("name: !!int x", "x.yaml: not YAML"),
        ("name: !!python/name:os.system", "x.yaml:1: not YAML: could not determine a constructor"),
        ("? [a]\n: 1", "x.yaml:1: not YAML: a key must be a plain word"),
        ("name: Big_Name", "x.yaml:1: name: found 'Big_Name' (text); allowed: up to 32 small letters"),
        ("name: x\nlimits: 3", "x.yaml:2: limits: found 3; allowed: a mapping"),
        ("name: x\noffers: 3", "x.yaml:2: offers: found 3; allowed: a list"),
    ],
)
def test_files_that_are_wrong_as_a_whole(text: str, expected: str) -> None:
    (line,) = problems(text)
    assert line.startswith(expected)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    for name, words in (("none.yaml", "No such file"), ("latin.yaml", "not a UTF-8"), (".", "Is a directory")):
        with pytest.raises(ConfigError, match=words):
            load_fleet(tmp_path / name)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert load_fleet(tmp_path / "f.yaml").name == "x"


def _yaml_values() -> st.SearchStrategy[object]:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
    keys = st.text(max_size=5) | st.sampled_from(
        ["name", "local", "script", "at", "do", "workers", "entrypoint", "env"]
    )
    return st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


def _told(text: str, model: type[FleetConfig] | type[JobConfig]) -> Sequence[Problem]:
    try:
        parse(text, "x.yaml", model)
    except ConfigError as error:  # any other error fails the test
        return error.problems
    return ()


@settings(deadline=None)
@given(_yaml_values())
@example({"[key]": None})  # pydantic's own mark
def test_any_yaml_is_loaded_or_told_in_our_words(value: object) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    for problem in (*_told(text, FleetConfig), *_told(text, JobConfig)):
        assert problem.where.startswith("x.yaml")
        assert problem.message


# --- shipped examples and schema -------------------------------------------------------------------------------

EXAMPLES: list[tuple[str, Literal["fleet", "job"], Callable[[Path], object]]] = [
    ("cluster-configs/local.yaml", "fleet", load_fleet),
    ("cluster-configs/three-clouds.yaml", "fleet", load_fleet),
    ("jobs/examples/job.yaml", "job", load_job),
]


@pytest.mark.parametrize(("name", "kind", "load"), EXAMPLES)
def test_the_examples_load_and_fit_their_schema(
    name: str, kind: Literal["fleet", "job"], load: Callable[[Path], object]
) -> None:
    assert load(ROOT / name)
    jsonschema.validate(yaml.safe_load((ROOT / name).read_text()), json_schema(kind))


def test_the_fleet_example_shows_every_key() -> None:
    examples = ("cluster-configs/local.yaml", "cluster-configs/three-clouds.yaml")
    text = "".join((ROOT / name).read_text() for name in examples)
    properties: dict[str, Any] = json_schema("fleet")["properties"]
    assert [key for key in properties if f"\n{key}:" not in text] == []


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    schema = json_schema("fleet")
    for data in (
        {},
        {"name": "x", "nodes": 1},
        {"name": "x", "limits": {"max_nodes": -1}},
        {"name": "x", "cloud": "awz"},
        {"name": "x", "cloud": "aws", "aws": {"regions": [{"name": "us-east-1"}]}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(data, schema)
    for workers in (0, "x..y", [1], {"min": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"entrypoint": "x", "workers": workers}, json_schema("job"))


def test_the_schema_says_how_to_write_durations_and_money() -> None:
    definitions = json_schema("fleet")["$defs"]
    assert "90s" in definitions["Timing"]["properties"]["tick"]["examples"]
    assert "dollars" in definitions["Limits"]["properties"]["max_usd_per_hour"]["description"]


# --- the environment -------------------------------------------------------------------------------------------


def test_settings_without_any_variable() -> None:
    settings = Settings.from_env({})
    assert settings == Settings(home=Path.home() / ".tradewind")
    assert settings.fleet_home == Path.home() / ".tradewind" / "default"


def test_every_variable() -> None:
    settings = Settings.from_env(
        {
            "TRADEWIND_HOME": "/data/tw",
            "TRADEWIND_FLEET": "gpu-1",
            "TRADEWIND_URL": "http://127.0.0.1:9/",
            "TRADEWIND_TOKEN": "s3cret",
            "TRADEWIND_DEBUG": "1",
            "NO_COLOR": "1",
        }
    )
    assert settings == Settings(Path("/data/tw"), "gpu-1", "http://127.0.0.1:9", "s3cret", debug=True, color=False)
    assert "s3cret" not in repr(settings)


def test_empty_variables_count_as_unset() -> None:
    names = ("TRADEWIND_HOME", "TRADEWIND_FLEET", "TRADEWIND_URL", "TRADEWIND_TOKEN", "TRADEWIND_DEBUG", "NO_COLOR")
    assert Settings.from_env(dict.fromkeys(names, "")) == Settings.from_env({})


def test_every_wrong_variable_is_told() -> None:
    wrong = {"TRADEWIND_FLEET": "../up", "TRADEWIND_URL": "localhost:80", "TRADEWIND_DEBUG": "maybe"}
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(wrong)
    assert [problem.field for problem in caught.value.problems] == list(wrong)


def test_reading_the_environment_needs_neither_pydantic_nor_yaml() -> None:
    code = """
import sys
from tradewind.config import Settings
Settings.from_env()
print({"pydantic", "yaml"} & set(sys.modules))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_plain_off_turns_groups_off_also_where_yaml_reads_it_as_false() -> None:
    assert parse("name: x\nplacement: {groups: off}\n", "f.yaml", FleetConfig).placement.groups == "off"
    assert FleetConfig.model_validate({"name": "x", "placement": {"groups": False}}).placement.groups == "off"
    assert FleetConfig(name="x").placement.groups == "auto"


def test_groups_know_two_words() -> None:
    with pytest.raises(ConfigError, match=r"placement.groups: found 'sometimes'.*auto, off"):
        parse("name: x\nplacement: {groups: sometimes}\n", "f.yaml", FleetConfig)
