"""Plans of whole tiles, beside the mask itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.gather_plan import lane_words
from atoffer_rl.masks import parse_mask
from atoffer_rl.single_plan import single_plan, single_room
from tests.core.row_masks import NAMED, Squares, squares


def check_plan(mask, seq_len, tile_rows):
    """Each tile lists what its rows keep, ascending, once; bits say which row keeps which of it."""
    keep, plan = mask.keep(seq_len), single_plan(mask, seq_len, tile_rows)
    assert plan.room % 16 == 0
    assert plan.room == single_room(mask, seq_len, tile_rows)
    for index, rows in enumerate(keep):
        for tile in range(-(-seq_len // tile_rows)):
            kept = rows[tile * tile_rows : (tile + 1) * tile_rows]
            count, columns = plan.counts[index, tile], plan.columns[index, tile]
            assert columns[:count].tolist() == np.flatnonzero(kept.any(axis=0)).tolist()
            assert not columns[count:].any()
            bits = np.zeros((tile_rows, plan.room), np.bool_)
            bits[: len(kept), :count] = kept[:, columns[:count]]
            np.testing.assert_array_equal(plan.words[index, tile], lane_words(bits.reshape(-1, 16, plan.room)))
    return plan


@pytest.mark.parametrize("tile_rows", [16, 32, 64])
@pytest.mark.parametrize("seq_len", [1, 16, 17, 130])
@pytest.mark.parametrize("text", NAMED)
def test_named_masks(text, seq_len, tile_rows):
    check_plan(parse_mask(text, seq_len), seq_len, tile_rows)


@given(squares(batches=(1, 3)), st.sampled_from([16, 32]))
def test_any_masks(mask, tile_rows):
    check_plan(mask, mask.seq_len, tile_rows)


def test_steps_that_no_row_of_a_fragment_keeps_are_not_counted():
    keep = np.zeros((1, 32, 32), np.bool_)
    keep[0, :16, :16] = keep[0, 16:, 15:] = True
    assert single_plan(Squares(keep), 32, 32).steps == 1 + 2
    assert single_plan(Squares(np.zeros((2, 5, 5), np.bool_)), 5, 16).steps == 0
