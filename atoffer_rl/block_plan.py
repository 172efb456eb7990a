"""What kernels read of a mask by whole blocks: each row tile's column blocks, and bitmaps of those kept in part."""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.mask_plan import WORD_BITS, Int32, Words, pack_words
from atoffer_rl.masks import Keep, Mask

Int64: TypeAlias = NDArray[np.int64]
WHOLE = -1
HEAD_ENTRIES, END_ENTRIES = 1, 8
NUMBER_WORDS, VECTOR_WORDS = 2, 4


class Reach(IntEnum):
    """Which columns tiles need, where a rule says it.

    `DIAGONAL`: no row keeps a column after its own, and each tile needs every column up to its last row. `SEQUENCE`:
    each tile needs every column. `LISTED`: no such rule.
    """

    LISTED = 0
    DIAGONAL = 1
    SEQUENCE = 2


@dataclass(frozen=True)
class BlockPlan:
    """The column blocks that any row of a tile keeps.

    Attributes:
        tile_rows: Rows of a tile; a ragged last tile's missing rows keep nothing.
        columns: Columns of a block; those of the last one that lie beyond the sequence are kept by no row.
        lists: (mask_batches, tiles, 9 + blocks, words) int32; the first entry begins with the row tile and how many
            blocks it has, then come the blocks in ascending order: number; which bitmap says what is kept of it (-1:
            everything, by all rows of the sequence); words of the columns that any row of the tile keeps; zeros up to
            whole vectors of 16 bytes. Entries 0, -1, eight at least, end the list. Of each mask the tiles with most
            blocks come first, the last of them in front.
        bitmaps: (distinct, tile_rows, columns / 32) uint32: which columns each row keeps. Where no block is kept in
            part there is one, of nothing, that no list names: arrays of size 0 have no address.
        reach: Which columns all tiles need, if a rule says it.
    """

    tile_rows: int
    columns: int
    lists: Int32
    bitmaps: Words
    reach: Reach

    @property
    def blocks(self) -> int:
        """Blocks in all lists."""
        return int(self.lists[:, :, 0, 1].sum())

    @property
    def columns_read(self) -> int:
        """Columns that all lists read of keys and values."""
        wanted = self.lists[:, :, HEAD_ENTRIES:, NUMBER_WORDS : NUMBER_WORDS + self.columns // WORD_BITS]
        return int(np.bitwise_count(wanted.view(np.uint32)).sum(dtype=np.int64))


@lru_cache(maxsize=32)
def block_plan(mask: Mask, seq_len: int, tile_rows: int, columns: int) -> BlockPlan:
    """The blocks of `mask` for tiles of `tile_rows` rows and blocks of `columns` columns, a multiple of 32."""
    keep = mask.keep(seq_len)
    kept = _count_by_block(keep, tile_rows, columns)
    needed = np.logical_or.reduceat(keep, np.arange(0, seq_len, tile_rows), axis=1)
    rows_left = np.minimum(seq_len - np.arange(kept.shape[1]) * tile_rows, tile_rows)
    partial = (kept > 0) & (kept < rows_left[:, None] * columns)
    numbers = np.full(kept.shape, WHOLE, np.int32)
    bitmaps, numbers[partial] = _distinct_bitmaps(keep, partial, tile_rows, columns)
    lists = _lists(kept > 0, numbers, _words_by_block(needed, columns))
    return BlockPlan(tile_rows, columns, lists, bitmaps, _reach(keep, needed, tile_rows))


def _reach(keep: Keep, needed: Keep, tile_rows: int) -> Reach:
    """The rule, if any, behind `needed`: (mask_batches, tiles, seq_len), the columns that each tile needs."""
    if needed.all():
        return Reach.SEQUENCE
    seq_len = keep.shape[1]
    ends = np.minimum(np.arange(1, needed.shape[1] + 1) * tile_rows, seq_len)
    up_to_last_row = bool((needed == (np.arange(seq_len) < ends[:, None])).all())
    return Reach.DIAGONAL if up_to_last_row and not np.triu(keep, 1).any() else Reach.LISTED


def _words_by_block(needed: Keep, columns: int) -> Words:
    """(mask_batches, tiles, column blocks, words): which columns of each block a tile needs."""
    padded = np.pad(needed, [(0, 0), (0, 0), (0, -needed.shape[2] % columns)])
    return pack_words(padded.reshape(*needed.shape[:2], -1, columns))


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


def _lists(listed: Keep, numbers: Int32, wanted: Words) -> Int32:
    masks, tiles, blocks = listed.shape
    words = -(-(NUMBER_WORDS + wanted.shape[-1]) // VECTOR_WORDS) * VECTOR_WORDS
    lists = np.zeros((masks, tiles, HEAD_ENTRIES + blocks + END_ENTRIES, words), np.int32)
    lists[..., 1] = WHOLE
    counts = listed.sum(axis=2)
    for mask in range(masks):
        for place, tile in enumerate(np.lexsort((-np.arange(tiles), -counts[mask]))):
            entries, kept = lists[mask, place], np.flatnonzero(listed[mask, tile])
            blocks_of_tile = entries[HEAD_ENTRIES : HEAD_ENTRIES + kept.size]
            entries[0, :NUMBER_WORDS] = tile, kept.size
            blocks_of_tile[:, 0] = kept
            blocks_of_tile[:, 1] = numbers[mask, tile, kept]
            blocks_of_tile[:, NUMBER_WORDS : NUMBER_WORDS + wanted.shape[-1]] = wanted[mask, tile, kept].view(np.int32)
    return lists
