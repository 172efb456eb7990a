"""What the `single` template reads of a mask: all columns of each tile of rows, and which row keeps which."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from atoffer_rl.gather_items import GROUP_COLUMNS
from atoffer_rl.gather_plan import kept_groups, lane_words
from atoffer_rl.mask_plan import Int32, Words
from atoffer_rl.masks import Keep, Mask
from atoffer_rl.row_order import FRAGMENT_ROWS


@dataclass(frozen=True)
class SinglePlan:
    """The columns of every tile of neighbouring rows, for every mask of the batch.

    Attributes:
        counts: (masks, tiles) int32: columns that any row of the tile keeps.
        columns: (masks, tiles, room) int32: these columns, ascending, then zeros. The room is a multiple of 16.
        words: (masks, tiles, fragments, ceil(room / 64), 32) uint32: which of them the rows of a fragment keep; see
            `lane_words`.
    """

    counts: Int32
    columns: Int32
    words: Words

    @property
    def room(self) -> int:
        """Columns of the tile that has most, in whole steps of 16."""
        return int(self.columns.shape[2])

    @property
    def steps(self) -> int:
        """Steps of 16 columns that the fragments of all tiles multiply."""
        return int(np.count_nonzero(kept_groups(self.words)))


@lru_cache(maxsize=32)
def single_room(mask: Mask, seq_len: int, tile_rows: int) -> int:
    """The room that `single_plan` needs."""
    most = int(_tiles(mask.keep(seq_len), tile_rows).any(axis=2).sum(axis=-1).max())
    return max(GROUP_COLUMNS, -(-most // GROUP_COLUMNS) * GROUP_COLUMNS)


@lru_cache(maxsize=32)
def single_plan(mask: Mask, seq_len: int, tile_rows: int) -> SinglePlan:
    """The plan of `mask` for tiles of `tile_rows` rows, a multiple of 16."""
    tiles, room = _tiles(mask.keep(seq_len), tile_rows), single_room(mask, seq_len, tile_rows)
    needed = tiles.any(axis=2)
    counts = needed.sum(axis=-1, dtype=np.int32)
    first = np.argsort(~needed, axis=-1, kind="stable")[..., :room].astype(np.int32)
    listed = np.arange(first.shape[-1]) < counts[..., None]
    kept = np.take_along_axis(tiles, first[:, :, None], axis=-1) & listed[:, :, None]
    fragments = kept.reshape(*kept.shape[:2], -1, FRAGMENT_ROWS, kept.shape[-1])
    beyond = [(0, 0), (0, 0), (0, room - first.shape[-1])]
    pairs = np.pad(fragments, [(0, 0), (0, 0), *beyond])
    return SinglePlan(counts, np.pad(np.where(listed, first, 0), beyond), lane_words(pairs))


def _tiles(keep: Keep, tile_rows: int) -> Keep:
    """(masks, tiles, tile_rows, seq_len): `keep`, its last tile's missing rows keep nothing."""
    masks, seq_len, _ = keep.shape
    padded = np.pad(keep, [(0, 0), (0, -seq_len % tile_rows), (0, 0)])
    return padded.reshape(masks, -1, tile_rows, seq_len)
