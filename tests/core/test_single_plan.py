"""Plans of whole tiles, beside the mask itself."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.gather_plan import lane_words
from atoffer_rl.masks import parse_mask
from atoffer_rl.single_plan import NO_TILE, SingleOutline, single_outline, single_plan
from tests.core.row_masks import NAMED, Squares, squares

WIDE_ROWS = "longformer:window=8,global=5"


def check_plan(mask, seq_len, tile_rows, splits):
    """Each tile's items list what its rows keep, ascending, once; bits say which row keeps which of it."""
    keep, plan = mask.keep(seq_len), single_plan(mask, seq_len, tile_rows, splits)
    outline = single_outline(mask, seq_len, tile_rows, splits)
    assert plan.columns.shape == (len(keep), outline.items, outline.room)
    assert outline.room % 16 == 0
    assert outline.items % splits == outline.shared % splits == 0
    for index, rows in enumerate(keep):
        check_clusters(plan.tiles[index], outline, splits)
        for tile in range(-(-seq_len // tile_rows)):
            kept = rows[tile * tile_rows : (tile + 1) * tile_rows]
            items = np.flatnonzero(plan.tiles[index] == tile)
            assert len(items) == (splits if items[0] < outline.shared else 1)
            lists = [plan.columns[index, item, : plan.counts[index, item]].tolist() for item in items]
            assert list(chain(*lists)) == np.flatnonzero(kept.any(axis=0)).tolist()
            for item, columns in zip(items, lists, strict=True):
                assert not plan.columns[index, item, len(columns) :].any()
                bits = np.zeros((tile_rows, outline.room), np.bool_)
                bits[: len(kept), : len(columns)] = kept[:, columns]
                np.testing.assert_array_equal(plan.words[index, item], lane_words(bits.reshape(-1, 16, outline.room)))
    return plan


def check_clusters(tiles, outline, splits):
    """Shared clusters are pieces of one tile, or nothing; the others have every other tile once, and nothing last."""
    shared = tiles[: outline.shared].reshape(-1, splits)
    assert (shared == shared[:, :1]).all()
    cut, whole = shared[:, 0][shared[:, 0] != NO_TILE], tiles[outline.shared :]
    present = whole[whole != NO_TILE]
    assert sorted([*cut, *present]) == list(range(len(cut) + len(present)))
    assert (whole[len(present) :] == NO_TILE).all()
    assert (np.diff(present) < 0).all()


@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("tile_rows", [16, 32, 64])
@pytest.mark.parametrize("seq_len", [1, 16, 17, 130])
@pytest.mark.parametrize("text", NAMED)
def test_named_masks(text, seq_len, tile_rows, splits):
    check_plan(parse_mask(text, seq_len), seq_len, tile_rows, splits)


@given(squares(batches=(1, 3)), st.sampled_from([16, 32]), st.sampled_from([1, 2, 4]))
def test_any_masks(mask, tile_rows, splits):
    check_plan(mask, mask.seq_len, tile_rows, splits)


def test_a_tile_that_keeps_far_more_than_others_is_cut():
    outlines = [single_outline(parse_mask(WIDE_ROWS, 260), 260, 16, splits) for splits in (1, 2, 4, 8)]
    assert [outline.shared for outline in outlines] == [0, 2, 4, 8]
    assert [outline.room for outline in outlines] == [272, 144, 80, 48]


def test_no_more_than_half_of_the_tiles_are_cut():
    causal = parse_mask("causal", 256)
    assert single_outline(causal, 256, 16, 2) == SingleOutline(room=128, items=24, shared=16)
    assert single_outline(causal, 256, 16, 4) == single_outline(causal, 256, 16, 1)


def test_nothing_is_cut_where_all_tiles_keep_alike():
    assert single_outline(parse_mask("dense", 64), 64, 16, 2) == single_outline(parse_mask("dense", 64), 64, 16, 1)


def test_masks_that_cut_fewer_tiles_have_none_in_the_place_of_pieces():
    keep = np.zeros((2, 64, 64), np.bool_)
    keep[:, range(64), range(64)] = True
    keep[0, 0] = True
    plan = check_plan(Squares(keep), 64, 16, 2)
    assert plan.tiles.tolist() == [[0, 0, 3, 2, 1, -1], [-1, -1, 3, 2, 1, 0]]


def test_steps_that_no_row_of_a_fragment_keeps_are_not_counted():
    keep = np.zeros((1, 32, 32), np.bool_)
    keep[0, :16, :16] = keep[0, 16:, 15:] = True
    assert single_plan(Squares(keep), 32, 32, 1).steps == 1 + 2
    assert single_plan(Squares(np.zeros((2, 5, 5), np.bool_)), 5, 16, 1).steps == 0
