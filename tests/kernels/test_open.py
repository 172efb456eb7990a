"""Which measurer opens: names, what is missing, what is recorded."""

from dataclasses import replace
from pathlib import Path

import pytest

from atoffer_rl import records
from atoffer_rl.errors import AtofferError, DeviceUnavailable, NotRecorded, WorkloadError
from atoffer_rl.kernels import machine
from atoffer_rl.kernels.measurers import open as opening
from atoffer_rl.kernels.measurers.open import open_measurer
from atoffer_rl.records import save_table
from tests.core.test_records import WORKLOAD, toy_table


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_table(toy_table(), tmp_path / "toy.jsonl.gz")
    monkeypatch.setattr(opening, "table_for", lambda workload: records.table_for(workload, tmp_path))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)


@pytest.mark.usefixtures("recorded", "without_gpu")
def test_auto_replays_where_there_is_no_gpu_and_says_so() -> None:
    measurer, line = open_measurer("auto", WORKLOAD)
    assert measurer.name == "replay"
    assert "an NVIDIA GPU" in line
    assert "NVIDIA H100" in line
    assert open_measurer("replay", WORKLOAD)[0].name == "replay"


@pytest.mark.usefixtures("recorded", "without_gpu")
def test_cuda_without_a_gpu_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    with pytest.raises(DeviceUnavailable) as error:
        open_measurer("cuda", WORKLOAD)
    for part in ("GPU", "cupy", "nvmath", "--measurer replay"):
        assert part in str(error.value)


@pytest.mark.usefixtures("recorded", "without_gpu")
def test_what_was_not_recorded_cannot_be_replayed() -> None:
    with pytest.raises(NotRecorded, match="recorded: B 2, S 32"):
        open_measurer("auto", replace(WORKLOAD, mask="causal"))


def test_an_unknown_name() -> None:
    with pytest.raises(AtofferError, match="auto, cuda, replay"):
        open_measurer("tpu", WORKLOAD)


def test_no_visible_device_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine.gpu_count.cache_clear()
    assert machine.gpu_count() == 0
    machine.gpu_count.cache_clear()


@pytest.mark.parametrize("name", ["replay", "auto", "cuda"])
def test_what_is_no_workload(name: str) -> None:
    with pytest.raises(WorkloadError, match="opened for a Workload, not for None"):
        open_measurer(name, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("recorded", "without_gpu")
def test_replay_says_that_it_uses_no_store(tmp_path: Path) -> None:
    assert f"{tmp_path} is not used" in open_measurer("auto", WORKLOAD, tmp_path)[1]
    assert "not used" not in open_measurer("auto", WORKLOAD)[1]
