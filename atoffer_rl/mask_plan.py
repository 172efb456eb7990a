"""What kernels read of a mask: column lists of rows, and bitmaps."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.masks import Keep, Mask

Int32: TypeAlias = NDArray[np.int32]
Words: TypeAlias = NDArray[np.uint32]
WORD_BITS = 32


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

    words: Words


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


def pack_words(keep: Keep) -> Words:
    """Pack the last axis into little-endian 32-bit words, padded with clear bits."""
    padding = -keep.shape[-1] % WORD_BITS
    padded = np.pad(keep, [(0, 0)] * (keep.ndim - 1) + [(0, padding)])
    packed = np.packbits(padded, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4")
