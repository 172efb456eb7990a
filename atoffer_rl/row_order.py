"""In which order a mask's rows are tiled, and whether they are tiled twice: parts of a mask that share columns.

Under `strided`, neighbouring rows share the columns of a band along the diagonal, but each has its own far columns:
a tile of neighbouring rows needs nearly all columns. Rows whose first far column is the same share the others, too.
So a mask may be cut into a near part, tiled in natural order, and a far part, tiled in that one.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from atoffer_rl.masks import Keep

Rows: TypeAlias = NDArray[np.int32]
NO_ROW = -1
FRAGMENT_ROWS = 16
"""Rows that are multiplied together."""
WIDE = 2
"""Times the columns of the median fragment: those that need more are wide."""
FRAGMENTS_AT_ONCE = 64
"""Fragments whose rows are copied at a time: a whole mask's would take a second mask's memory."""


class Order(IntEnum):
    """How rows are brought into tiles, and into the fragments of a tile.

    `NATURAL` and `FIRST_COLUMN` are one order for both. `SPLIT` tiles a near and a far part of the mask apart, each in
    its own order. `TWO_PASSES` has natural tiles, whose rows are brought into fragments twice, once for each part.
    `WIDE_APART` has natural tiles, too, without the fragments that need far more columns than most: each is by itself,
    and all fragments of a block share its columns.
    """

    NATURAL = 0
    FIRST_COLUMN = 1
    SPLIT = 2
    TWO_PASSES = 3
    WIDE_APART = 4


@dataclass(frozen=True)
class Part:
    """Some kept pairs, and the order in which rows are tiled for them.

    Attributes:
        keep: (seq_len, seq_len) bool, the pairs of this part.
        rows: int32, every row once, and `NO_ROW` where a fragment is left unfilled.
    """

    keep: Keep
    rows: Rows


def parts_of(keep: Keep, order: Order) -> tuple[Part, ...]:
    """The parts of one (seq_len, seq_len) mask, the one in natural order last; together they keep what it keeps."""
    natural = np.arange(len(keep), dtype=np.int32)
    if order in (Order.NATURAL, Order.WIDE_APART):
        return (Part(keep, natural),)
    if order is Order.FIRST_COLUMN:
        return (Part(keep, by_first_column(keep)),)
    far, near = far_and_near(keep)
    return (Part(far, by_first_column(far) if order is Order.SPLIT else natural), Part(near, natural))


def far_and_near(keep: Keep) -> tuple[Keep, Keep]:
    """What `keep` keeps away from the band along the diagonal, and inside it."""
    near = keep & _band(keep)
    return keep > near, near


def has_two_parts(keep: Keep) -> bool:
    """Whether the mask has a near and a far part."""
    far, near = far_and_near(keep)
    return bool(far.any() and near.any())


def wide_fragments(needs: Keep) -> NDArray[np.bool_]:
    """(fragments,) bool: which need far more columns than most.

    Args:
        needs: (fragments, seq_len) bool, as `fragment_columns` gives it.
    """
    widths = np.count_nonzero(needs, axis=1)
    wide: NDArray[np.bool_] = widths > WIDE * np.median(widths)
    return wide


def has_wide(keep: Keep) -> bool:
    """Whether any fragment of the mask's rows in natural order is wide."""
    return bool(wide_fragments(fragment_columns(keep, np.arange(len(keep), dtype=np.int32))).any())


def _band(keep: Keep) -> Keep:
    """The band along the diagonal that the median row keeps without a gap, as a view of one vector."""
    seq_len = len(keep)
    left = _median_run(np.array([_first_dropped(row[index::-1], seq_len) for index, row in enumerate(keep)]))
    right = _median_run(np.array([_first_dropped(row[index:], seq_len) for index, row in enumerate(keep)]))
    offsets = np.arange(seq_len - 1, -seq_len, -1, dtype=np.int32)
    return sliding_window_view((offsets < left) & (offsets > -right), seq_len)[::-1]


def _first_dropped(kept: Keep, none: int) -> int:
    place = int(kept.argmin())
    return none if kept[place] else place


def _median_run(gaps: NDArray[np.intp]) -> int:
    """The median distance to the first dropped column, over rows that have one and keep their diagonal."""
    inside = gaps[(gaps > 0) & (gaps < len(gaps))]
    return int(np.median(inside)) if inside.size else 0


def by_first_column(keep: Keep) -> Rows:
    """Rows by the first column they keep, each group of rows beginning a fragment or not, whichever multiplies less.

    Rows that keep nothing fill fragments up, and come last where there is nothing to fill.
    """
    rows, empty = sorted_rows(keep)
    first = keep.argmax(axis=1)[rows]
    starts = np.flatnonzero(np.r_[True, np.diff(first) != 0]) if len(rows) else np.zeros(0, np.intp)
    dense, filled = np.r_[rows, empty], _fill_groups(rows, starts, empty)
    return filled if _cost(keep, filled) < _cost(keep, dense) else dense


def sorted_rows(keep: Keep) -> tuple[Rows, Rows]:
    """Rows that keep anything by the first column they keep, and those that keep nothing."""
    index = np.arange(len(keep), dtype=np.int32)
    first = keep.argmax(axis=1)
    some = keep[index, first]
    return index[some][np.argsort(first[some], kind="stable")], index[~some]


def _fill_groups(rows: Rows, starts: NDArray[np.intp], empty: Rows) -> Rows:
    """Each group made whole fragments with rows of `empty`, then with `NO_ROW`; what is left of `empty` last."""
    sizes = np.diff(np.r_[starts, len(rows)])
    padded = -(-sizes // FRAGMENT_ROWS) * FRAGMENT_ROWS
    result = np.full(int(padded.sum()), NO_ROW, np.int32)
    shift = np.repeat(np.cumsum(padded) - padded - starts, sizes)
    result[np.arange(len(rows)) + shift] = rows
    holes = np.flatnonzero(result == NO_ROW)[: len(empty)]
    result[holes] = empty[: len(holes)]
    filled: Rows = np.concatenate([result, empty[len(holes) :]])
    return filled


def _cost(keep: Keep, rows: Rows) -> int:
    """Groups of columns that the fragments multiply, and one for each fragment."""
    return int(sum(-(-needed // FRAGMENT_ROWS) + 1 for needed in fragment_columns(keep, rows).sum(axis=1)))


def fragment_columns(keep: Keep, rows: Rows) -> Keep:
    """(fragments, seq_len) bool: the columns that any row of each fragment of `rows` keeps."""
    padded = np.concatenate([rows, np.full(-len(rows) % FRAGMENT_ROWS, NO_ROW, np.int32)])
    needed = np.empty((len(padded) // FRAGMENT_ROWS, keep.shape[1]), np.bool_)
    for first in range(0, len(needed), FRAGMENTS_AT_ONCE):
        some = padded[first * FRAGMENT_ROWS : (first + FRAGMENTS_AT_ONCE) * FRAGMENT_ROWS]
        picked = keep[some] & (some >= 0)[:, None]
        picked.reshape(-1, FRAGMENT_ROWS, keep.shape[1]).any(axis=1, out=needed[first : first + FRAGMENTS_AT_ONCE])
    return needed
