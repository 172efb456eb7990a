"""`atoffer bench` without a GPU."""

import json

import pytest

from atoffer_rl.bench.cells import IDENTITY
from atoffer_rl.bench.grids import BEYOND_ATTENTION
from atoffer_rl.bench.record import table_of
from atoffer_rl.cli.options import SEQUENCE_NAMES, WORKLOAD_NAMES
from atoffer_rl.device import H100
from atoffer_rl.kernels.legal_space import LegalSpace
from atoffer_rl.kernels.machine import what_is_missing
from atoffer_rl.workload import Workload
from tests.bench.test_record_file import encoder_row


@pytest.mark.parametrize("grid", ["nothing", ""])
def test_an_unknown_grid_is_named(atoffer, grid):
    outcome = atoffer("bench", "mha", "--grid", grid)
    assert outcome.status == 1
    assert "paper, long, masks, fp32, heads, small" in outcome.err


@pytest.mark.parametrize("command", ["mha", "encoder"])
def test_lengths_are_no_option_of_peers(atoffer, command):
    outcome = atoffer("bench", command, "--lengths", "uniform")
    assert outcome.status == 2
    assert "No such option: --lengths" in outcome.err
    assert "--packed" not in atoffer("bench", command, "--help").out


@pytest.mark.parametrize("words", [("--layers", 2), ("--ffn-dim", 256), ("--activation", "relu"), ("--epsilon", 1e-5)])
def test_what_attention_does_not_heed_is_no_option_of_it(atoffer, words):
    outcome = atoffer("bench", "mha", *words)
    assert outcome.status == 2
    assert f"No such option: {words[0]}" in outcome.err
    assert words[0] in atoffer("bench", "encoder", "--help").out


def test_every_field_of_a_workload_is_attentions_or_beyond():
    assert sorted((*IDENTITY, *BEYOND_ATTENTION, *SEQUENCE_NAMES)) == sorted(WORKLOAD_NAMES)


def test_a_given_scheme_needs_no_measurer_and_its_record_is_kept_before_it_is_shown(atoffer, tmp_path, monkeypatch):
    row = encoder_row()
    written = tmp_path / "record.json"

    def show(rows):
        assert json.loads(written.read_text())["rows"] == [row]
        return table_of(rows)

    (tmp_path / "scheme.json").write_text(json.dumps(LegalSpace(Workload()).unfused.to_json()))
    monkeypatch.setattr("atoffer_rl.bench.cells.device_here", lambda: H100)
    monkeypatch.setattr("atoffer_rl.kernels.measurers.open.open_measurer", None)
    monkeypatch.setattr("atoffer_rl.bench.encoder.bench_encoder", lambda *_: row)
    monkeypatch.setattr("atoffer_rl.bench.record.record_of", lambda rows: {"rows": rows})
    monkeypatch.setattr("atoffer_rl.bench.record.table_of", show)
    outcome = atoffer("bench", "encoder", "--scheme", tmp_path / "scheme.json", "--json", written)
    assert (outcome.status, outcome.err) == (0, "")
    assert "trials kept" not in outcome.out
    assert "c cannot run" in outcome.out


def test_an_encoder_record_that_cannot_be_written_is_told_at_once(atoffer, tmp_path):
    outcome = atoffer("bench", "encoder", "--json", tmp_path)
    assert outcome.status == 1
    assert "it is a folder" in outcome.err


def test_an_encoder_record_replaces_nothing_else(atoffer, tmp_path):
    (tmp_path / "mha.json").write_text('{"rows": [{}]}')
    outcome = atoffer("bench", "encoder", "--json", tmp_path / "mha.json")
    assert outcome.status == 1
    assert "not a record of bench encoder: name another file" in outcome.err
    assert (tmp_path / "mha.json").read_text() == '{"rows": [{}]}'


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("mha", "--grid", "small", "--mask", "causal"), "grid small says which cells it has: leave out --mask"),
        (("mha", "--grid", "long", "--batch", 1, "--seq-len", 8), "leave out --batch, --seq-len"),
        (("mha", "--grid", "heads", "--heads", 4, "--head-dim", 32), "leave out --heads, --head-dim"),
        (("mha", "--grid", "fp32", "--dtype", "float16"), "leave out --dtype"),
        (("encoder", "--searcher", "oracle"), "'oracle' cannot search live: use --searcher ppo or random"),
        (("encoder", "--searcher", "ants"), "'ants' cannot search live: use --searcher ppo or random"),
        (("encoder", "--scheme", "x.json", "--budget", 9), "with --scheme nothing is searched for: leave out --budget"),
        (("encoder", "--scheme", "x.json", "--store", "x.db"), "nothing is searched for: leave out --store"),
        (("encoder", "--scheme", "x.json", "--standalone", "--searcher", "ppo"), "leave out --searcher, --standalone"),
    ],
)
def test_options_that_would_not_be_heeded_are_refused(atoffer, words, complaint):
    outcome = atoffer("bench", *words)
    assert outcome.status == 1
    assert complaint in outcome.err


@pytest.mark.skipif(not what_is_missing(), reason="a GPU is here")
@pytest.mark.parametrize("words", [("--grid", "small", "--heads", 4, "--dtype", "float32"), ("--mask", "causal")])
def test_options_that_a_grid_leaves_open_are_taken(atoffer, words):
    assert "GPU" in atoffer("bench", "mha", *words).err


@pytest.mark.skipif(not what_is_missing(), reason="a GPU is here")
def test_what_is_missing_is_named(atoffer, tmp_path):
    outcome = atoffer("bench", "mha", "--grid", "small", "--json", tmp_path / "record.json")
    assert outcome.status == 1
    assert "GPU" in outcome.err
    assert not (tmp_path / "record.json").exists()


def test_cells_without_a_row_are_a_failure(atoffer, monkeypatch):
    """What lines above say of them may be far above."""
    monkeypatch.setattr("atoffer_rl.bench.mha_run.device_here", lambda: H100)
    monkeypatch.setattr("atoffer_rl.bench.mha_run.machine_here", dict)
    monkeypatch.setattr("atoffer_rl.cli.bench._run_cells", lambda *_: None)
    outcome = atoffer("bench", "mha", "--grid", "small")
    assert outcome.status == 1
    assert outcome.err == "atoffer: 8 of 8 cells have no row: the lines above say why\n"


def test_help_shows_an_example(atoffer):
    assert "atoffer bench mha --grid paper" in atoffer("bench", "mha", "--help").out
