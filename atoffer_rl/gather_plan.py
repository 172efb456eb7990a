"""Gathered columns of row tiles, as arrays for the kernel: the items of `gather_items`, and which pairs they keep."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.gather_items import (
    BLOCK_COLUMNS,
    FINAL,
    GROUP_COLUMNS,
    ColumnFormula,
    GatherOutline,
    Item,
    gather_layout,
    outline_of,
)
from atoffer_rl.mask_plan import WORD_BITS, Int32, Words
from atoffer_rl.masks import Keep, Mask
from atoffer_rl.row_order import FRAGMENT_ROWS, NO_ROW, Order

Places: TypeAlias = NDArray[np.uint8]
PADDING = -1
HEADER_WORDS = 4
WARP_LANES = 32
GROUP_BITS = 8
"""Of a lane's word, for each group of a block."""


@dataclass(frozen=True)
class GatherPlan:
    """What the kernel reads, for every mask of the batch.

    Attributes:
        headers: (masks, items, 4) int32: the item's chunks; how many of them, the last, the second pass takes; its
            shelf, `FINAL` or `FINAL_WIDE`; the shelves that it merges.
        rows: (masks, items, tile_rows) int32 row numbers; `NO_ROW` is none.
        orders: (masks, items, passes, tile_rows) int32: a pass's fragments, as places in `rows`.
        columns: (masks, items, chunks, chunk) int32; `PADDING` is no column.
        places: (masks, items, chunks, passes, fragments, blocks, 64) uint8: where in the chunk the columns lie that a
            fragment multiplies, in blocks of 64; as many blocks as the fragment with the most columns needs.
        words: (masks, items, chunks, passes, fragments, blocks, 32) uint32: which of them its rows keep; see
            `lane_words`.
        partial_items: Items of each mask that are partial; they come first.
        outline: What was known of it before.
        formula: How rows and columns follow from an item's number, if they do.
    """

    headers: Int32
    rows: Int32
    orders: Int32
    columns: Int32
    places: Places
    words: Words
    partial_items: int
    outline: GatherOutline
    formula: ColumnFormula | None = None

    @property
    def most_merge(self) -> bool:
        """Whether most final items merge shelves."""
        merges: Int32 = self.headers[:, self.partial_items :, 3]
        return bool(2 * np.count_nonzero(merges) > merges.size)

    @property
    def items(self) -> int:
        """Items of each head."""
        return int(self.headers.shape[1])

    @property
    def chunks(self) -> int:
        """Chunks of an item, at most."""
        return int(self.columns.shape[2])

    @property
    def gathered(self) -> int:
        """Columns gathered over all items, without padding."""
        return int(np.count_nonzero(self.columns >= 0))

    @property
    def products(self) -> int:
        """Pairs of a row and a column that are multiplied: whole groups of columns by whole fragments."""
        return int(np.count_nonzero(kept_groups(self.words))) * GROUP_COLUMNS * FRAGMENT_ROWS


@lru_cache(maxsize=64)
def gather_plan(mask: Mask, seq_len: int, tile_rows: int, chunk: int, order: Order, splits: int) -> GatherPlan:
    """The plan of `mask` for blocks of `tile_rows` rows.

    Args:
        mask: Any mask.
        seq_len: Tokens in a sequence.
        tile_rows: Rows of an item, a multiple of 16.
        chunk: Columns of a chunk, a multiple of 16 up to 256.
        order: How rows are brought into tiles and fragments.
        splits: Into how many items the longest tile of the natural part is cut; its others, so that none is longer.
    """
    layout = gather_layout(mask, seq_len, tile_rows, chunk, order, splits)
    outline = outline_of(layout)
    partial = max(sum(item.partial for item in items) for items in layout.masks)
    final = max(sum(not item.partial for item in items) for items in layout.masks)
    lead = len(layout.masks), partial + final
    plan = GatherPlan(
        *_empty_arrays(lead, layout.items, tile_rows, chunk, outline.blocks),
        partial_items=partial,
        outline=outline,
        formula=layout.formula,
    )
    plan.headers[:, partial:, 2] = FINAL
    for mask_number, items in enumerate(layout.masks):
        places = iter(range(partial)), iter(range(partial, partial + final))
        for item in items:
            _write_item(plan, (mask_number, next(places[not item.partial])), item)
    return plan


