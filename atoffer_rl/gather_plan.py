"""Gathered columns of row tiles: which rows a block takes, which columns it reads, which of them each fragment keeps.

A mask's parts (`row_order`) are cut into items, one for each block of a head:

    item      tile_rows rows, and chunks of gathered columns: every column that any of its rows keeps, once
    fragment  16 of its rows; of each chunk it multiplies only the columns that its own rows keep
    pass      all rows of an item in fragments, once; two of them where the tile's far part has other fragments

An item is final or partial. A partial item leaves its result on a shelf of its rows; the final item of a row merges the
shelves. Items are partial if they belong to a far part, or if a tile's columns were too many for one block.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.masks import Keep, Mask
from atoffer_rl.row_order import FRAGMENT_ROWS, NO_ROW, Order, Part, Rows, parts_of, sorted_rows

Int32: TypeAlias = NDArray[np.int32]
Places: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint32]
PADDING = -1
FINAL = -1
HEADER_WORDS = 8
NATURAL_TILES = (Order.NATURAL, Order.TWO_PASSES)
MOST_WASTE = 1.05
"""Columns that a formula may give for one that is needed: reading a few more costs less than reading a list."""
WARP_LANES = 32
GROUP_COLUMNS = 16
"""Columns that one step of a product with 16-bit elements takes in."""
BLOCK_COLUMNS = 64
"""Columns of a fragment that one word a lane describes: four groups, eight bits each."""


@dataclass(frozen=True)
class ColumnFormula:
    """Columns of natural tiles, of which the last comes first: a band that moves with the rows, after summary columns.

    The tile of rows first to last needs columns from band = (first - left) // align * align, at least 0, to
    last + right, and before the band those that are `offset` modulo `step`.
    """

    left: int
    right: int
    align: int
    step: int
    offset: int

    def columns(self, first: int, end: int, seq_len: int) -> Int32:
        """What the tile of rows `first` to `end` - 1 needs, ascending."""
        band = max(0, first - self.left) // self.align * self.align
        summaries = np.arange(self.offset, band, self.step, dtype=np.int32)
        return np.concatenate([summaries, np.arange(band, min(end + self.right, seq_len), dtype=np.int32)])


@dataclass(frozen=True)
class GatherPlan:
    """What the kernel reads, for every mask of the batch.

    Attributes:
        headers: (masks, items, 8) int32: the item's chunks; how many of them, the last, the second pass takes; its
            shelf, or `FINAL`; the shelves that it merges; the items of the mask that merge any; nothing.
        rows: (masks, items, tile_rows) int32 row numbers; `NO_ROW` is none.
        orders: (masks, items, passes, tile_rows) int32: a pass's fragments, as places in `rows`.
        columns: (masks, items, chunks, chunk) int32; `PADDING` is no column.
        places: (masks, items, chunks, passes, fragments, blocks, 64) uint8: where in the chunk the columns lie that a
            fragment multiplies, in blocks of 64; as many blocks as the fragment with the most columns needs.
        words: (masks, items, chunks, passes, fragments, blocks, 32) uint32: which of them its rows keep; see
            `lane_words`.
        partial_items: Items of each mask that are partial; they come first.
        shelves: Partial results that a row has at most.
        formula: How rows and columns follow from an item's number, if they do.
    """

    headers: Int32
    rows: Int32
    orders: Int32
    columns: Int32
    places: Places
    words: Words
    partial_items: int
    shelves: int
    formula: ColumnFormula | None = None

    @property
    def passes(self) -> int:
        """Passes over an item."""
        return int(self.orders.shape[2])

    @property
    def blocks(self) -> int:
        """Blocks of 64 columns that a fragment may multiply of a chunk."""
        return int(self.words.shape[5])

    @property
    def kept(self) -> int:
        """Chunks that an item's second pass takes, at most."""
        return int(self.headers[..., 1].max())

    @property
    def items(self) -> int:
        """Blocks of each head."""
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
        groups = np.bitwise_or.reduce(self.words, axis=-1)[..., None] >> np.arange(0, 32, 8, dtype=np.uint32) & 0xFF
        return int(np.count_nonzero(groups)) * GROUP_COLUMNS * FRAGMENT_ROWS


