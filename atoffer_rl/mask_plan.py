"""What kernels read of a mask: column lists of rows, bitmaps, and gathered columns of row tiles."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.masks import Keep, Mask

Int32: TypeAlias = NDArray[np.int32]
WORD_BITS = 32
PADDING = -1


@dataclass(frozen=True)
class RowPlan:
    """Kept columns of every row, in compressed rows.

    Attributes:
        starts: (mask_batches, seq_len + 1) int32; row r of mask m keeps entries
            `starts[m, r]` to `starts[m, r + 1]` of `columns`.
        columns: int32, ascending within a row.
    """

    starts: Int32
    columns: Int32


@dataclass(frozen=True)
class BitPlan:
    """The mask as bits.

    Attributes:
        words: (mask_batches, seq_len, ceil(seq_len / 32)) uint32; bit c of word w says whether column
            32 * w + c is kept.
    """

    words: NDArray[np.uint32]


@dataclass(frozen=True)
class TilePlan:
    """Distinct columns of every row tile, gathered in chunks.

    Every tile has at least one chunk, of which the last is padded. The first chunk of tile t of mask m is
    chunk m * tiles + t, so that a kernel finds it without reading `starts`; what a tile needs besides lies
    behind all first chunks.

    Attributes:
        tile_rows: Rows of a tile; a ragged last tile's missing rows keep nothing.
        chunk: Columns of a chunk.
        starts: (mask_batches, tiles + 1) int32; the chunks of tile t of mask m after its first are
            `starts[m, t]` to `starts[m, t + 1]`.
        columns: (chunks, chunk) int32, ascending within a tile; -1 is padding: no column, its bits clear.
        words: (chunks, tile_rows, chunk / 32 rounded up) uint32: which gathered columns a row keeps.
    """

    tile_rows: int
    chunk: int
    starts: Int32
    columns: Int32
    words: NDArray[np.uint32]

    @property
    def gathered(self) -> int:
        """Columns gathered over all tiles, without padding."""
        return int(np.count_nonzero(self.columns >= 0))


@lru_cache(maxsize=32)
def row_plan(mask: Mask, seq_len: int) -> RowPlan:
    """The column lists of `mask`."""
    keep = mask.keep(seq_len)
    counts = keep.sum(axis=2, dtype=np.int64)
    ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
    starts = np.concatenate([ends[:, :1] - counts[:, :1], ends], axis=1)
    columns = np.broadcast_to(np.arange(seq_len, dtype=np.int32), keep.shape)[keep]
    return RowPlan(starts.astype(np.int32), columns)


@lru_cache(maxsize=32)
def bit_plan(mask: Mask, seq_len: int) -> BitPlan:
    """The bitmap of `mask`."""
    return BitPlan(pack_words(mask.keep(seq_len)))


def pack_words(keep: Keep) -> NDArray[np.uint32]:
    """Pack the last axis into little-endian 32-bit words, padded with clear bits."""
    padding = -keep.shape[-1] % WORD_BITS
    padded = np.pad(keep, [(0, 0)] * (keep.ndim - 1) + [(0, padding)])
    packed = np.packbits(padded, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4")


@lru_cache(maxsize=64)
def tile_plan(mask: Mask, seq_len: int, tile_rows: int, chunk: int) -> TilePlan:
    """The gathered columns of `mask` for tiles of `tile_rows` rows and chunks of `chunk` columns."""
    keep = mask.keep(seq_len)
    batches, tiles = keep.shape[0], -(-seq_len // tile_rows)
    rows = np.pad(keep, [(0, 0), (0, tiles * tile_rows - seq_len), (0, 0)])
    by_tile = rows.reshape(batches * tiles, tile_rows, seq_len)
    needed: Keep = np.any(by_tile, axis=1)
    extra = np.maximum(-(-needed.sum(axis=1) // chunk) - 1, 0)
    ends = len(by_tile) + np.cumsum(extra)
    columns = np.full((int(ends[-1]), chunk), PADDING, np.int32)
    kept = np.zeros((int(ends[-1]), tile_rows, chunk), bool)
    for tile, (end, more) in enumerate(zip(ends, extra, strict=True)):
        chunks = np.r_[tile, end - more : end]
        found = np.flatnonzero(needed[tile])
        listed = np.full(chunks.size * chunk, PADDING, np.int32)
        listed[: found.size] = found
        seen = np.zeros((tile_rows, chunks.size * chunk), bool)
        seen[:, : found.size] = by_tile[tile][:, found]
        columns[chunks] = listed.reshape(-1, chunk)
        kept[chunks] = seen.reshape(tile_rows, -1, chunk).swapaxes(0, 1)
    per_mask = ends.reshape(batches, tiles)
    starts = np.concatenate([per_mask[:, :1] - extra.reshape(batches, tiles)[:, :1], per_mask], axis=1)
    return TilePlan(tile_rows, chunk, starts.astype(np.int32), columns, pack_words(kept))
