"""A run of cells: choices found, rows kept, a stopped run continued; processes and the GPU are stood in for."""

import json
from dataclasses import dataclass

import pytest

from atoffer_rl.bench import mha_run
from atoffer_rl.bench.cells import TIMED_CHOICES, choices_hash, find_cells, identity_of, name_of
from atoffer_rl.bench.mha_run import MhaRun
from atoffer_rl.device import H100
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.run import Run
from atoffer_rl.trial import Status, Trial
from atoffer_rl.workload import Workload

MACHINE = {"device": "GPU", "uuid": "GPU-1", "driver": "1", "versions": {}, "floor_gb_s": 3000.0}
CELLS = [Workload(batch=batch, seq_len=64) for batch in (1, 2, 3)]


@dataclass
class StandIn:
    """A measurer to which the last choice is the fastest, and every kernel of batch 3 is wrong."""

    name: str = "stand-in"
    device = H100

    def measure(self, requests):
        assert requests
        return [self._trial(request, index) for index, request in enumerate(requests)]

    def _trial(self, request, index):
        subject = {"subject": request.subject, "choice": request.choice, "scheme": None, "execution": ""}
        if request.workload.batch == 3:
            return Trial(**subject, status=Status.WRONG_RESULT, reason="off")
        return Trial(**subject, status=Status.OK, latency_us=1000.0 - index)

    def known(self, request):
        return None

    def close(self):
        """Nothing to close."""


@pytest.fixture
def bench(monkeypatch):
    """Makes runs whose waves give a row for each cell, but batches in `dying`, and in `robbed` beside others."""
    monkeypatch.setattr(mha_run, "device_here", lambda: H100)
    monkeypatch.setattr(mha_run, "machine_here", lambda: MACHINE)
    monkeypatch.setattr(mha_run, "free_bytes_here", lambda: 2**36)
    taken, said, waves = [], [], []

    def run(path, dying=(), robbed=()):
        def run_wave(cells, replays, on_end):
            short = [cell for cell in cells if cell.workload.batch in robbed and len(cells) > 1]
            waves.append(len(cells))
            for cell in cells:
                taken.append(cell.workload.batch)
                if cell in short:
                    continue
                if cell.workload.batch in dying:
                    on_end(cell, None, "while timing: it died")
                else:
                    shared = {"ours_us": 2.0, "peers": {"a": 5.0}, "peer_errors": {"b": "refused"}, "speedup": 2.5}
                    identity = identity_of(cell.workload) | {"ours_source": cell.choices_hash}
                    on_end(cell, identity | shared | {"bytes_floor_us": 2.0}, "")
            return short

        monkeypatch.setattr(mha_run, "run_wave", run_wave)
        taken.clear()
        waves.clear()
        found = MhaRun(CELLS, path, said.append)
        if found.todo:
            found.run(found.find_cells(StandIn()), 30, 16)
        return found

    run.taken, run.said, run.waves = taken, said, waves
    return run


def test_the_fastest_right_choices_are_ours():
    cells, failures = find_cells(CELLS, StandIn())
    assert [cell.workload for cell in cells] == CELLS[:2]
    for cell in cells:
        assert len(cell.fastest) == TIMED_CHOICES
        assert cell.fastest[0] == LegalSpace(cell.workload).choices(Run(2, 6))[-1]
    assert failures == {CELLS[2]: "no attention kernel is right here (wrong_result: off)"}


def test_rows_and_failures_are_kept(bench, tmp_path):
    path = tmp_path / "record.json"
    assert [row["batch"] for row in bench(path).rows] == [1, 2]
    record = json.loads(path.read_text())
    assert [row["batch"] for row in record["rows"]] == [1, 2]
    assert record["failed"] == {name_of(CELLS[2]): "no attention kernel is right here (wrong_result: off)"}
    assert record["rows"][0]["ours_source"] == choices_hash(CELLS[0], H100)
    assert any("ours 2.0 us, a 5.0 us" in line for line in bench.said)
    assert "  b cannot run it: refused" in bench.said


def test_cells_whose_memory_others_took_are_tried_again_with_fewer_beside_them(bench, tmp_path):
    path = tmp_path / "record.json"
    assert [row["batch"] for row in bench(path, robbed=(1,)).rows] == [1, 2]
    assert (sorted(bench.taken), bench.waves) == ([1, 1, 2], [2, 1])
    assert any("others took its memory; it is tried again" in line for line in bench.said)


def test_a_stopped_run_goes_on(bench, tmp_path):
    path = tmp_path / "record.json"
    assert [row["batch"] for row in bench(path, dying=(1,)).rows] == [2]
    assert [row["batch"] for row in bench(path).rows] == [1, 2]
    assert bench.taken == [1]


def test_what_other_kernels_gave_is_taken_again(bench, tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    bench(path)
    monkeypatch.setattr(mha_run, "choices_hash", lambda workload, device: "other")
    bench(path)
    assert sorted(bench.taken) == [1, 2]


def test_what_other_kernels_gave_stays_until_it_is_taken_again(bench, tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    bench(path)
    before = json.loads(path.read_text())["rows"]
    monkeypatch.setattr(mha_run, "choices_hash", lambda workload, device: "other")
    assert not MhaRun(CELLS, path, bench.said.append).rows
    assert json.loads(path.read_text())["rows"] == before
    bench(path, dying=(1,))
    assert [row["batch"] for row in json.loads(path.read_text())["rows"]] == [1, 2]


def test_rows_of_other_cells_stay(bench, tmp_path):
    path = tmp_path / "record.json"
    measured = {"ours_us": 1.0, "peers": {}, "speedup": None, "bytes_floor_us": 1.0}
    other = identity_of(Workload(batch=9)) | {"ours_source": ""} | measured
    path.write_text(json.dumps(MACHINE | {"taken": "", "rows": [other]}))
    assert [row["batch"] for row in bench(path).rows] == [1, 2]
    assert other in json.loads(path.read_text())["rows"]
