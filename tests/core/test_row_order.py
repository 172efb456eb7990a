"""Orders of rows, and the parts of a mask, against their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.masks import parse_mask
from atoffer_rl.row_order import (
    FRAGMENT_ROWS,
    NO_ROW,
    Order,
    by_first_column,
    far_and_near,
    fragment_columns,
    has_two_parts,
    parts_of,
    sorted_rows,
)
from tests.core.row_masks import NAMED, squares


def one_square(text, seq_len):
    return parse_mask(text, seq_len).keep(seq_len)[0]


def groups_multiplied(keep, rows):
    """Columns that fragments multiply, in groups of 16, and one group for each fragment: by a plain loop."""
    total = 0
    for first in range(0, len(rows), FRAGMENT_ROWS):
        fragment = [row for row in rows[first : first + FRAGMENT_ROWS] if row != NO_ROW]
        total += -(-int(keep[fragment].any(axis=0).sum()) // FRAGMENT_ROWS) + 1
    return total


@given(squares())
def test_far_and_near_partition_the_mask(mask):
    keep = mask.squares[0]
    far, near = far_and_near(keep)
    np.testing.assert_array_equal(far | near, keep)
    assert not (far & near).any()
    assert has_two_parts(keep) == (far.any() and near.any())


@given(squares())
def test_near_is_a_band(mask):
    """Of the offsets between the outermost ones that are near, nothing is far."""
    keep = mask.squares[0]
    far, near = far_and_near(keep)
    rows, columns = np.nonzero(near)
    far_rows, far_columns = np.nonzero(far)
    if len(rows):
        offsets, far_offsets = rows - columns, far_rows - far_columns
        assert not ((far_offsets >= offsets.min()) & (far_offsets <= offsets.max())).any()


@pytest.mark.parametrize(("seq_len", "stride"), [(64, 8), (77, 8), (130, 16), (1024, 32)])
def test_the_near_part_of_strided_is_its_window_and_one_stride(seq_len, stride):
    far, near = far_and_near(one_square(f"strided:stride={stride}", seq_len))
    offset = np.subtract.outer(np.arange(seq_len), np.arange(seq_len))
    np.testing.assert_array_equal(near, (offset >= 0) & (offset <= stride))
    np.testing.assert_array_equal(far, (offset > stride) & (offset % stride == 0))


def test_the_near_part_of_longformer_is_its_window():
    _, near = far_and_near(one_square("longformer:window=8,global=3", 100))
    np.testing.assert_array_equal(near, one_square("sliding:window=8", 100))


@pytest.mark.parametrize("text", ["dense", "causal", "sliding:window=0", "sliding:window=6"])
def test_masks_of_one_part_are_not_split(text):
    assert not has_two_parts(one_square(text, 64))


@given(squares(), st.sampled_from(Order))
def test_parts_partition_the_mask_and_hold_every_row_once(mask, order):
    keep = mask.squares[0]
    parts = parts_of(keep, order)
    np.testing.assert_array_equal(np.sum([part.keep for part in parts], axis=0), keep)
    for part in parts:
        np.testing.assert_array_equal(np.sort(part.rows[part.rows != NO_ROW]), np.arange(len(keep)))
    if order is not Order.FIRST_COLUMN:
        np.testing.assert_array_equal(parts[-1].rows, np.arange(len(keep)))
    assert len(parts) == (2 if order in (Order.SPLIT, Order.TWO_PASSES) else 1)


@given(squares())
def test_sorted_rows_sort_by_the_first_column(mask):
    keep = mask.squares[0]
    rows, empty = sorted_rows(keep)
    filled = [row for row in range(len(keep)) if keep[row].any()]
    assert rows.tolist() == sorted(filled, key=lambda row: int(np.flatnonzero(keep[row])[0]))
    assert empty.tolist() == [row for row in range(len(keep)) if not keep[row].any()]


@given(squares())
def test_by_first_column_keeps_the_sorted_order_and_pays(mask):
    keep = mask.squares[0]
    rows = by_first_column(keep)
    some, empty = sorted_rows(keep)
    assert [row for row in rows if row != NO_ROW and keep[row].any()] == some.tolist()
    assert groups_multiplied(keep, rows) <= groups_multiplied(keep, [*some, *empty])


@given(squares(), st.integers(0, 10))
def test_fragment_columns(mask, left_out):
    keep = mask.squares[0]
    rows = np.r_[np.arange(len(keep))[left_out:], NO_ROW].astype(np.int32)
    needed = fragment_columns(keep, rows)
    assert needed.shape == (-(-len(rows) // FRAGMENT_ROWS), len(keep))
    for number, fragment in enumerate(needed):
        taken = [row for row in rows[number * FRAGMENT_ROWS : (number + 1) * FRAGMENT_ROWS] if row != NO_ROW]
        np.testing.assert_array_equal(fragment, keep[taken].any(axis=0))


@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 67])
@pytest.mark.parametrize("text", NAMED)
def test_rows_of_named_masks(text, seq_len):
    keep = one_square(text, seq_len)
    rows = by_first_column(keep)
    np.testing.assert_array_equal(np.sort(rows[rows != NO_ROW]), np.arange(seq_len))


@pytest.mark.parametrize(
    ("seq_len", "filling"), [(48, [[NO_ROW] * 4] * 4), (64, np.arange(48, 64).reshape(4, 4).tolist())]
)
def test_groups_fill_fragments_where_that_multiplies_less(seq_len, filling):
    """Four groups of 12 rows with columns of their own: of 3 full fragments each would multiply those of 2 groups."""
    keep = np.zeros((seq_len, seq_len), bool)
    for group in range(4):
        keep[12 * group : 12 * (group + 1), 12 * group : 12 * (group + 1)] = True
    expected = [[*range(12 * group, 12 * (group + 1)), *filling[group]] for group in range(4)]
    assert by_first_column(keep).reshape(4, 16).tolist() == expected


def test_groups_stay_together_where_that_multiplies_less():
    """Two groups of 8 rows that share most columns: one fragment."""
    keep = np.zeros((16, 64), bool)
    keep[:8, :40], keep[8:, 1:41] = True, True
    assert by_first_column(keep).tolist() == list(range(16))
