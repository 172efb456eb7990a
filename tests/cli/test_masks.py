"""`atoffer masks`."""

import json

from atoffer_rl.masks import MASK_NAMES


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
