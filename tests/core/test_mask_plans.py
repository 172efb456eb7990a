"""Mask plans against the mask they describe."""

import numpy as np
import pytest

from atoffer_rl.mask_plan import bit_plan, row_plan
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


@pytest.mark.parametrize("seq_len", SEQ_LENS)
@pytest.mark.parametrize("text", NAMED)
def test_named_masks(text, seq_len):
    mask = parse_mask(text, seq_len)
    check_rows(mask, seq_len)
    check_bits(mask, seq_len)


def test_ragged_masks(ragged_mask):
    check_rows(*ragged_mask)
    check_bits(*ragged_mask)
