"""A mask's function of indices keeps what the mask keeps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from atoffer_rl.bench.mask_mods import mask_mod
from atoffer_rl.masks import parse_mask

CPU = torch.device("cpu")


def kept(text, seq_len):
    index = torch.arange(seq_len)
    return mask_mod(parse_mask(text, seq_len), seq_len, CPU)(0, 0, index[:, None], index[None, :])


@st.composite
def masks(draw):
    """A named mask with parameters, and a length."""
    seq_len = draw(st.sampled_from([1, 2, 16, 17, 33, 64, 100, 129]))
    small = st.integers(0, 40)
    form = draw(
        st.sampled_from(["dense", "causal", "strided", "fixed", "sliding", "longformer", "bigbird", "document"])
    )
    values = {
        "strided": f"stride={draw(small) + 1}",
        "fixed": f"block={draw(small) + 1}",
        "sliding": f"window={draw(small)}",
        "longformer": f"window={draw(small)},global={draw(small)}",
        "bigbird": f"window={draw(small)},global={draw(st.integers(0, 5))},random={draw(st.integers(0, 3))},"
        f"block={draw(small) + 1},seed={draw(small)}",
    }
    if form == "document":
        cuts = sorted(draw(st.sets(st.integers(1, seq_len - 1), max_size=5))) if seq_len > 1 else []
        lengths = np.diff([0, *cuts, seq_len])
        return "document:lengths=" + "/".join(map(str, lengths)), seq_len
    return f"{form}:{values[form]}" if form in values else form, seq_len


@settings(max_examples=150, deadline=None)
@given(masks())
def test_formulas_are_the_masks(drawn):
    text, seq_len = drawn
    assert np.array_equal(kept(text, seq_len).numpy(), parse_mask(text, seq_len).keep(seq_len)[0])


@pytest.mark.parametrize("text", ["dense", "strided", "fixed", "bigbird", "document:lengths=5/12", "longformer"])
def test_flex_attention_reads_them_entry_by_entry(text):
    mask = parse_mask(text, 17)
    assert np.array_equal(create_mask(mask_mod(mask, 17, CPU), 1, 1, 17, 17, device="cpu")[0].numpy(), mask.keep(17))


@pytest.mark.parametrize("batches", [1, 3])
def test_files_are_looked_up(tmp_path, batches):
    keep = np.random.default_rng(0).random((batches, 17, 17)) < 0.5
    np.save(tmp_path / "mask.npy", keep)
    mask = parse_mask(f"file:{tmp_path / 'mask.npy'}", 17)
    found = create_mask(mask_mod(mask, 17, CPU), batches, 1, 17, 17, device="cpu")
    assert np.array_equal(found[:, 0].numpy(), keep)
