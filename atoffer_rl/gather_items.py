"""The items of gathered attention: which rows a block takes, which columns it reads, what its fragments multiply.

A mask's parts (`row_order`) are cut into items, the work that a thread block takes at a time:

    item      tile_rows rows, and chunks of gathered columns: every column that any of its rows keeps, once
    fragment  16 of its rows; of each chunk it multiplies only the columns that its own rows keep
    pass      all rows of an item in fragments, once; two of them where the tile's far part has other fragments

An item is final or partial. A partial item leaves its result on a shelf of its rows; the final item of a row merges the
shelves. Items are partial if they belong to a far part, or if a tile's columns were too many for one block.

Fragments of an item have rows of their own, but for a wide item, whose rows need far more columns than most: all of its
fragments have the same 16 rows, and each takes a share of the columns and of the shelves.

Items are made of what whole fragments need, a sixteenth of a mask's pairs; the pairs are looked up when they are
written (`gather_plan`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from atoffer_rl.mask_plan import Int32
from atoffer_rl.masks import Keep, Mask
from atoffer_rl.row_order import (
    FRAGMENT_ROWS,
    NO_ROW,
    Order,
    Rows,
    fragment_columns,
    parts_of,
    sorted_rows,
    wide_fragments,
)

FINAL, FINAL_WIDE = -1, -2
NATURAL_TILES = (Order.NATURAL, Order.TWO_PASSES)
MOST_WASTE = 1.05
"""Columns that a formula may give for one that is needed: reading a few more costs less than reading a list."""
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
class Item:
    """One item.

    Attributes:
        rows: (tile_rows,) row numbers; `NO_ROW` is none.
        orders: (passes, tile_rows) places in `rows`, in the order of each pass.
        columns: What it gathers.
        needs: (passes, fragments, columns) bool: the columns that any row of a fragment keeps.
        squares: The (seq_len, seq_len) pairs that each pass multiplies.
        shelf: Where its result goes; `FINAL` and, of a wide item, `FINAL_WIDE` are the layer's own.
        merges: Shelves that it merges.
        near: How many of its last columns the second pass takes.
    """

    rows: Rows
    orders: Int32
    columns: Int32
    needs: Keep
    squares: tuple[Keep, ...]
    shelf: int = FINAL
    merges: int = 0
    near: int = 0

    @property
    def partial(self) -> bool:
        """Whether its result is one of several of its rows."""
        return self.shelf >= 0

    def chunks(self, chunk: int) -> int:
        """Chunks of its columns."""
        return max(1, -(-len(self.columns) // chunk))

    def kept(self, chunk: int) -> int:
        """Chunks from the first that holds any of the last `near` columns."""
        return self.chunks(chunk) - (len(self.columns) - self.near) // chunk if self.near else 0

    def needed(self, chunk: int) -> Keep:
        """(chunks, passes, fragments, chunk): `needs`, padded to whole chunks."""
        return self._padded(self.needs, chunk).reshape(*self.needs.shape[:2], -1, chunk).transpose(2, 0, 1, 3)

    def pairs(self, chunk: int) -> Keep:
        """(chunks, passes, fragments, 16, chunk): the pairs that a fragment multiplies, padded to whole chunks."""
        rows = self.rows[self.orders]
        kept = [square[np.ix_(taken, self.columns)] for square, taken in zip(self.squares, rows, strict=True)]
        needed = np.repeat(self.needs, FRAGMENT_ROWS, axis=1)
        padded = self._padded(np.stack(kept) & (rows >= 0)[..., None] & needed, chunk)
        return padded.reshape(len(rows), -1, FRAGMENT_ROWS, self.chunks(chunk), chunk).transpose(3, 0, 1, 2, 4)

    def _padded(self, kept: Keep, chunk: int) -> Keep:
        return np.pad(kept, [(0, 0), (0, 0), (0, self.chunks(chunk) * chunk - len(self.columns))])


@dataclass(frozen=True)
class Layout:
    """The items of every mask of a batch.

    Attributes:
        masks: Of each mask, those with the most columns first, and after them those that merge; where a formula gives
            them, the last rows first.
        chunk: Columns of a chunk.
        formula: How rows and columns follow from an item's number, if they do.
    """

    masks: tuple[tuple[Item, ...], ...]
    chunk: int
    formula: ColumnFormula | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        """Those of all masks."""
        return tuple(item for items in self.masks for item in items)


@dataclass(frozen=True)
class GatherOutline:
    """What is known of a plan before it is written: it decides whether a block can execute it.

    Attributes:
        passes: Passes over an item.
        blocks: Blocks of 64 columns that a fragment may multiply of a chunk.
        kept: Chunks that an item's second pass takes, at most.
        shelves: Partial results that a row has at most.
        shelved: Rows between which all lie that have any.
        wide: Whether there are wide items.
    """

    passes: int
    blocks: int
    kept: int
    shelves: int
    shelved: range
    wide: bool


@lru_cache(maxsize=256)
def gather_outline(mask: Mask, seq_len: int, tile_rows: int, chunk: int, order: Order, splits: int) -> GatherOutline:
    """What is known of `gather_plan` of the same arguments before it is written."""
    return outline_of(gather_layout(mask, seq_len, tile_rows, chunk, order, splits))


def outline_of(layout: Layout) -> GatherOutline:
    """The outline of the plan that `layout` becomes."""
    widest = max(int(np.count_nonzero(item.needed(layout.chunk), axis=-1).max()) for item in layout.items)
    return GatherOutline(
        passes=len(layout.items[0].orders),
        blocks=max(1, -(-widest // BLOCK_COLUMNS)),
        kept=max(item.kept(layout.chunk) for item in layout.items),
        shelves=max(item.merges for item in layout.items),
        shelved=_shelved(layout.items),
        wide=any(item.shelf == FINAL_WIDE for item in layout.items),
    )


def _shelved(items: tuple[Item, ...]) -> range:
    """From the first to the last row of partial items."""
    rows = [item.rows[item.rows != NO_ROW] for item in items if item.partial]
    return range(int(min(part.min() for part in rows)), int(max(part.max() for part in rows)) + 1) if rows else range(0)


def gather_layout(mask: Mask, seq_len: int, tile_rows: int, chunk: int, order: Order, splits: int) -> Layout:
    """The items of `mask`; the arguments are those of `gather_plan`."""
    masks = [_items_of(parts, tile_rows, chunk, order, splits) for parts in _parts(mask, seq_len, order)]
    formula = None
    if order in NATURAL_TILES and splits == 1 and len(masks) == 1:
        formula = _formula(masks[0], seq_len)
        masks = [_computed_items(masks[0], formula, seq_len)] if formula else masks
    return Layout(tuple(map(tuple, masks)), chunk, formula)


class _Part(NamedTuple):
    """A part of a mask, the order of its rows, and (fragments, seq_len) the columns that their fragments need."""

    keep: Keep
    rows: Rows
    needs: Keep


@lru_cache(maxsize=4)
def _parts(mask: Mask, seq_len: int, order: Order) -> tuple[tuple[_Part, ...], ...]:
    """The parts of each mask: the same for every size of tiles."""
    if order is Order.TWO_PASSES:  # the same pairs, which a long sequence has not the memory for twice
        return _parts(mask, seq_len, Order.SPLIT)
    return tuple(
        tuple(_Part(part.keep, part.rows, fragment_columns(part.keep, part.rows)) for part in parts_of(keep, order))
        for keep in mask.keep(seq_len)
    )


def _items_of(parts: tuple[_Part, ...], tile_rows: int, chunk: int, order: Order, splits: int) -> list[Item]:
    """Items of one mask, those with the most columns first, and after them those that merge."""
    starts = range(0, len(parts[-1].rows), tile_rows)
    if order is Order.TWO_PASSES:
        items = [_two_pass_item(parts[0].keep, parts[1].keep, first, tile_rows) for first in starts]
    elif order is Order.WIDE_APART:
        items = _items_apart(parts[0], tile_rows, chunk, splits)
    else:
        tiles = [_tile(parts[-1], first, tile_rows) for first in starts]
        limit = chunk * max(1, -(-max(tile.chunks(chunk) for tile in tiles) // splits))
        items = [piece for tile in tiles for piece in _pieces(tile, limit, first_shelf=len(parts) - 1)]
        for part in parts[:-1]:
            items += [replace(_tile(part, first, tile_rows), shelf=0) for first in range(0, len(part.rows), tile_rows)]
    return sorted(items, key=lambda item: (item.merges > 0, -len(item.columns)))


def _formula(tiles: list[Item], seq_len: int) -> ColumnFormula | None:
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


def _computable(tile: Item) -> bool:
    """Whether ascending columns serve: those of a second pass must come last."""
    return not tile.near or bool((np.diff(tile.columns) > 0).all())


def _end(tile: Item, seq_len: int) -> int:
    return min(int(tile.rows[0]) + len(tile.rows), seq_len)


def _computed_items(tiles: list[Item], formula: ColumnFormula, seq_len: int) -> list[Item]:
    """`tiles` with the columns that the formula gives, the last rows first."""
    return [
        _with_columns(tile, formula.columns(int(tile.rows[0]), _end(tile, seq_len), seq_len))
        for tile in sorted(tiles, key=lambda tile: -int(tile.rows[0]))
    ]


def _with_columns(tile: Item, columns: Int32) -> Item:
    """`tile` reading `columns`, which hold all that it needs."""
    needs = np.zeros((*tile.needs.shape[:-1], len(columns)), np.bool_)
    needs[..., np.searchsorted(columns, tile.columns)] = tile.needs
    near = len(columns) - int(np.searchsorted(columns, tile.columns[-tile.near])) if tile.near else 0
    return replace(tile, columns=columns, needs=needs, near=near)


def _tile_rows(rows: Rows, first: int, tile_rows: int) -> Rows:
    taken = rows[first : first + tile_rows]
    return np.concatenate([taken, np.full(tile_rows - len(taken), NO_ROW, np.int32)])


def _tile(part: _Part, first: int, tile_rows: int) -> Item:
    """An item of one pass; columns that the same fragments need lie together."""
    rows = _tile_rows(part.rows, first, tile_rows)
    needs = part.needs[first // FRAGMENT_ROWS : (first + tile_rows) // FRAGMENT_ROWS]
    columns = np.flatnonzero(needs.any(axis=0)).astype(np.int32)
    needs = np.pad(needs[:, columns], [(0, tile_rows // FRAGMENT_ROWS - len(needs)), (0, 0)])
    _, seen, which = np.unique(np.packbits(needs, axis=0), axis=1, return_index=True, return_inverse=True)
    together = np.lexsort((columns, seen[which.reshape(-1)]))
    order = np.arange(tile_rows, dtype=np.int32)
    return Item(rows, order[None], columns[together], needs[None][..., together], (part.keep,))


def _two_pass_item(far: Keep, near: Keep, first: int, tile_rows: int) -> Item:
    """An item whose far part is multiplied first, in fragments of its own; columns of the near part come last."""
    rows = _tile_rows(np.arange(len(far), dtype=np.int32), first, tile_rows)
    order = np.concatenate(sorted_rows(far[rows] & (rows >= 0)[:, None]))
    needs = np.stack([fragment_columns(far, rows[order]), fragment_columns(near, rows)])
    in_far, in_near = needs[0].any(axis=0), needs[1].any(axis=0)
    columns = np.r_[np.flatnonzero(in_far & ~in_near), np.flatnonzero(in_near)].astype(np.int32)
    orders = np.stack([order, np.arange(tile_rows, dtype=np.int32)])
    return Item(rows, orders, columns, needs[..., columns], (far, near), near=int(in_near.sum()))


def _items_apart(part: _Part, tile_rows: int, chunk: int, splits: int) -> list[Item]:
    """Natural tiles without wide fragments, each of which is cut into wide items."""
    wide = wide_fragments(part.needs)
    rows = part.rows.copy()
    rows[np.repeat(wide, FRAGMENT_ROWS)[: len(rows)]] = NO_ROW
    others = _Part(part.keep, rows, part.needs & ~wide[:, None])
    starts = [first for first in range(0, len(rows), tile_rows) if (rows[first : first + tile_rows] >= 0).any()]
    items = [_tile(others, first, tile_rows) for first in starts]
    for fragment in np.flatnonzero(wide):
        tile = _wide_tile(part, int(fragment), tile_rows)
        limit = chunk * -(-tile.chunks(chunk) // splits)
        items += _pieces(tile, limit, first_shelf=0, final=FINAL_WIDE)
    return items


def _wide_tile(part: _Part, fragment: int, tile_rows: int) -> Item:
    """A fragment's rows as every fragment of an item; groups of columns are dealt out to them."""
    fragments = tile_rows // FRAGMENT_ROWS
    rows = _tile_rows(part.rows, fragment * FRAGMENT_ROWS, FRAGMENT_ROWS)
    columns = np.flatnonzero(part.needs[fragment]).astype(np.int32)
    group = np.arange(len(columns)) // GROUP_COLUMNS
    needs = group % fragments == np.arange(fragments)[:, None]
    order = np.arange(tile_rows, dtype=np.int32)
    return Item(np.tile(rows, fragments), order[None], columns, needs[None], (part.keep,))


def _pieces(tile: Item, limit: int, first_shelf: int, final: int = FINAL) -> list[Item]:
    """A tile cut into items of at most `limit` columns, the last of them final."""
    last = max(1, -(-len(tile.columns) // limit)) - 1
    cuts = [slice(piece * limit, (piece + 1) * limit) for piece in range(last + 1)]
    places = [(first_shelf + piece, 0) for piece in range(last)] + [(final, first_shelf + last)]
    return [
        replace(tile, columns=tile.columns[cut], needs=tile.needs[..., cut], shelf=shelf, merges=merges)
        for cut, (shelf, merges) in zip(cuts, places, strict=True)
    ]
