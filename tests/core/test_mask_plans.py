"""Mask plans against the mask they describe."""

import numpy as np
import pytest

from atoffer_rl.mask_plan import bit_plan, row_plan, tile_plan
from atoffer_rl.masks import parse_mask
from tests.core.row_masks import NAMED

SEQ_LENS = [1, 7, 31, 32, 33, 67]


def unpack(words):
    return np.unpackbits(words[..., None].view(np.uint8), axis=-1, bitorder="little").reshape(*words.shape[:-1], -1)


@pytest.fixture
def ragged_mask(tmp_path):
    """Two masks of one batch: with empty rows, and with columns that no row keeps."""
    keep = np.random.default_rng(1).random((2, 37, 37)) < 0.2
    keep[0, 5:9] = False
    keep[1, :, 11] = False
    keep[1, 32:] = False
    np.save(tmp_path / "mask.npy", keep)
    return parse_mask(f"file:{tmp_path / 'mask.npy'}", 37), 37


def check_rows(mask, seq_len):
    plan, keep = row_plan(mask, seq_len), mask.keep(seq_len)
    assert plan.starts.dtype == plan.columns.dtype == np.int32
    assert plan.starts.shape == (len(keep), seq_len + 1)
    for square, starts in zip(keep, plan.starts, strict=True):
        for row in range(seq_len):
            np.testing.assert_array_equal(plan.columns[starts[row] : starts[row + 1]], np.flatnonzero(square[row]))


def check_bits(mask, seq_len):
    words, keep = bit_plan(mask, seq_len).words, mask.keep(seq_len)
    assert words.dtype == np.uint32
    assert words.shape == (len(keep), seq_len, -(-seq_len // 32))
    bits = unpack(words)
    np.testing.assert_array_equal(bits[..., :seq_len], keep)
    assert not bits[..., seq_len:].any()


def tile_chunks(plan, mask_index, tile):
    """The chunks of a tile: its first, which lies at a known place, then the rest."""
    tiles = plan.starts.shape[1] - 1
    return [mask_index * tiles + tile, *range(plan.starts[mask_index, tile], plan.starts[mask_index, tile + 1])]


def check_tiles(mask, seq_len, tile_rows, chunk):
    plan, keep = tile_plan(mask, seq_len, tile_rows, chunk), mask.keep(seq_len)
    tiles = -(-seq_len // tile_rows)
    assert plan.starts.shape == (len(keep), tiles + 1)
    assert plan.columns.shape[1:] == (chunk,)
    bits = unpack(plan.words)[..., :chunk]
    rebuilt = np.zeros((len(keep), tiles * tile_rows, seq_len), int)
    gathered, used = 0, []
    for index in range(len(keep)):
        for tile in range(tiles):
            chunks = tile_chunks(plan, index, tile)
            used += chunks
            columns = plan.columns[chunks].reshape(-1)
            real = columns[columns >= 0]
            rows = slice(tile * tile_rows, (tile + 1) * tile_rows)
            np.testing.assert_array_equal(real, np.flatnonzero(keep[index, rows].any(axis=0)))
            gathered += real.size
            seen = bits[chunks].swapaxes(0, 1).reshape(tile_rows, -1)
            assert not seen[:, columns < 0].any()
            rebuilt[index][rows, real] += seen[:, columns >= 0]
    assert sorted(used) == list(range(len(plan.columns)))
    assert gathered == plan.gathered
    np.testing.assert_array_equal(rebuilt[:, :seq_len], keep)
    assert not rebuilt[:, seq_len:].any()


@pytest.mark.parametrize("seq_len", SEQ_LENS)
@pytest.mark.parametrize("text", NAMED)
def test_named_masks(text, seq_len):
    mask = parse_mask(text, seq_len)
    check_rows(mask, seq_len)
    check_bits(mask, seq_len)
    check_tiles(mask, seq_len, tile_rows=16, chunk=8)


@pytest.mark.parametrize(("tile_rows", "chunk"), [(16, 16), (32, 64), (64, 32)])
def test_ragged_masks(ragged_mask, tile_rows, chunk):
    check_rows(*ragged_mask)
    check_bits(*ragged_mask)
    check_tiles(*ragged_mask, tile_rows, chunk)
