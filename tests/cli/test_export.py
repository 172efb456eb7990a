"""`atoffer export`: which scheme it takes, and what the export needs."""

import json
import os
import subprocess
import sys
import time

import pytest

from atoffer_rl.cli import scheme_source
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.scheme import Scheme
from atoffer_rl.table_summary import best_recorded
from atoffer_rl.workload import Workload
from tests.synthetic import synthetic_table, with_failure

WORKLOAD = Workload(batch=1, seq_len=128)
SHAPE = ("--batch", 1, "--seq-len", 128)


@pytest.fixture
def table(monkeypatch):
    recorded = synthetic_table(WORKLOAD)
    monkeypatch.setattr(scheme_source, "table_for", lambda _: recorded)
    return recorded


def test_a_standalone_export_needs_cupy_alone(atoffer, tmp_path, table):
    folder = tmp_path / "scheme"
    assert atoffer("export", folder, *SHAPE, "--standalone").status == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    scheme = Scheme.from_json(manifest["schemes"]["best"]["scheme"])
    assert manifest["requires"] == ["cupy"]
    assert not (folder / "atoffer_library").exists()
    assert scheme == best_recorded(table, WORKLOAD, LegalSpace(WORKLOAD, table.device, standalone=True))[0]
    assert scheme != best_recorded(table, WORKLOAD)[0]


def test_a_scheme_with_library_calls_is_not_standalone(atoffer, tmp_path, table):
    scheme, _ = best_recorded(table, WORKLOAD)
    assert any(choice.template == "cublaslt" for choice in scheme.choices)
    (tmp_path / "scheme.json").write_text(json.dumps(scheme.to_json()))
    outcome = atoffer("export", tmp_path / "out", *SHAPE, "--scheme", tmp_path / "scheme.json", "--standalone")
    assert outcome.status == 1
    assert "calls a library" in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_choice_that_failed_for_good_is_not_exported(atoffer, tmp_path, table, monkeypatch):
    scheme, _ = best_recorded(table, WORKLOAD, LegalSpace(WORKLOAD, table.device, standalone=True))
    choice = scheme.choices[1]
    (tmp_path / "scheme.json").write_text(json.dumps(scheme.to_json()))
    words = ("export", tmp_path / "out", *SHAPE, "--scheme", tmp_path / "scheme.json")
    monkeypatch.setattr(scheme_source, "table_for", lambda _: with_failure(table, choice))
    outcome = atoffer(*words)
    assert outcome.status == 1
    assert f"{choice} failed when it was recorded, wrong_result: 3 times its budget: export another" in outcome.err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(scheme_source, "table_for", lambda _: with_failure(table, choice, transient=True))
    assert atoffer(*words).status == 0


def test_a_link_stays_a_link_and_its_target_is_written(atoffer, tmp_path, table):
    (tmp_path / "link").symlink_to("scheme")
    for _ in range(2):
        assert atoffer("export", tmp_path / "link", *SHAPE, "--standalone").status == 0
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "scheme/manifest.json").is_file()


def test_the_folder_that_one_is_in_is_not_replaced(atoffer, tmp_path, table, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "that you are in" in atoffer("export", ".", *SHAPE, "--standalone").err


def test_a_target_that_is_no_chip_makes_nothing(atoffer, tmp_path, table):
    for arch in ("compute_90", "sm_90a ", "../../x", ".."):
        outcome = atoffer("export", tmp_path / "x" / "y", *SHAPE, "--standalone", "--arch", arch)
        assert outcome.status == 1
        assert f"{arch!r} is no arch: name an arch such as sm_90a" in outcome.err
    assert list(tmp_path.iterdir()) == []


def half_exported(folder, cache):
    """A process that exports to `folder`, and is not done."""
    words = ["export", folder, "--batch", "16", "--seq-len", "256", "--mask", "strided", "--standalone"]
    program = "from atoffer_rl.cli.start import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"ATOFFER_CACHE": str(cache)},
    )
    deadline = time.monotonic() + 60
    while not list(folder.parent.glob(".*.partial/export/source/*")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_an_export_that_is_ended_leaves_nothing(tmp_path):
    (tmp_path / "out").mkdir()
    process = half_exported(tmp_path / "out" / "scheme", tmp_path / "cache")
    process.terminate()
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert complaint.count("\n") == 1
    assert "interrupted" in complaint
    assert list((tmp_path / "out").iterdir()) == []


def test_what_a_killed_export_leaves_goes_with_the_next(atoffer, tmp_path, table):
    (tmp_path / "out").mkdir()
    process = half_exported(tmp_path / "out" / "scheme", tmp_path / "cache")
    process.kill()
    process.communicate(timeout=60)
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert atoffer("export", tmp_path / "out" / "scheme", *SHAPE, "--standalone").status == 0
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "scheme"]
