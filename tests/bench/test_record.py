"""Records, their tables, and what the README makes of them."""

import json
import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from atoffer_rl.bench.cells import IDENTITY, choices_hash, programs_hash
from atoffer_rl.bench.grids import BEYOND_ATTENTION
from atoffer_rl.bench.record import (
    cells_table,
    check_writable,
    details_table,
    geometric_mean,
    speedup_table,
    summary_of,
    table_of,
)
from atoffer_rl.device import DEFAULT_DEVICE
from atoffer_rl.errors import LogError
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.workload import Workload
from tests.bench.test_record_file import MACHINE, kept, row

README = Path(__file__).parents[2] / "benchmarks" / "readme.py"


@pytest.mark.parametrize("name", ["", "file/record.json"])
def test_what_cannot_be_written_is_told_before_anything_runs(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot write"):
        check_writable(tmp_path / name)


def test_checking_leaves_what_is_there(tmp_path):
    path = tmp_path / "record.json"
    path.write_text("before")
    check_writable(path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_protected_file_is_told_before_anything_runs(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(LogError, match="write-protected"):
        check_writable(path)


def test_standard_output_is_written_as_it_is():
    program = "from pathlib import Path; from atoffer_rl.bench.record import write_record as w; "
    command = [sys.executable, "-c", program + "w(Path('/dev/stdout'), {'rows': []})"]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == {"rows": []}


def test_the_table_of_all_peers():
    columns, lines = table_of([row()])
    assert columns[-4:] == ["a us", "b us", "c us", "speedup"]
    assert lines[0][-4:] == ["4.0", "18.0", "-", "2.00"]


def test_the_table_of_cells():
    columns, lines = cells_table([row(), row(mask="document:lengths=1/2/3", speedup=None)])
    assert columns == ["mask", "B", "S", "ours us", "fastest peer", "its us", "speedup", "over the floor"]
    assert lines[0] == ["strided:stride=8", 1, 64, "2.0", "a", "4.0", "2.00", "2.00"]
    assert lines[1] == ["document, 3 of them", 1, 64, "2.0", "-", "-", "-", "2.00"]
    assert cells_table([row(), row(heads=3)])[0][3:5] == ["H", "W"]


def test_the_table_of_details():
    errors = {"max_error": 0.01, "error_budget": 0.1, "peaked_error": 0.05, "peaked_budget": 0.2}
    columns, lines = details_table([row() | errors | {"ours_choice": "[2,6]:block(tile_rows=64)"}])
    assert columns[-2:] == ["error over its budget", "ours"]
    assert lines[0][-3:] == ["2.00", "0.25", "`block(tile_rows=64)`"]


def test_the_summary():
    rows = [row(speedup=1.0), row(speedup=4.0, batch=16, mask="dense"), row(speedup=None)]
    assert summary_of(rows) == (
        "speedup over the fastest peer: geometric mean 1.00 (causal and dense apart: 4.00), "
        "smallest 1.00 (strided:stride=8, B 1, S 64), largest 4.00 (dense, B 16, S 64)"
    )
    assert geometric_mean(rows) == pytest.approx(2.0)
    assert summary_of(rows[1:]).startswith("speedup over the fastest peer: geometric mean 4.00, ")
    assert summary_of([row(speedup=None)]) == ""


def test_the_table_of_speedups():
    rows = [row(), row(mask="strided:stride=11", seq_len=128, speedup=3.0), row(batch=8, speedup=1.5)]
    assert speedup_table(rows) == (
        ["mask", "B", "S 64", "S 128"],
        [["strided", 1, "2.00", "3.00"], ["strided", 8, "1.50", "-"]],
    )


def readme_with(monkeypatch, folder):
    spec = util.spec_from_file_location("readme", README)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", folder)
    return module


def test_the_readme_shows_speedups_by_cell(monkeypatch, tmp_path):
    readme = readme_with(monkeypatch, tmp_path)
    assert readme.attention() == ""
    kept(tmp_path / "mha_long_one.json")
    assert readme.attention() == ""
    record = kept(tmp_path / "mha_paper_one.json")
    record.fail("some cell", "it died")
    assert readme.attention() == ""
    record.add(row())
    record.add(row(batch=8, speedup=8.0))
    text = readme.attention()
    assert (
        "Grid paper on GPU (float16, torch 2, of earlier kernels, 40 cells not measured yet): geometric mean 4.00 "
        in text
    )
    assert "geometric mean 4.00 ([record](benchmarks/results/mha_paper_one.json))" in text
    assert "| strided | 8 | 8.00 |" in text


def test_the_readme_shows_every_card_of_a_grid(monkeypatch, tmp_path):
    readme = readme_with(monkeypatch, tmp_path)
    for card in ("one", "two", "paper_three"):
        kept(tmp_path / f"mha_paper_{card}.json", MACHINE | {"device": card}).add(row())
    assert [line.split()[3] for line in readme.attention().splitlines() if line.startswith("Grid")] == ["one", "two"]


def test_the_readme_says_which_records_are_of_these_kernels(monkeypatch, tmp_path):
    readme = readme_with(monkeypatch, tmp_path)
    now = choices_hash(Workload(batch=1, seq_len=64, mask="strided:stride=8"), DEFAULT_DEVICE)
    same = row() | {"ours_source": now}
    for rows, of_these in (([same], True), ([same, row(seq_len=32)], False), ([row(seq_len=65), same], False)):
        assert readme.age_of({"device": "GPU", "rows": rows}) == ("" if of_these else readme.EARLIER)


def test_the_readme_says_which_encoders_are_of_these_kernels(monkeypatch, tmp_path):
    readme, workload = readme_with(monkeypatch, tmp_path), Workload(batch=1, seq_len=64)
    scheme = LegalSpace(workload, DEFAULT_DEVICE).unfused
    encoder = {name: getattr(workload, name) for name in (*IDENTITY, *BEYOND_ATTENTION)} | {
        "ours_scheme": scheme.to_json()
    }
    now = encoder | {"ours_source": programs_hash(workload, scheme.choices)}
    assert readme.age_of_encoders([now]) == ""
    for earlier in (encoder, encoder | {"ours_source": "another"}):
        assert readme.age_of_encoders([now, earlier]) == readme.EARLIER
