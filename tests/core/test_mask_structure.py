import numpy as np
import pytest

from atoffer_rl.mask_structure import BLOCK_SIZES, mask_structure, mixing_within
from atoffer_rl.masks import parse_mask


@pytest.mark.parametrize("name", ["dense", "causal", "strided", "fixed", "sliding:window=8", "document:lengths=40/37"])
def test_it_counts_what_the_mask_keeps(name):
    seq_len = 77
    mask = parse_mask(name, seq_len)
    keep = mask.keep(seq_len)[0]
    found = mask_structure(mask, seq_len)
    assert found.density == pytest.approx(keep.mean())
    for size, block_density, columns in zip(BLOCK_SIZES, found.block_density, found.tile_columns, strict=True):
        tiles = [keep[start : start + size] for start in range(0, seq_len, size)]
        assert columns == pytest.approx(np.mean([tile.any(axis=0).mean() for tile in tiles]))
        blocks = [[tile[:, start : start + size].any() for start in range(0, seq_len, size)] for tile in tiles]
        assert block_density == pytest.approx(np.mean(blocks))


@pytest.mark.parametrize("name", ["dense", "causal", "strided:stride=3", "sliding:window=0", "document:lengths=1/5/17"])
def test_rows_that_have_something_to_weigh(name):
    mask = parse_mask(name, 23)
    keep = mask.keep(23)[0]
    assert mixing_within(mask, 23).tolist() == [(keep[:n, :n].sum(axis=1) > 1).sum() for n in range(24)]


def test_batched_masks_are_averaged(tmp_path):
    array = np.zeros((2, 16, 16), bool)
    array[0] = True
    np.save(tmp_path / "mask.npy", array)
    found = mask_structure(parse_mask(f"file:{tmp_path / 'mask.npy'}", 16), 16)
    assert found.density == found.block_density[0] == found.tile_columns[0] == 0.5
    assert mixing_within(parse_mask(f"file:{tmp_path / 'mask.npy'}", 16), 16)[16] == 8
