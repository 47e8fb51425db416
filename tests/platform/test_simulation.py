"""`tradewind simulate`: files in, comparison out; what is wrong with a file is said with its line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tradewind.autoscaler.simulate.compare import compare
from tradewind.autoscaler.simulate.job_files import look_through
from tradewind.autoscaler.simulate.market_files import read_records
from tradewind.autoscaler.simulate.place import ANY_NUMBER
from tradewind.autoscaler.simulate.tally import Tally
from tradewind.autoscaler.testing import make_offer
from tradewind.cli import cli
from tradewind.errors import ConfigError
from tradewind.simulation import Request, run, venues_of
from tradewind.simulation_page import render_page
from tradewind.simulation_text import _mark, comparison_text

FLEET = """
name: lab
offers:
  - {cloud: aws, accelerator: T4, region: us-east-1}
limits: {max_nodes: 20}
timing: {idle_timeout: 5m}
"""
JOBS = "job_id,submission_time,duration,num_gpu,deadline\n" + "".join(
    f"j{number},{1000 + number * 900},{1800 + number % 5 * 600},{1 + number % 3},{1000 + number * 900 + 20000}\n"
    for number in range(40)
)


def trace(counts: list[int | None], gap_s: float | None = 600) -> str:
    return json.dumps({"metadata": {} if gap_s is None else {"gap_seconds": gap_s}, "data": counts})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "spot").mkdir()
    (tmp_path / "spot" / "a.json").write_text(trace([1] * 20 + [0] * 10))
    (tmp_path / "spot" / "b.json").write_text(trace([0] * 10 + [4] * 30))
    return tmp_path


def request(files: Path, *policies: str, **given: object) -> Request:
    chosen = policies or ("reactive", "contract")
    paths = {"fleet": str(files / "fleet.yaml"), "jobs": str(files / "jobs.csv"), "traces": (str(files / "spot"),)}
    return Request(**{**paths, "policies": chosen, **given})  # type: ignore[arg-type]


def command(*arguments: object) -> tuple[int, str, str]:
    found = CliRunner().invoke(cli, [str(each) for each in arguments], standalone_mode=True)
    return found.exit_code, found.stdout, found.stderr


# --- the whole way ---


def test_it_compares_policies_and_says_the_same_again(files: Path) -> None:
    first = run(request(files, "reactive", "on-demand", "contract"))
    reactive, dear, contract = first.results
    assert first == run(request(files, "reactive", "on-demand", "contract"))
    assert (reactive.jobs, reactive.deadlines, contract.misses.value) == (40, 40, 0.0)
    assert (reactive.cost_ratio.value, dear.spot_share) == (1.0, 0.0)
    assert contract.cost_uusd.value < dear.cost_uusd.value
    assert reactive.cost_uusd.low is not None
    assert reactive.cost_uusd.low <= reactive.cost_uusd.value <= (reactive.cost_uusd.high or 0)
    assert reactive.useful_gpu_h + reactive.lost_gpu_h <= reactive.paid_gpu_h


def test_repeats_begin_elsewhere_in_the_records(files: Path) -> None:
    once, thrice = run(request(files, "reactive")), run(request(files, "reactive", repeat=3))
    assert thrice.results[0].windows > once.results[0].windows
    assert thrice.results[0].jobs == once.results[0].jobs
    assert thrice.results[0].cost_uusd.value != once.results[0].cost_uusd.value


def test_text_fits_the_width_and_has_every_policy(files: Path) -> None:
    text = comparison_text(run(request(files, "reactive", "spot-first", "on-demand")), 100)
    assert all(len(line) <= 100 for line in text.splitlines()), text
    for word in ("reactive", "spot-first", "on-demand", "completion, mean", "deadlines missed", "95 % intervals"):
        assert word in text
    assert "\x1b" not in text
    assert "\x1b" in comparison_text(run(request(files, "reactive")), 100, coloured=True)


def test_the_page_needs_no_network(files: Path) -> None:
    page = render_page(run(request(files)))
    assert page.startswith("<!doctype html>")
    assert not re.search(r"https?://|src=|@import|<script", page)
    assert page.count("<svg") >= 8


def test_the_command(files: Path) -> None:
    paths = [files / "fleet.yaml", "--jobs", files / "jobs.csv", "--traces", files / "spot"]
    code, out, _ = command("simulate", *paths, "--policy", "reactive", "--json", "--html", files / "out.html")
    assert code == 0
    assert json.loads(out)["results"][0]["policy"] == "reactive"
    assert "<svg" in (files / "out.html").read_text()
    code, _, err = command("simulate", *paths, "--policy", "magic")
    assert code == 1
    assert "known are reactive, forecast, on-demand, spot-first, contract" in err


@pytest.mark.parametrize("option", ["--tick", "--duration"])
@pytest.mark.parametrize("span", ["0s", "0", "-60s"])
def test_spans_that_must_be_more_than_nothing(files: Path, option: str, span: str) -> None:
    code, _, err = command("simulate", files / "fleet.yaml", "--jobs", files / "jobs.csv", option, span)
    assert code == 2, err
    assert f"Invalid value for '{option}': '{span}'" in err


def test_nodes_may_boot_at_once(files: Path) -> None:
    paths = [files / "fleet.yaml", "--jobs", files / "jobs.csv", "--traces", files / "spot"]
    code, _, err = command("simulate", *paths, "--policy", "reactive", "--boot", "0s", "--restart", "0s")
    assert code == 0, err


def test_jobs_that_do_not_fit_and_deadlines_that_cannot_be_kept_are_said(files: Path) -> None:
    (files / "jobs.csv").write_text("submit,duration,gpus,deadline\n0,600,5000,\n0,3600,1,1800\n5,600,1,\n9,0,1,\n")
    notes = " ".join(run(request(files, "reactive")).notes)
    assert "cannot: 1 jobs are larger than the limits" in notes
    assert "cannot: 1 of 1 deadlines are shorter than the work" in notes
    assert "1 rows ask for nothing" in notes


# --- job traces ---


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is empty"),
        ("submit,duration,gpus\n", "has no jobs"),
        ("submit,gpus\n1,1\n", "duration: has no column for it; it has submit, gpus"),
        ("a,b,c\n1,2,3\n", "submit: has no column for it; it has a, b, c"),
        ("submit,duration,gpus\n1,5,1\n2,-5,1\n", "jobs.csv:3: duration: '-5' is not a number that is 0 or more"),
        ("submit,duration,gpus\n1,nan,1\n", "jobs.csv:2: duration"),
        ("submit,duration,gpus\n1,5,many\n", "jobs.csv:2: gpus: 'many'"),
        ("submit,duration,gpus\nsoon,5,1\n", "jobs.csv:2: submit: 'soon' is neither"),
        ("submit,duration,gpus,deadline\n100,5,1,99\n", "jobs.csv:2: deadline: 99 is not after the submission"),
    ],
)
def test_job_traces_that_are_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "jobs.csv").write_text(text)
    with pytest.raises(ConfigError) as error:
        look_through(tmp_path / "jobs.csv")
    assert wrong in str(error.value)
    assert "submission_time, duration (seconds), num_gpu" in error.value.hint


def test_job_traces_are_sorted_and_begin_at_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("timestamp,duration,num_gpus,cluster\n2017-10-02 00:00:10,5,2,x\n2017-10-02 00:00:00,7,1,y\n")
    found = look_through(path)
    assert not found.is_sorted
    assert [(job.submit_s, job.duration_s, job.tenant) for job in found.jobs()] == [(0.0, 7.0, "y"), (10.0, 5.0, "x")]
    assert list(found.jobs()) == list(found.jobs())


def test_a_duration_for_traces_without_one_and_deadlines_for_jobs_without(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\n")
    [job] = look_through(path, duration_s=60.0, slack=3.0).jobs()
    assert (job.gpus, job.duration_s, job.deadline_s) == (6, 60.0, 180.0)


# --- records of markets ---


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("a.json", "", "is empty"),
        ("a.json", "{", "is not JSON"),
        ("a.json", trace([1, 0], None), "metadata.gap_seconds: is None"),
        ("a.json", trace([1, 0], -5), "metadata.gap_seconds: is -5"),
        ("a.json", trace([]), "data: must be a list of counts"),
        ("a.json", '{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', "data[1]: -1 is not a number of nodes"),
        ("a.json", '{"metadata": {"gap_seconds": 60}, "data": [1, 0.5]}', "data[1]: 0.5"),
        ("a.csv", "0,add,n1\n5,moved,n1\n", "line 2: 5,moved"),
        ("a.csv", "0,add\n", "line 1: has fewer than three fields"),
        ("a.txt", "2021-12-11, 11:11:30, 55\n2021-12-11, noon, 54\n", "line 2"),
        ("a.csv", "when,what\n1,2\n", "unknown columns: when, what"),
        ("a.csv", "timestamp_utc,az,instance_type,spot_price_usd_h\n2024-01-01,z,t,-1\n", "line 2: price '-1'"),
        ("a.csv", "timestamp_utc,az,instance_type,spot_price_usd_h\n2024-01-01,z,t,free\n", "line 2: price 'free'"),
        ("a.csv", "timestamp_utc,az,instance_type,spot_price_usd_h\nnow,z,t,1\n", "line 2: timestamp_utc 'now'"),
        ("README.md", "hello", "has no record of a market"),
    ],
)
def test_records_that_are_wrong(tmp_path: Path, name: str, text: str, wrong: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as error:
        read_records([tmp_path])
    assert wrong in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_records([tmp_path / "nowhere"])


def test_records_of_all_forms(tmp_path: Path) -> None:
    (tmp_path / "yes.json").write_text(trace([1, None, 1, 1], 60))
    (tmp_path / "counts.json").write_text(trace([4, 4, 2], 60))
    (tmp_path / "events.csv").write_text("1000,add,n2\n0,add,n1\n5000,remove,n1\n9000,add,n3\n")
    (tmp_path / "held.txt").write_text(
        "2021-12-11, 11:00:00, 5\n2021-12-11, 11:01:00, 6\n"
        "2021-12-11, 11:02:00, 6\n2021-12-11, 11:03:00, 6\n2021-12-11, 15:00:00, 7\n"
    )
    with gzip.open(tmp_path / "prices.csv.gz", "wt") as file:
        file.write("timestamp_utc,az,instance_type,spot_price_usd_h\n")
        file.write("2024-01-01T01:00:00,z,t,0.5\n2024-01-01T00:00:00,z,t,0.4\n2024-01-01T02:00:00,z,t,\n")
    found = read_records([tmp_path])
    assert found.stocks["yes"].values == (ANY_NUMBER, 0, ANY_NUMBER)  # a gap is no machine; 1 is any number
    assert found.stocks["counts"].values == (4, 2)
    assert found.stocks["events"].values == (1, 2, 1, 2)
    assert found.stocks["held"].at(2 * 3600.0) == 0  # nobody looked for four hours
    assert found.prices["z", "t"].values == (400_000, 500_000)
    notes = " ".join(found.notes)
    for said in ("1 of 4 ticks are missing", "held.txt: 1 gaps", "1 rows have no price"):
        assert said in notes


def test_a_record_begins_again_and_anywhere(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(trace([3, 3, 0, 5], 100))
    steps = read_records([tmp_path]).stocks["a"]
    changes = steps.changes(250.0)
    assert [next(changes) for _ in range(5)] == [(0.0, 0), (50.0, 5), (150.0, 3), (350.0, 0), (450.0, 5)]
    assert [steps.at(at_s) for at_s in (0.0, 199.0, 200.0, 399.0, 400.0)] == [3, 3, 0, 5, 3]


def test_records_find_their_markets_by_name_or_stand_in(tmp_path: Path) -> None:
    mine = [make_offer(f"aws/us-east-1{zone}/p3.2xlarge", gpus=1, accelerator="V100", usd_per_h=1.0) for zone in "ab"]
    (tmp_path / "availability__1-node__us-east-1a_v100_1.json").write_text(trace([1, 0]))
    venues, notes = venues_of(mine, read_records([tmp_path]))
    assert [venue.offer.market.zone for venue in venues] == ["us-east-1a"]
    assert "1 spot markets of the fleet have no record" in notes[0]
    (tmp_path / "availability__1-node__us-east-1a_v100_1.json").rename(tmp_path / "elsewhere_v100_8.json")
    venues, notes = venues_of(mine, read_records([tmp_path]))
    assert len(venues) == 1
    assert "1 of 1 stand for its cheapest 1 of 2 zones" in notes[0]


def test_prices_are_of_the_zone_or_of_another_one_of_the_region(tmp_path: Path) -> None:
    offers = [make_offer(f"aws/us-east-1{zone}/g6", gpus=1, usd_per_h=1.0) for zone in "ab"]
    rows = "2024-01-01,us-east-1a,g6,0.5\n2024-01-02,us-east-1a,g6,0.6\n2024-01-01,us-west-2a,g6,0.1\n"
    (tmp_path / "p.csv").write_text("timestamp_utc,az,instance_type,spot_price_usd_h\n" + rows)
    venues, notes = venues_of(offers, read_records([tmp_path]))
    assert [venue.price and venue.price.values for venue in venues] == [(500_000, 600_000)] * 2
    assert "1 spot markets have the prices of another zone" in " ".join(notes)


def test_too_few_windows_say_nothing_of_chance() -> None:
    [result] = compare([("reactive", "")], [[Tally()]])
    assert result.cost_uusd.low is None


@pytest.mark.parametrize(
    ("usd", "text"), [(0.5, "$0.50"), (0.25, "$0.25"), (1.0, "$1.00"), (25.0, "$25"), (2e4, "$20,000")]
)
def test_marks_of_the_chart_tell_small_amounts_apart(usd: float, text: str) -> None:
    assert _mark(usd) == text