@dataclass(frozen=True)
class _Item:
    """One item: its pairs are (passes, tile_rows, columns), rows in the order of each pass."""

    rows: Rows
    orders: Int32
    columns: Int32
    pairs: Keep
    shelf: int = FINAL
    merges: int = 0
    near: int = 0

    def chunks(self, chunk: int) -> int:
        return max(1, -(-len(self.columns) // chunk))

    def kept(self, chunk: int) -> int:
        """Chunks from the first that holds any of the last `near` columns."""
        return self.chunks(chunk) - (len(self.columns) - self.near) // chunk if self.near else 0

    def needed(self, chunk: int) -> Keep:
        """(chunks, passes, fragments, chunk): the columns that any row of a fragment keeps."""
        needed: Keep = np.any(self.split(chunk), axis=3)
        return needed

    def split(self, chunk: int) -> Keep:
        """(chunks, passes, fragments, 16, chunk): the pairs, padded to whole chunks."""
        padded = np.pad(self.pairs, [(0, 0), (0, 0), (0, self.chunks(chunk) * chunk - len(self.columns))])
        shape = (len(padded), -1, FRAGMENT_ROWS, self.chunks(chunk), chunk)
        return padded.reshape(shape).transpose(3, 0, 1, 2, 4)


@lru_cache(maxsize=64)
def gather_plan(mask: Mask, seq_len: int, tile_rows: int, chunk: int, order: Order, pieces: int) -> GatherPlan:
    """The plan of `mask` for blocks of `tile_rows` rows.

    Args:
        mask: Any mask.
        seq_len: Tokens in a sequence.
        tile_rows: Rows of an item, a multiple of 16.
        chunk: Columns of a chunk, a multiple of 16 up to 256.
        order: How rows are brought into tiles and fragments.
        pieces: Into how many items the longest tile of the natural part is cut; its others, so that none is longer.
    """
    per_mask = [_items_of(parts, tile_rows, chunk, order, pieces) for parts in _parts(mask, seq_len, order)]
    formula = None
    if order in NATURAL_TILES and pieces == 1 and len(per_mask) == 1:
        formula = _formula(per_mask[0], seq_len)
        per_mask = [_computed_items(per_mask[0], formula, seq_len)] if formula else per_mask
    everything = [item for items in per_mask for item in items]
    partial = max(sum(item.shelf != FINAL for item in items) for items in per_mask)
    final = max(sum(item.shelf == FINAL for item in items) for items in per_mask)
    widest = max(int(item.needed(chunk).sum(axis=-1).max()) for item in everything)
    plan = GatherPlan(
        *_empty_arrays(
            (len(per_mask), partial + final), everything, tile_rows, chunk, max(1, -(-widest // BLOCK_COLUMNS))
        ),
        partial_items=partial,
        shelves=max(item.merges for item in everything),
        formula=formula,
    )
    plan.headers[:, partial:, 2] = FINAL
    for mask_number, items in enumerate(per_mask):
        places = iter(range(partial)), iter(range(partial, partial + final))
        for item in items:
            _write_item(plan, (mask_number, next(places[item.shelf == FINAL])), item)
        plan.headers[mask_number, :, 4] = sum(item.merges > 0 for item in items)
    return plan


def _empty_arrays(
    lead: tuple[int, int], items: list[_Item], tile_rows: int, chunk: int, blocks: int
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


def _write_item(plan: GatherPlan, place: tuple[int, int], item: _Item) -> None:
    chunk = plan.columns.shape[-1]
    chunks = item.chunks(chunk)
    plan.headers[place][:4] = chunks, item.kept(chunk), item.shelf, item.merges
    plan.rows[place] = item.rows
    plan.orders[place] = item.orders
    plan.columns[place].reshape(-1)[: len(item.columns)] = item.columns
    # Needed columns first, in their order; what follows them repeats the first place, where no harm is done.
    needed, pairs = item.needed(chunk), item.split(chunk)
    first = np.argsort(~needed, axis=-1, kind="stable")[..., : plan.blocks * BLOCK_COLUMNS]
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
    bits = split.transpose(*range(first), *axes).reshape(*lead, -1, WARP_LANES, 32)
    return np.packbits(bits, axis=-1, bitorder="little").view("<u4")[..., 0]


@lru_cache(maxsize=4)
def _parts(mask: Mask, seq_len: int, order: Order) -> tuple[tuple[Part, ...], ...]:
    """The parts of each mask: the same for every size of tiles."""
    return tuple(parts_of(keep, order) for keep in mask.keep(seq_len))


def _items_of(parts: tuple[Part, ...], tile_rows: int, chunk: int, order: Order, pieces: int) -> list[_Item]:
    """Items of one mask, those with the most chunks first."""
    starts = range(0, len(parts[-1].rows), tile_rows)
    if order is Order.TWO_PASSES:
        items = [_two_pass_item(parts[0].keep, parts[1].keep, first, tile_rows) for first in starts]
    else:
        tiles = [_tile(parts[-1], first, tile_rows) for first in starts]
        limit = chunk * max(1, -(-max(tile.chunks(chunk) for tile in tiles) // pieces))
        items = [piece for tile in tiles for piece in _pieces(tile, limit, first_shelf=len(parts) - 1)]
        for part in parts[:-1]:
            items += [replace(_tile(part, first, tile_rows), shelf=0) for first in range(0, len(part.rows), tile_rows)]
    return sorted(items, key=lambda item: -len(item.columns))


def _formula(tiles: list[_Item], seq_len: int) -> ColumnFormula | None:
    """A formula that gives every column that `tiles` need, and few others; None if none is known to."""
    if not all(len(tile.columns) and _computable(tile) for tile in tiles):
        return None
    left = max(0, *(int(tile.rows[0] - tile.columns.min()) for tile in tiles))
    right = max(0, *(int(tile.columns.max()) + 1 - _end(tile, seq_len) for tile in tiles))
    candidates = [ColumnFormula(left, right, 1, 1, seq_len)]
    longest = np.sort(max(tiles, key=lambda tile: len(tile.columns)).columns)
    if len(step := np.unique(np.diff(longest)[:-1])) and step[-1] > 1:
        block = int(step[-1])
        candidates.append(ColumnFormula(0, 0, block, block, int(longest[0]) % block))
    needed = sum(len(tile.columns) for tile in tiles)
    for formula in candidates:
        given = [formula.columns(int(tile.rows[0]), _end(tile, seq_len), seq_len) for tile in tiles]
        enough = all(np.isin(tile.columns, columns).all() for tile, columns in zip(tiles, given, strict=True))
        if enough and sum(map(len, given)) <= MOST_WASTE * needed:
            return formula
    return None


def _computable(tile: _Item) -> bool:
    """Whether ascending columns serve: those of a second pass must come last."""
    return not tile.near or bool((np.diff(tile.columns) > 0).all())


def _end(tile: _Item, seq_len: int) -> int:
    return min(int(tile.rows[0]) + len(tile.rows), seq_len)


def _computed_items(tiles: list[_Item], formula: ColumnFormula, seq_len: int) -> list[_Item]:
    """`tiles` with the columns that the formula gives, the last rows first."""
    return [
        _with_columns(tile, formula.columns(int(tile.rows[0]), _end(tile, seq_len), seq_len))
        for tile in sorted(tiles, key=lambda tile: -int(tile.rows[0]))
    ]


def _with_columns(tile: _Item, columns: Int32) -> _Item:
    """`tile` reading `columns`, which hold all that it needs."""
    pairs = np.zeros((*tile.pairs.shape[:-1], len(columns)), bool)
    pairs[..., np.searchsorted(columns, tile.columns)] = tile.pairs
    near = len(columns) - int(np.searchsorted(columns, tile.columns[-tile.near])) if tile.near else 0
    return replace(tile, columns=columns, pairs=pairs, near=near)


def _tile_rows(rows: Rows, first: int, tile_rows: int) -> Rows:
    taken = rows[first : first + tile_rows]
    return np.concatenate([taken, np.full(tile_rows - len(taken), NO_ROW, np.int32)])


def _tile(part: Part, first: int, tile_rows: int) -> _Item:
    """An item of one pass; columns that the same fragments need lie together."""
    rows = _tile_rows(part.rows, first, tile_rows)
    kept = part.keep[rows] & (rows >= 0)[:, None]
    columns = np.flatnonzero(kept.any(axis=0)).astype(np.int32)
    kept = kept[:, columns]
    needs = kept.reshape(tile_rows // FRAGMENT_ROWS, FRAGMENT_ROWS, len(columns)).any(axis=1)
    _, seen, which = np.unique(np.packbits(needs, axis=0), axis=1, return_index=True, return_inverse=True)
    together = np.lexsort((columns, seen[which.reshape(-1)]))
    order = np.arange(tile_rows, dtype=np.int32)
    return _Item(rows, order[None], columns[together], kept[None][..., together])


def _two_pass_item(far: Keep, near: Keep, first: int, tile_rows: int) -> _Item:
    """An item whose far part is multiplied first, in fragments of its own; columns of the near part come last."""
    rows = _tile_rows(np.arange(len(far), dtype=np.int32), first, tile_rows)
    exists = (rows >= 0)[:, None]
    far, near = far[rows] & exists, near[rows] & exists
    in_near = near.any(axis=0)
    columns = np.r_[np.flatnonzero(far.any(axis=0) & ~in_near), np.flatnonzero(in_near)].astype(np.int32)
    order = np.concatenate(sorted_rows(far))
    pairs = np.stack([far[order][:, columns], near[:, columns]])
    orders = np.stack([order, np.arange(tile_rows, dtype=np.int32)])
    return _Item(rows, orders, columns, pairs, near=int(in_near.sum()))


def _pieces(tile: _Item, limit: int, first_shelf: int) -> list[_Item]:
    """A tile cut into items of at most `limit` columns, the last of them final."""
    last = max(1, -(-len(tile.columns) // limit)) - 1
    cuts = [slice(piece * limit, (piece + 1) * limit) for piece in range(last + 1)]
    places = [(first_shelf + piece, 0) for piece in range(last)] + [(FINAL, first_shelf + last)]
    return [
        replace(tile, columns=tile.columns[cut], pairs=tile.pairs[..., cut], shelf=shelf, merges=merges)
        for cut, (shelf, merges) in zip(cuts, places, strict=True)
    ]
