"""`atoffer bench` without a GPU."""

import pytest

from atoffer_rl.kernels.machine import what_is_missing


@pytest.mark.parametrize("grid", ["nothing", ""])
def test_an_unknown_grid_is_named(atoffer, grid):
    outcome = atoffer("bench", "mha", "--grid", grid)
    assert outcome.status == 1
    assert "paper, long, masks, fp32, heads, small" in outcome.err


@pytest.mark.parametrize("command", ["mha", "encoder"])
def test_lengths_are_refused(atoffer, command):
    for words in (["--lengths", "uniform"], ["--lengths", "uniform", "--packed"]):
        outcome = atoffer("bench", command, *words)
        assert outcome.status == 1
        assert "peers take no sequence lengths" in outcome.err


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


@pytest.mark.skipif(not what_is_missing(), reason="a GPU is here")
def test_what_is_missing_is_named(atoffer, tmp_path):
    outcome = atoffer("bench", "mha", "--grid", "small", "--json", tmp_path / "record.json")
    assert outcome.status == 1
    assert "GPU" in outcome.err
    assert not (tmp_path / "record.json").exists()


def test_help_shows_an_example(atoffer):
    assert "atoffer bench mha --grid paper" in atoffer("bench", "mha", "--help").out
