"""Masks against their definitions, written as plain double loops."""

import time
from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.errors import MaskError, WorkloadError
from atoffer_rl.masks import MASK_NAMES, parse_mask
from atoffer_rl.workload import Workload


def drawn_blocks(seq_len, random, block, seed):
    """BigBird's random blocks: the first `random` of a permutation for each block row."""
    blocks = -(-seq_len // block)
    source = np.random.RandomState(seed)
    return [set(source.permutation(blocks)[:random].tolist()) for _ in range(blocks)]


def sliding(i, j, window):
    return abs(i - j) <= window / 2


def longformer(i, j, window, global_):
    return sliding(i, j, window) or i < global_ or j < global_


def reference(seq_len, rule):
    return np.array([[rule(i, j) for j in range(seq_len)] for i in range(seq_len)], bool)


def check(text, seq_len, rule):
    keep = parse_mask(text, seq_len).keep(seq_len)
    assert keep.dtype == np.bool_
    assert keep.shape == (1, seq_len, seq_len)
    assert not keep.flags.writeable
    np.testing.assert_array_equal(keep[0], reference(seq_len, rule))


lengths = st.integers(1, 41)
steps = st.integers(1, 50)


@given(lengths)
def test_dense_and_causal(seq_len):
    check("dense", seq_len, lambda i, j: True)
    check("causal", seq_len, lambda i, j: j <= i)


@given(lengths, steps)
def test_strided(seq_len, stride):
    check(f"strided:stride={stride}", seq_len, lambda i, j: j <= i and ((i - j) % stride == 0 or j > i - stride))


@given(lengths, steps)
def test_fixed(seq_len, block):
    check(
        f"fixed:block={block}",
        seq_len,
        lambda i, j: j <= i and (j % block == block - 1 or j // block == i // block),
    )


@given(lengths, st.integers(0, 90), st.integers(0, 50))
def test_sliding_and_longformer(seq_len, window, global_):
    check(f"sliding:window={window}", seq_len, lambda i, j: sliding(i, j, window))
    check(f"longformer:window={window},global={global_}", seq_len, lambda i, j: longformer(i, j, window, global_))


@given(lengths, st.integers(0, 9), st.integers(0, 3), st.integers(0, 5), st.integers(1, 12), st.integers(0, 3))
def test_bigbird(seq_len, window, global_, random, block, seed):
    drawn = drawn_blocks(seq_len, random, block, seed)
    check(
        f"bigbird:window={window},global={global_},random={random},block={block},seed={seed}",
        seq_len,
        lambda i, j: longformer(i, j, window, global_) or j // block in drawn[i // block],
    )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_document(parts):
    owner = [index for index, length in enumerate(parts) for _ in range(length)]
    check("document:lengths=" + "/".join(map(str, parts)), len(owner), lambda i, j: owner[i] == owner[j])


@pytest.mark.parametrize("seq_len", [1, 2, 3, 17, 64, 127, 128, 200])
def test_default_steps_are_the_root_of_the_length(seq_len):
    assert str(parse_mask("strided", seq_len)) == f"strided:stride={isqrt(seq_len)}"
    assert str(parse_mask("fixed", seq_len)) == f"fixed:block={isqrt(seq_len)}"


@pytest.mark.parametrize(
    ("seq_len", "strided", "fixed"),
    [(64, 0.173, 0.125), (256, 0.090, 0.062), (512, 0.064, 0.044), (1024, 0.046, 0.031)],
)
def test_published_densities(seq_len, strided, fixed):
    assert parse_mask("strided", seq_len).keep(seq_len).mean() == pytest.approx(strided, abs=6e-4)
    assert parse_mask("fixed", seq_len).keep(seq_len).mean() == pytest.approx(fixed, abs=6e-4)


@pytest.mark.parametrize("seq_len", [1, 2, 17])
def test_parameters_that_are_larger_than_the_length(seq_len):
    largest = 2**31 - 1
    check(f"strided:stride={largest}", seq_len, lambda i, j: j <= i)
    check(f"fixed:block={largest}", seq_len, lambda i, j: j <= i)
    for text in (
        f"sliding:window={largest}",
        f"longformer:window=0,global={largest}",
        f"bigbird:window=0,global=0,random={largest},block=1,seed={largest}",
        f"bigbird:window=0,global=0,random=1,block={largest}",
    ):
        check(text, seq_len, lambda i, j: True)
        assert str(parse_mask(text, seq_len)).count(str(largest)) == text.count(str(largest))


def test_names_are_canonical():
    assert str(parse_mask("triangle", 8)) == "causal"
    assert str(parse_mask("bigbird:seed=3,window=8", 64)) == "bigbird:window=8,global=16,random=2,block=16,seed=3"
    for name in MASK_NAMES:
        if name not in ("document", "file"):
            mask = parse_mask(name, 50)
            assert parse_mask(str(mask), 50) == mask
            assert hash(parse_mask(str(mask), 50)) == hash(mask)


def test_random_blocks_do_not_depend_on_the_numpy_version():
    keep = parse_mask("bigbird:window=0,global=0,random=1,block=4,seed=7", 16).keep(16)[0]
    drawn = [set((np.flatnonzero(keep[4 * row + 1]) // 4).tolist()) - {row} for row in range(4)]
    assert drawn == [{2}, {3}, {3}, {1}]


@pytest.mark.parametrize(
    "text",
    [
        "dense",
        "causal",
        "strided",
        "fixed",
        "sliding",
        "longformer",
        "bigbird",
        "bigbird:random=2147483647,block=1",
        "document:lengths=4000/96",
    ],
)
def test_long_masks_are_quick(text):
    started = time.process_time()
    parse_mask(text, 4096).keep(4096)
    assert time.process_time() - started < 0.2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ring", "unknown mask 'ring': use one of dense, causal"),
        ("", "unknown mask ''"),
        ("strided:step=3", "no parameter 'step'; it takes: stride"),
        ("dense:window=3", "it takes: none"),
        ("strided:stride=0", "stride must be a whole number from 1 to 2**31 - 1, not '0'"),
        ("sliding:window", "window must be a whole number from 0 to 2**31 - 1, not ''"),
        ("sliding:window=2.5", "not '2.5'"),
        ("sliding:window=1_6", "not '1_6'"),
        ("sliding:window=" + "9" * 5000, "window must be a whole number"),
        ("sliding:window=4,window=8", "gives a parameter twice"),
        ("bigbird:block=99999999999", "block must be a whole number"),
        ("document", "document:lengths=100/156"),
        ("document:lengths=8/7", "lengths add up to 15, but seq_len is 16"),
        ("document:lengths=16/0", "from 1 to"),
        ("file", "file:mask.npy"),
        ("file:no/such.npy", "cannot read mask file 'no/such.npy': No such file"),
        (7, "mask must be text"),
        pytest.param(10**5000, "not <int too large to show>", id="many digits"),
        pytest.param("ring" * 10**6, "unknown mask 'ringring", id="long"),
    ],
)
def test_bad_masks(text, says):
    with pytest.raises(MaskError) as caught:
        parse_mask(text, 16)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_mask_error_is_a_workload_error():
    with pytest.raises(WorkloadError):
        Workload(mask="ring")
