"""What kernels read of a mask by whole blocks: each row tile's column blocks, and bitmaps of those kept in part."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.mask_plan import WORD_BITS, pack_words
from atoffer_rl.masks import Keep, Mask

Int32: TypeAlias = NDArray[np.int32]
Int64: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint32]
WHOLE = -1
HEAD_ENTRIES, END_ENTRIES = 1, 2


@dataclass(frozen=True)
class BlockPlan:
    """The column blocks that any row of a tile keeps.

    Attributes:
        tile_rows: Rows of a tile; a ragged last tile's missing rows keep nothing.
        columns: Columns of a block; those of the last one that lie beyond the sequence are kept by no row.
        lists: (mask_batches, tiles, 3 + blocks, 2) int32; the first pair is the row tile and how many blocks it has,
            then come the blocks in ascending order: number, and which bitmap says what is kept of it (-1: everything,
            by all rows of the sequence). Pairs (0, -1), two at least, end the list. Of each mask the tiles with most
            blocks come first.
        bitmaps: (distinct, tile_rows, columns / 32) uint32: which columns each row keeps. Where no block is kept in
            part there is one, of nothing, that no list names: arrays of size 0 have no address.
        needed: (distinct, columns / 32) uint32: which columns any row of that bitmap keeps.
    """

    tile_rows: int
    columns: int
    lists: Int32
    bitmaps: Words
    needed: Words

    @property
    def blocks(self) -> int:
        """Blocks in all lists."""
        return int(self.lists[:, :, 0, 1].sum())

    @property
    def columns_read(self) -> int:
        """Columns that all lists read of keys and values: every one of a whole block, else those needed."""
        by_bitmap = np.bitwise_count(self.needed).sum(axis=1, dtype=np.int64)
        listed = np.arange(self.lists.shape[2] - HEAD_ENTRIES) < self.lists[:, :, :1, 1]
        bitmaps = self.lists[:, :, HEAD_ENTRIES:, 1][listed]
        whole = bitmaps == WHOLE
        return int(whole.sum()) * self.columns + int(by_bitmap[bitmaps[~whole]].sum())


@lru_cache(maxsize=32)
def block_plan(mask: Mask, seq_len: int, tile_rows: int, columns: int) -> BlockPlan:
    """The blocks of `mask` for tiles of `tile_rows` rows and blocks of `columns` columns, a multiple of 32."""
    keep = mask.keep(seq_len)
    kept = _count_by_block(keep, tile_rows, columns)
    rows_left = np.minimum(seq_len - np.arange(kept.shape[1]) * tile_rows, tile_rows)
    partial = (kept > 0) & (kept < rows_left[:, None] * columns)
    numbers = np.full(kept.shape, WHOLE, np.int32)
    bitmaps, numbers[partial] = _distinct_bitmaps(keep, partial, tile_rows, columns)
    return BlockPlan(tile_rows, columns, _lists(kept > 0, numbers), bitmaps, np.bitwise_or.reduce(bitmaps, axis=1))


def _count_by_block(keep: Keep, tile_rows: int, columns: int) -> Int64:
    """Kept pairs of every block: (mask_batches, tiles, column blocks)."""
    starts = np.arange(0, keep.shape[1], columns)
    by_row = np.add.reduceat(keep, starts, axis=2, dtype=np.int64)
    return np.add.reduceat(by_row, np.arange(0, keep.shape[1], tile_rows), axis=1)


def _distinct_bitmaps(keep: Keep, partial: Keep, tile_rows: int, columns: int) -> tuple[Words, Int64]:
    """The different bitmaps of the partial blocks, and for each partial block in order the number of its own."""
    if not partial.any():
        return np.zeros((1, tile_rows, columns // WORD_BITS), np.uint32), np.zeros(0, np.int64)
    found = np.zeros((int(partial.sum()), tile_rows, columns), np.bool_)
    for bits, (mask, tile, block) in zip(found, np.argwhere(partial), strict=True):
        part = keep[mask, tile * tile_rows : (tile + 1) * tile_rows, block * columns : (block + 1) * columns]
        bits[: part.shape[0], : part.shape[1]] = part
    words = pack_words(found)
    numbers: dict[bytes, int] = {}
    chosen = np.array([numbers.setdefault(bitmap.tobytes(), len(numbers)) for bitmap in words], np.int64)
    _, first = np.unique(chosen, return_index=True)
    return words[first], chosen


def _lists(listed: Keep, numbers: Int32) -> Int32:
    masks, tiles, blocks = listed.shape
    lists = np.zeros((masks, tiles, HEAD_ENTRIES + blocks + END_ENTRIES, 2), np.int32)
    lists[..., 1] = WHOLE
    counts = listed.sum(axis=2)
    for mask, order in enumerate(np.argsort(-counts, axis=1, kind="stable")):
        for place, tile in enumerate(order):
            entries, kept = lists[mask, place], np.flatnonzero(listed[mask, tile])
            entries[0] = tile, kept.size
            entries[HEAD_ENTRIES : HEAD_ENTRIES + kept.size, 0] = kept
            entries[HEAD_ENTRIES : HEAD_ENTRIES + kept.size, 1] = numbers[mask, tile, kept]
    return lists
