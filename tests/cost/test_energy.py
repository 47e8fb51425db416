"""kWh, grams and how they are known; the meter, on a made-up machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.cost import catalog, energy
from tradewind.cost.energy import Footprint, Known, Use, added, footprint
from tradewind.cost.energy_meter import EnergyMeter, Reading, is_news, nvml_counters, rapl_counters


def test_the_formula() -> None:
    assert energy.kwh(hours=10, devices=8, watts=400, pue=1.1) == pytest.approx(35.2)


def test_measured_watts_are_believed_and_said() -> None:
    found = footprint(Use("aws", "us-east-1", hours=2, hosts=3, processor_watts=1000.0))
    assert found.known is Known.MEASURED
    assert found.kwh == pytest.approx(2 * 3 * 1000 * 1.2 / 1000)
    assert found.operational_g == pytest.approx(found.kwh * 415.8)


def test_estimated_watts_grow_from_idle_to_the_wattage() -> None:
    host = {"accelerator": "A100", "accelerators": 8.0}
    idle = energy.watts_of(Use("gcp", "us-central1", 1, utilisation=0.0, **host))  # type: ignore[arg-type]
    busy = energy.watts_of(Use("gcp", "us-central1", 1, utilisation=1.0, **host))  # type: ignore[arg-type]
    assert (idle, busy) == (pytest.approx(640), pytest.approx(3200))
    assert footprint(Use("gcp", "us-central1", 1, **host)).known is Known.ESTIMATED  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="between 0 and 1"):
        energy.watts_of(Use("gcp", "us-central1", 1, utilisation=70.0))


def test_a_region_that_nobody_knows_is_unknown_not_clean() -> None:
    found = footprint(Use("gcp", "mars-north1", hours=5, processor_watts=500.0))
    assert found.kwh > 0
    assert (found.operational_g, found.total_g, found.sci_g_per(10)) == (None, None, None)
    hourly = footprint(Use("gcp", "mars-north1", hours=5, processor_watts=500.0, g_per_kwh=100.0))
    assert hourly.operational_g == pytest.approx(hourly.kwh * 100)


def test_sci_is_grams_of_one_unit() -> None:
    found = Footprint(kwh=1.0, operational_g=300.0, embodied_g=100.0, known=Known.MEASURED, pue=1.1)
    assert found.sci_g_per(200) == 2.0
    assert found.sci_g_per(0) is None


def test_embodied_share_is_that_of_the_life_and_of_the_host() -> None:
    life = footprint(Use("aws", "us-east-1", hours=energy.LIFE_H, accelerator="A100", accelerators=8, vcpus=96))
    assert life.embodied_g == pytest.approx(1000 * (2300 + 8 * 150))
    eighth = footprint(Use("aws", "us-east-1", hours=energy.LIFE_H, accelerator="A100", accelerators=1, vcpus=12))
    assert eighth.embodied_g == pytest.approx(life.embodied_g / 8)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.booleans()), min_size=1, max_size=6))
def test_sums_add_up_and_are_measured_where_all_parts_are(parts: list[tuple[float, bool]]) -> None:
    each = [
        footprint(Use("aws", "us-east-1", hours, vcpus=8, processor_watts=100.0 if sure else None))
        for hours, sure in parts
    ]
    total = added(each)
    assert total is not None
    assert total.kwh == pytest.approx(sum(one.kwh for one in each))
    assert total.total_g == pytest.approx(sum(one.total_g or 0 for one in each))
    assert (total.known is Known.MEASURED) == all(sure for _, sure in parts)
    assert total.pue == pytest.approx(1.2)


def test_one_unknown_makes_the_sum_unknown() -> None:
    total = added([footprint(Use("aws", "us-east-1", 1, vcpus=1)), footprint(Use("aws", "nowhere", 1, vcpus=1))])
    assert total is not None
    assert total.operational_g is None
    assert added([]) is None


def test_every_accelerator_and_nearly_every_region_of_the_catalogue_has_its_facts() -> None:
    facts, known = energy.load(), catalog.load()
    nameless = [name for name in known.accelerators if ("watts", name) not in facts.rows]
    assert nameless == ["TPU-V5LITEPOD", "TPU-V5P", "TPU-V6E"]  # Google does not tell
    places = {(listed.cloud, line[0]) for listed in known.lists for line in listed.lines}
    assert sum(facts.g_per_kwh(*place) is None for place in places) < 0.1 * len(places)


# --- the meter -------------------------------------------------------------------------------------------------


def rapl(root: Path, name: str, energy_uj: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text("package-0\n")
    (folder / "max_energy_range_uj").write_text("1000000000\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    return folder / "energy_uj"


def test_rapl_is_read_and_its_overrun_counted(tmp_path: Path) -> None:
    file = rapl(tmp_path, "intel-rapl:0", 900_000_000)
    rapl(tmp_path, "intel-rapl:0:0", 5)  # a part of the package
    counters = rapl_counters(tmp_path)
    assert [counter.name for counter in counters] == ["rapl package-0"]
    now = [5.0]
    meter = EnergyMeter([], counters, lambda: now[0])
    now[0] = 15.0
    file.write_text("100000000\n")  # 200 J later, over the end of the register
    assert meter.read() == Reading(10.0, None, pytest.approx(200.0))
    file.write_text("150000000\n")
    assert meter.read() == Reading(10.0, None, pytest.approx(250.0))


def test_a_machine_without_counters_has_no_figure(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    now = iter([0.0, 10.0])
    meter = EnergyMeter([], rapl_counters(tmp_path), lambda: next(now))
    assert not meter
    assert meter.read() == Reading(10.0, None, None)


def test_nvml_cards_are_read() -> None:
    millijoules = [1_000_000, 5_000_000]
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: millijoules[handle],
    )
    now = [0.0]
    meter = EnergyMeter(nvml_counters(nvml), [], lambda: now[0])
    assert meter
    now[0] = 2.0
    millijoules[:] = [1_600_000, 5_200_000]
    assert meter.read() == Reading(2.0, pytest.approx(800.0), None)
    millijoules[:] = [100_000, 5_200_000]  # its driver was loaded again: the counter begins anew
    assert meter.read().card_joules == pytest.approx(900.0)


def test_no_driver_is_no_counter() -> None:
    def missing() -> None:
        raise RuntimeError("no driver")

    assert nvml_counters(SimpleNamespace(NVMLError=RuntimeError, nvmlInit=missing)) == []


def test_a_month_is_told_by_few_readings() -> None:
    told: list[float] = []
    for minute in range(30 * 24 * 60):
        if is_news(told[-1] if told else None, minute * 60.0):
            told.append(minute * 60.0)
    assert told[0] == 60.0
    assert len(told) < 60
    assert told[-1] > 0.75 * 30 * 86400.0
