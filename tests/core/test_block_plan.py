"""Block plans against the mask they describe."""

import time

import numpy as np
import pytest

from atoffer_rl.block_plan import Reach, block_plan
from atoffer_rl.masks import parse_mask

MASKS = ["dense", "causal", "strided", "sliding:window=6", "longformer:window=4,global=2", "document:lengths=30/5/67"]


def unpack(words):
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").astype(bool)


@pytest.fixture
def ragged_mask(tmp_path):
    """Two masks of one batch: one keeps nothing but a corner, the other no column of a whole block."""
    keep = np.random.default_rng(1).random((2, 102, 102)) < 0.2
    keep[0] = False
    keep[0, 90:, :3] = True
    keep[1, :, 30:70] = False
    np.save(tmp_path / "mask.npy", keep)
    return parse_mask(f"file:{tmp_path / 'mask.npy'}", 102)


def check(mask, seq_len, tile_rows, columns):
    plan, keep = block_plan(mask, seq_len, tile_rows, columns), mask.keep(seq_len)
    tiles, blocks = -(-seq_len // tile_rows), -(-seq_len // columns)
    assert plan.lists.dtype == np.int32
    assert plan.lists.shape == (len(keep), tiles, 9 + blocks, -(-(2 + columns // 32) // 4) * 4)
    for square, lists in zip(keep, plan.lists, strict=True):
        assert sorted(lists[:, 0, 0]) == list(range(tiles))
        assert list(lists[:, 0, 1]) == sorted(lists[:, 0, 1], reverse=True)
        described = np.zeros((tiles * tile_rows, blocks * columns), bool)
        for (tile, count, *_), *entries in lists:
            assert [tuple(entry[:2]) for entry in entries[count:]] == [(0, -1)] * (8 + blocks - count)
            numbers = [entry[0] for entry in entries[:count]]
            assert numbers == sorted(set(numbers))
            for number, bitmap, *words in entries[:count]:
                kept = described[tile * tile_rows :, number * columns :][:tile_rows, :columns]
                kept[:] = unpack(plan.bitmaps[bitmap]) if bitmap >= 0 else True
                wanted = unpack(np.array(words[: columns // 32], np.int32))
                assert (wanted[: seq_len - number * columns] == kept.any(axis=0)[: seq_len - number * columns]).all()
                assert kept.any()
        np.testing.assert_array_equal(described[:seq_len, :seq_len], square)
        assert not described[:, seq_len:].any()
    assert len(np.unique(plan.bitmaps.reshape(len(plan.bitmaps), -1), axis=0)) == len(plan.bitmaps)


@pytest.mark.parametrize(("tile_rows", "columns"), [(64, 64), (128, 32), (32, 96)])
@pytest.mark.parametrize("seq_len", [1, 64, 65, 102])
@pytest.mark.parametrize("mask", MASKS)
def test_lists_and_bitmaps_describe_the_mask(mask, seq_len, tile_rows, columns):
    if mask.startswith("document"):
        seq_len = 102
    check(parse_mask(mask, seq_len), seq_len, tile_rows, columns)


@pytest.mark.parametrize(("tile_rows", "columns"), [(64, 64), (32, 32)])
def test_a_mask_for_each_sequence(ragged_mask, tile_rows, columns):
    check(ragged_mask, 102, tile_rows, columns)


def test_equal_bitmaps_are_stored_once():
    plan = block_plan(parse_mask("causal", 512), 512, 128, 64)
    assert len(plan.bitmaps) == 2
    assert plan.blocks == 2 + 4 + 6 + 8
    assert plan.lists[0, 0, 0].tolist() == [3, 8, 0, 0]


@pytest.mark.parametrize(("tile_rows", "columns"), [(64, 64), (128, 64), (192, 128)])
@pytest.mark.parametrize(
    ("mask", "seq_len", "reach"),
    [
        ("dense", 1, Reach.SEQUENCE),
        ("dense", 200, Reach.SEQUENCE),
        ("dense", 256, Reach.SEQUENCE),
        ("causal", 64, Reach.SEQUENCE),  # one tile, whose last row keeps everything
        ("causal", 200, Reach.DIAGONAL),
        ("causal", 256, Reach.DIAGONAL),
        ("strided", 256, Reach.DIAGONAL),
        ("sliding:window=6", 64, Reach.SEQUENCE),
    ],
)
def test_reach_says_what_lists_say(mask, seq_len, reach, tile_rows, columns):
    mask = parse_mask(mask, seq_len)
    plan, keep = block_plan(mask, seq_len, tile_rows, columns), mask.keep(seq_len)[0]
    tiles = plan.lists.shape[1]
    assert plan.reach is reach
    for place in range(tiles):
        tile = tiles - 1 - place
        needed = keep[tile * tile_rows : (tile + 1) * tile_rows].any(axis=0)
        end = seq_len if plan.reach is Reach.SEQUENCE else min((tile + 1) * tile_rows, seq_len)
        assert needed[:end].all()
        assert not needed[end:].any()
        assert plan.lists[0, place, 0, :2].tolist() == [tile, -(-end // columns)]
        count = -(-end // columns)
        assert plan.lists[0, place, 1 : 1 + count, 0].tolist() == list(range(count))
    if plan.reach is Reach.DIAGONAL:
        assert not np.triu(keep, 1).any()


@pytest.mark.parametrize(
    ("mask", "reach"),
    [
        ("dense", Reach.SEQUENCE),
        ("causal", Reach.DIAGONAL),
        ("strided", Reach.DIAGONAL),
        ("fixed", Reach.LISTED),
        ("sliding:window=6", Reach.LISTED),
        ("longformer:window=4,global=2", Reach.LISTED),
    ],
)
def test_reach_of_named_masks(mask, reach):
    assert block_plan(parse_mask(mask, 256), 256, 64, 64).reach is reach


def test_columns_after_a_row_are_no_diagonal(tmp_path):
    keep = np.tri(128, dtype=bool)
    keep[0, 40] = True
    np.save(tmp_path / "mask.npy", keep)
    mask = parse_mask(f"file:{tmp_path / 'mask.npy'}", 128)
    assert block_plan(mask, 128, 64, 64).reach is Reach.LISTED


def test_columns_read_are_those_that_a_tile_needs():
    seq_len = 96
    mask = parse_mask("sliding:window=2", seq_len)
    plan = block_plan(mask, seq_len, 32, 32)
    needed = np.add.reduceat(mask.keep(seq_len)[0], range(0, seq_len, 32), axis=0, dtype=int) > 0
    assert plan.columns_read == needed.sum()
    assert block_plan(parse_mask("dense", 128), 128, 64, 64).columns_read == 2 * 128


def test_long_masks_take_under_three_seconds():
    for name in ("causal", "strided"):
        mask = parse_mask(name, 4096)
        mask.keep(4096)
        began = time.process_time()
        block_plan.__wrapped__(mask, 4096, 64, 64)
        assert time.process_time() - began < 3.0  # a quarter of that, unless the machine is busy
