"""Which masks let FlexAttention leave out its guard for rows without a kept column.

With ROWS_GUARANTEED_SAFE its kernels do not ask whether a row's running maximum is still -inf. That is right where a
row keeps a column of the first tile that its loop visits: a later one is too late, -inf less -inf is no number.
"""

import numpy as np

from atoffer_rl.masks import Keep


def rows_start_kept(keep: Keep, block: int, columns: int) -> bool:
    """Whether every row keeps a column of the first tile that FlexAttention visits.

    A row's loop takes the partly kept blocks of its block of rows first, then those kept whole.

    Args:
        keep: (masks, seq_len, seq_len), as `Mask.keep` gives it.
        block: Rows and columns of a block of the BlockMask.
        columns: Of a tile; they divide `block`.
    """
    masks, seq_len, _ = keep.shape
    beyond = -seq_len % block
    padded = np.pad(keep, [(0, 0), (0, beyond), (0, beyond)])
    count = padded.shape[1] // block
    blocks = padded.reshape(masks, count, block, count, block)
    partial: Keep = np.logical_or.reduce(blocks, axis=(2, 4)) & ~np.logical_and.reduce(blocks, axis=(2, 4))
    first = partial.argmax(axis=-1)[:, :, None, None, None]
    tiles = np.take_along_axis(blocks, first, axis=3)[:, :, :, 0, :columns]
    needs_no_tile: Keep = ~np.logical_or.reduce(partial, axis=-1)
    begins_kept: Keep = np.logical_or.reduce(tiles, axis=-1) | needs_no_tile[:, :, None]
    return bool(begins_kept.reshape(masks, -1)[:, :seq_len].all() and keep.any(axis=-1).all())


def tiles_start_kept(keep: Keep, columns: int) -> bool:
    """Whether every row keeps a column of every tile: where tiles are shared out, a loop may begin at any.

    Args:
        keep: (masks, seq_len, seq_len), as `Mask.keep` gives it.
        columns: Of a tile.
    """
    masks, seq_len, _ = keep.shape
    padded = np.pad(keep, [(0, 0), (0, 0), (0, -seq_len % columns)])
    return bool(padded.reshape(masks, seq_len, -1, columns).any(axis=-1).all())