def _empty_arrays(
    lead: tuple[int, int], items: tuple[Item, ...], tile_rows: int, chunk: int, blocks: int
) -> tuple[Int32, Int32, Int32, Int32, Places, Words]:
    chunks = max(item.chunks(chunk) for item in items)
    passes, fragments = len(items[0].orders), tile_rows // FRAGMENT_ROWS
    return (
        np.zeros((*lead, HEADER_WORDS), np.int32),
        np.full((*lead, tile_rows), NO_ROW, np.int32),
        np.zeros((*lead, passes, tile_rows), np.int32),
        np.full((*lead, chunks, chunk), PADDING, np.int32),
        np.zeros((*lead, chunks, passes, fragments, blocks, BLOCK_COLUMNS), np.uint8),
        np.zeros((*lead, chunks, passes, fragments, blocks, WARP_LANES), np.uint32),
    )


def _write_item(plan: GatherPlan, place: tuple[int, int], item: Item) -> None:
    chunk = plan.columns.shape[-1]
    chunks = item.chunks(chunk)
    plan.headers[place] = chunks, item.kept(chunk), item.shelf, item.merges
    plan.rows[place] = item.rows
    plan.orders[place] = item.orders
    plan.columns[place].reshape(-1)[: len(item.columns)] = item.columns
    # Needed columns first, in their order; what follows them repeats the first place, where no harm is done.
    needed, pairs = item.needed(chunk), item.pairs(chunk)
    first = np.argsort(~needed, axis=-1, kind="stable")[..., : plan.outline.blocks * BLOCK_COLUMNS]
    pairs = np.take_along_axis(pairs, first[..., None, :], axis=-1)
    first = np.where(np.take_along_axis(needed, first, axis=-1), first, first[..., :1])
    plan.places[place].reshape(*plan.words[place].shape[:-2], -1)[:chunks, ..., : first.shape[-1]] = first
    plan.words[place][:chunks] = lane_words(pairs)


def lane_words(kept: Keep) -> Words:
    """Bits as the accumulators of a 16-row product lie in a warp.

    Lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next of every 8. Bit 8 g + 4 t + 2 r + j of its
    word is row l / 4 + 8 r, column 16 g + 8 t + 2 (l % 4) + j of a block of 64 columns.

    Args:
        kept: (..., 16, columns) bool.

    Returns:
        (..., blocks, 32) uint32.
    """
    lead = kept.shape[:-2]
    padded = np.pad(kept, [(0, 0)] * (kept.ndim - 1) + [(0, -kept.shape[-1] % BLOCK_COLUMNS)])
    # Axes: r, l / 4; block, g, t, l % 4, j.
    split = padded.reshape(*lead, 2, 8, -1, 4, 2, 4, 2)
    first = len(lead)
    axes = [first + axis for axis in (2, 1, 5, 3, 4, 0, 6)]
    bits = split.transpose(*range(first), *axes).reshape(*lead, -1, WARP_LANES, WORD_BITS)
    return np.packbits(bits, axis=-1, bitorder="little").view("<u4")[..., 0]


def kept_groups(words: Words) -> Keep:
    """Which groups of 16 columns any row keeps.

    Args:
        words: (..., blocks, 32) uint32, as `lane_words` gives them.

    Returns:
        (..., blocks, 4) bool.
    """
    of_any_lane = np.bitwise_or.reduce(words, axis=-1)[..., None]
    shifts = np.arange(0, WORD_BITS, GROUP_BITS, dtype=np.uint32)
    kept: Keep = (of_any_lane >> shifts & np.uint32(2**GROUP_BITS - 1)) != 0
    return kept
