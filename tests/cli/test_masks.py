"""`atoffer masks`."""

import json

import numpy as np
import pytest

from atoffer_rl.masks import MASK_NAMES
from atoffer_rl.plan_summary import TILE_ROWS
from tests.core.test_whole_file import small_files


def test_the_list_names_every_mask(atoffer):
    listed = json.loads(atoffer("masks", "--json").out)
    assert [row["name"] for row in listed] == list(MASK_NAMES)
    assert {row["name"]: row["example"] for row in listed}["strided"] == "strided:stride=16"
    text = atoffer("masks", "--seq-len", 1024).out
    assert "fixed:block=32" in text


def test_structure(atoffer):
    facts = json.loads(atoffer("masks", "fixed", "--seq-len", 64, "--json").out)
    assert facts["mask"] == "fixed:block=8"
    assert facts["pairs"] == 64 * 64
    assert facts["kept"] == 64 * 9 // 2 + 8 * sum(range(8))
    assert facts["density"] == facts["kept"] / facts["pairs"]
    assert (facts["row_min"], facts["row_max"], facts["empty_rows"]) == (1, 15, 0)
    assert facts["block_density"]["64"] == 1.0
    assert facts["tile_columns"]["16"] == (16 + 18 + 20 + 22) / 4
    text = atoffer("masks", "fixed", "--seq-len", 64).out
    assert f"keeps {facts['kept']} of 4,096 pairs" in text


def test_picture(atoffer, tmp_path):
    path = tmp_path / "mask.png"
    outcome = atoffer("masks", "strided", "--seq-len", 64, "--png", path, "--json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["seq_len"] == 64
    assert path.read_bytes().startswith(b"\x89PNG")


def test_bad_pictures(atoffer, tmp_path):
    assert "must end in .png" in atoffer("masks", "dense", "--png", tmp_path / "mask.gif").err
    assert "No such file" in atoffer("masks", "dense", "--png", tmp_path / "gone" / "mask.png").err


def test_a_picture_that_fails_leaves_the_earlier_one(atoffer, tmp_path):
    (tmp_path / "mask.png").write_bytes(b"precious")
    for name in ("mask", "other"):
        with small_files(1000):
            outcome = atoffer("masks", "dense", "--seq-len", 64, "--json", "--png", tmp_path / f"{name}.png")
        assert outcome.status == 1
        assert f"{name}.png" in outcome.err
        assert "ulimit -f" in outcome.err
    assert (tmp_path / "mask.png").read_bytes() == b"precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_plans(atoffer):
    plans = json.loads(atoffer("masks", "strided", "--seq-len", 256, "--json").out)["plans"]
    assert len(plans) == 4 * len(TILE_ROWS)
    assert [plan["best"] for plan in plans].count(True) == 1
    natural = next(plan for plan in plans if (plan["order"], plan["tile_rows"]) == ("natural", 64))
    assert natural["dense"]["products_per_row"] == 256
    assert natural["dense"]["gathered_per_row"] == 256 / 64
    text = atoffer("masks", "strided", "--seq-len", 256).out
    for words in ("natural", "first column", "split", "two passes", "least products x KiB: ", "of dense: share"):
        assert words in text
    assert f"{natural['products_per_row']:.1f}" in text


def test_masks_of_a_batch(atoffer, tmp_path):
    keep = np.random.default_rng(0).random((2, 40, 40)) < 0.2
    np.save(tmp_path / "mask.npy", keep)
    outcome = atoffer("masks", f"file:{tmp_path / 'mask.npy'}", "--seq-len", 40, "--png", tmp_path / "mask.png")
    assert "2 masks: means over them" in outcome.out
    assert "the first of 2 masks" in outcome.err


@pytest.mark.parametrize("seq_len", [1, 17])
@pytest.mark.parametrize("kept", [False, True])
def test_all_or_nothing(atoffer, tmp_path, seq_len, kept):
    np.save(tmp_path / "mask.npy", np.full((seq_len, seq_len), kept))
    words = "masks", f"file:{tmp_path / 'mask.npy'}", "--seq-len", seq_len
    assert "least products" in atoffer(*words).out
    assert atoffer(*words, "--png", tmp_path / "mask.png").status == 0


def test_too_many_pairs_to_plan(atoffer, monkeypatch, tmp_path):
    monkeypatch.setattr("atoffer_rl.cli.masks.MOST_PAIRS", 1000)
    assert "up to 1,000 pairs" in atoffer("masks", "fixed", "--seq-len", 64).out
    outcome = atoffer("masks", "fixed", "--seq-len", 64, "--json", "--png", tmp_path / "mask.png")
    assert json.loads(outcome.out)["plans"] == []


def test_help_shows_an_example(atoffer):
    assert "atoffer masks strided --seq-len 1024 --png strided.png" in atoffer("masks", "--help").out
