"""What the `single` template reads of a mask: all columns of each tile of rows, and which row keeps which."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoffer_rl.gather_items import GROUP_COLUMNS
from atoffer_rl.gather_plan import kept_groups, lane_words
from atoffer_rl.mask_plan import Int32, Words
from atoffer_rl.masks import Keep, Mask
from atoffer_rl.row_order import FRAGMENT_ROWS

NO_TILE = -1
"""The tile of an item that has nothing to do; single.cuh knows it as a negative tile."""


@dataclass(frozen=True)
class SingleOutline:
    """What is known of a `SinglePlan` before it is written: how many items a mask has, and how large they are.

    An item is a tile of neighbouring rows with all its columns, or with a piece of these. A tile's pieces follow one
    another, and come before whole tiles.

    Attributes:
        room: Columns of an item, a multiple of 16.
        items: Of each mask, a multiple of the splits.
        shared: Items that are pieces, or take the place of some in masks that cut fewer tiles.
    """

    room: int
    items: int
    shared: int


@dataclass(frozen=True)
class SinglePlan:
    """The columns of every item, for every mask of the batch.

    Attributes:
        tiles: (masks, items) int32: the item's tile; `NO_TILE` is none.
        counts: (masks, items) int32: columns of the item, which some row of the tile keeps.
        columns: (masks, items, room) int32: these columns, ascending, then zeros.
        words: (masks, items, fragments, ceil(room / 64), 32) uint32: which of them the rows of a fragment keep; see
            `lane_words`.
    """

    tiles: Int32
    counts: Int32
    columns: Int32
    words: Words

    def rows_read(self, seq_len: int) -> int:
        """Rows that all items read: those of its tile that exist, by each."""
        tile_rows = self.words.shape[2] * FRAGMENT_ROWS
        first = self.tiles[self.tiles != NO_TILE] * tile_rows
        return int(np.minimum(seq_len - first, tile_rows).sum())

    @property
    def steps(self) -> int:
        """Steps of 16 columns that the fragments of all items multiply."""
        return int(np.count_nonzero(kept_groups(self.words)))


@lru_cache(maxsize=64)
def single_outline(mask: Mask, seq_len: int, tile_rows: int, splits: int) -> SingleOutline:
    """The outline of the plan that takes the least room in all and cuts no more than half of the tiles.

    Args:
        mask: Any mask.
        seq_len: Tokens in a sequence.
        tile_rows: Rows of a tile, a multiple of 16.
        splits: Pieces of a tile that has more columns than an item has room for; 1 makes room for all.
    """
    return _outline(_tiles(mask.keep(seq_len), tile_rows).any(axis=2).sum(axis=-1, dtype=np.int32), splits)


@lru_cache(maxsize=32)
def single_plan(mask: Mask, seq_len: int, tile_rows: int, splits: int) -> SinglePlan:
    """The plan of `mask`; see `single_outline`."""
    kept = _tiles(mask.keep(seq_len), tile_rows)
    needed = kept.any(axis=2)
    outline = single_outline(mask, seq_len, tile_rows, splits)
    items = np.stack([_items(counts, outline, splits) for counts in needed.sum(axis=-1, dtype=np.int32)])
    tiles, first, counts = np.ascontiguousarray(np.moveaxis(items, -1, 0))
    each_mask = np.arange(len(items))[:, None]
    within = np.arange(outline.room)
    listed = within < counts[..., None]
    ascending = np.argsort(~needed, axis=-1, kind="stable").astype(np.int32)
    places = np.where(listed, first[..., None] + within, 0)
    # NO_TILE takes the last tile here, of which nothing is listed.
    columns = np.where(listed, np.take_along_axis(ascending[each_mask, tiles], places, axis=-1), 0)
    pairs = np.take_along_axis(kept[each_mask, tiles], columns[:, :, None], axis=-1) & listed[:, :, None]
    fragments = pairs.reshape(*tiles.shape, -1, FRAGMENT_ROWS, outline.room)
    return SinglePlan(tiles, counts, columns, lane_words(fragments))


def _outline(counts: Int32, splits: int) -> SingleOutline:
    """The outline for tiles of so many columns, (masks, tiles)."""
    largest = int(counts.max())
    rooms = {_whole_groups(-(-largest // splits)), *map(_whole_groups, np.unique(counts).tolist())}
    outlines = []
    for room in rooms:
        cut = (counts > room).sum(axis=-1)
        # To cut most tiles saves little room, and block's clusters are faster there.
        if room * splits < largest or 2 * cut.max() > counts.shape[-1]:
            continue
        shared = int(cut.max()) * splits
        whole = int((counts.shape[-1] - cut).max())
        outlines.append(SingleOutline(room, items=shared + -(-whole // splits) * splits, shared=shared))
    return min(outlines, key=lambda outline: (outline.room * outline.items, outline.items))


def _items(counts: Int32, outline: SingleOutline, splits: int) -> Int32:
    """(items, 3): of each item of a mask its tile, its first place in the tile's list of columns, and how many columns.

    Tiles with the most rows before them come first.
    """
    items = np.full((outline.items, 3), (NO_TILE, 0, 0), np.int32)
    over = counts > outline.room
    cut, whole = (np.flatnonzero(chosen)[::-1] for chosen in (over, ~over))
    size = np.array([_whole_groups(-(-count // splits)) for count in counts[cut].tolist()], np.int32)[:, None]
    first = size * np.arange(splits)
    piece_counts = np.clip(counts[cut, None] - first, 0, size)
    pieces = np.stack([np.broadcast_to(cut[:, None], first.shape), first, piece_counts], axis=-1)
    items[: pieces.size // 3] = pieces.reshape(-1, 3)
    items[outline.shared : outline.shared + len(whole)] = np.stack(
        [whole, np.zeros_like(whole), counts[whole]], axis=-1
    )
    return items


def _whole_groups(columns: int) -> int:
    return max(1, -(-columns // GROUP_COLUMNS)) * GROUP_COLUMNS


def _tiles(keep: Keep, tile_rows: int) -> Keep:
    """(masks, tiles, tile_rows, seq_len): `keep`, its last tile's missing rows keep nothing."""
    masks, seq_len, _ = keep.shape
    padded = np.pad(keep, [(0, 0), (0, -seq_len % tile_rows), (0, 0)])
    return padded.reshape(masks, -1, tile_rows, seq_len)
