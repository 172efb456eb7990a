"""FlexAttention's guard may be left out where a plain walk over its tiles finds that no row begins with nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoffer_rl.bench.flex_rows import rows_start_kept, tiles_start_kept
from atoffer_rl.masks import parse_mask

MASKS = ("dense", "causal", "strided:stride=8", "fixed:block=8", "sliding:window=8", "sliding:window=40")


def kept_by(mask, seq_len):
    return parse_mask(mask, seq_len).keep(seq_len)


def walked(keep, block, columns):
    """Follow the loop of each row of one mask: does its first tile have a kept column?"""
    seq_len = len(keep)
    for row in range(seq_len):
        rows = slice(row // block * block, row // block * block + block)
        partial, full = [], []
        for start in range(0, seq_len, block):
            cut = np.zeros((block, block), bool)
            found = keep[rows, start : start + block]
            cut[: found.shape[0], : found.shape[1]] = found
            if cut.any():
                (full if cut.all() else partial).append(start)
        visited = [*partial, *full]
        if not visited or not keep[row, visited[0] : visited[0] + columns].any():
            return False
    return True


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("seq_len", "block", "columns"), [(64, 32, 16), (100, 32, 32), (17, 16, 8)])
def test_named_masks(mask, seq_len, block, columns):
    keep = kept_by(mask, seq_len)
    assert rows_start_kept(keep, block, columns) == all(walked(one, block, columns) for one in keep)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.sampled_from([(8, 4), (16, 16), (16, 8)]), st.floats(0.05, 1.0), st.integers(0, 99))
def test_any_mask(seq_len, tiling, density, seed):
    keep = np.random.default_rng(seed).random((2, seq_len, seq_len)) < density
    assert rows_start_kept(keep, *tiling) == all(walked(one, *tiling) for one in keep)


def test_a_window_that_a_tile_precedes_needs_the_guard():
    keep = kept_by("sliding:window=64", 512)
    assert not rows_start_kept(keep, 128, 64)
    assert not rows_start_kept(keep, 128, 128)
    assert rows_start_kept(kept_by("causal", 512), 128, 64)


@pytest.mark.parametrize(("mask", "kept"), [("dense", True), ("causal", False), ("strided:stride=8", False)])
def test_where_tiles_are_shared_out_every_one_counts(mask, kept):
    assert tiles_start_kept(kept_by(mask, 64), 16) is kept
    assert tiles_start_kept(kept_by(mask, 60), 64) is True
