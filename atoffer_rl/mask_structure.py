"""How sparse a mask is, seen by element, by block and by row tile."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.masks import Keep, Mask

BLOCK_SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class MaskStructure:
    """A mask's shares, all from 0 to 1.

    Attributes:
        density: Kept pairs over all pairs.
        block_density: For each of `BLOCK_SIZES`, the share of square blocks that keep any pair.
        tile_columns: For each of `BLOCK_SIZES`, the distinct columns that a tile of so many rows needs,
            over the sequence length, mean over tiles.
    """

    density: float
    block_density: tuple[float, ...]
    tile_columns: tuple[float, ...]


@lru_cache(maxsize=64)
def mask_structure(mask: Mask, seq_len: int) -> MaskStructure:
    """The structure of `mask`; ragged blocks and tiles at the end count as whole ones."""
    needed = keep = mask.keep(seq_len)
    blocks, columns, covered = [], [], 1
    for size in BLOCK_SIZES:  # each a multiple of the one before, so that only the first reads the whole mask
        needed, covered = _any_of(needed, size // covered), size
        columns.append(float(needed.mean()))
        blocks.append(float(_any_of(needed.swapaxes(1, 2), size).mean()))
    return MaskStructure(float(keep.mean()), tuple(blocks), tuple(columns))


def _any_of(keep: Keep, count: int) -> Keep:
    """Whether any of each `count` rows of (masks, rows, columns) keeps a column; the last may be fewer."""
    whole = keep.shape[1] // count * count
    grouped: Keep = np.any(keep[:, :whole].reshape(len(keep), -1, count, keep.shape[2]), axis=2)
    last: Keep = np.any(keep[:, whole:], axis=1, keepdims=True)
    return np.concatenate([grouped, last], axis=1) if whole < keep.shape[1] else grouped


@lru_cache(maxsize=64)
def kept_within(mask: Mask, seq_len: int) -> NDArray[np.float64]:
    """Pairs that `mask` keeps of the first n tokens, for n from 0 to `seq_len`, mean over its squares."""
    keep = mask.keep(seq_len)
    joins = np.tril(keep).sum(axis=2) + np.triu(keep, 1).sum(axis=1)  # of each token with those before it and itself
    within: NDArray[np.float64] = np.concatenate([[0.0], np.cumsum(joins.mean(axis=0))])
    return within


@lru_cache(maxsize=64)
def mixing_within(mask: Mask, seq_len: int) -> NDArray[np.float64]:
    """Rows of the first n tokens that keep two of them or more, for n from 0 to `seq_len`, mean over `mask`'s squares.

    Attention has something to weigh there alone: a row that keeps no column gives zeros, one that keeps one, that one.
    """
    keep = mask.keep(seq_len)
    rest = keep.copy()
    np.put_along_axis(rest, keep.argmax(axis=2)[..., None], False, axis=2)
    second = rest.argmax(axis=2)  # 0 where there is none
    needed = np.maximum(second, np.arange(seq_len)) + 1
    within: NDArray[np.float64] = np.cumsum(np.bincount(needed[second > 0], minlength=seq_len + 1)) / len(keep)
    return within
