"""Masks against their definitions, written as plain double loops."""

import os
import pickle
import time
from math import isqrt
from pathlib import Path

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
    "text", ["dense", "causal", "strided", "fixed", "sliding", "longformer", "bigbird", "document:lengths=4000/96"]
)
def test_long_masks_are_quick(text):
    started = time.perf_counter()
    parse_mask(text, 4096).keep(4096)
    assert time.perf_counter() - started < 0.2


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
    ],
)
def test_bad_masks(text, says):
    with pytest.raises(MaskError) as caught:
        parse_mask(text, 16)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def saved(tmp_path: Path):
    def save(array, name="mask.npy"):
        np.save(tmp_path / name, array)
        return f"file:{tmp_path / name}"

    return save


def test_file_masks(saved):
    square = np.random.default_rng(0).random((12, 12)) < 0.5
    mask = parse_mask(saved(square), 12)
    np.testing.assert_array_equal(mask.keep(12), square[None])
    batch = np.stack([square, ~square, square.T])
    per_sequence = parse_mask(saved(batch, "batch.npy"), 12)
    np.testing.assert_array_equal(per_sequence.keep(12), batch)
    assert mask.identity != per_sequence.identity
    assert parse_mask(saved(square, "copy.npy"), 12).identity == mask.identity


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.ones((12, 12), np.int32), "boolean array"),
        (np.ones((12,), bool), "boolean array"),
        (np.ones((12, 13), bool), "must end in (12, 12)"),
        (np.ones((2, 12, 12), bool), "holds 2 masks, but batch is 16"),
        (np.array([{"pickled": True}]), "cannot read mask file"),
    ],
)
def test_bad_file_masks(saved, array, says):
    with pytest.raises(MaskError, match=None) as caught:
        Workload(batch=16, seq_len=12, mask=saved(array))
    assert says in str(caught.value)


def test_a_truncated_file_is_named(saved, tmp_path):
    text = saved(np.ones((12, 12), bool))
    content = (tmp_path / "mask.npy").read_bytes()
    (tmp_path / "mask.npy").write_bytes(content[:-30])
    with pytest.raises(MaskError, match="cannot read mask file"):
        parse_mask(text, 12)


def _npy(header):
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


_HEADER = "{'descr': '|b1', 'fortran_order': False, 'shape': SHAPE}"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 a damaged archive",
        pickle.dumps([True]),
        _npy("__import__('os').abort()"),
        _npy(_HEADER.replace("SHAPE", "(12, 12a")),
        _npy(_HEADER.replace("SHAPE", "(12, 12 if 1is 1 else 12)")),
        _npy(_HEADER.replace("SHAPE", "'''")),
        _npy("  x\n y\n"),
        _npy(_HEADER.replace("SHAPE", "(1000000, 1000000)")),
        _npy(_HEADER.replace("SHAPE", "(4294967296, 4294967296, 4294967296)")),
        _npy(_HEADER.replace("SHAPE", "(-12, -12)")),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_array_is_not_read(tmp_path, content):
    (tmp_path / "mask.npy").write_bytes(content)
    with pytest.raises(MaskError, match="cannot read mask file"):
        parse_mask(f"file:{tmp_path / 'mask.npy'}", 12)


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.npy")
    for path in (tmp_path, tmp_path / "pipe.npy"):
        with pytest.raises(MaskError, match="is not a file"):
            parse_mask(f"file:{path}", 12)


def test_column_order_and_odd_bytes_are_the_same_mask(saved):
    square = np.tri(12, dtype=bool)
    plain = parse_mask(saved(square), 12)
    columns = parse_mask(saved(np.asfortranarray(square), "columns.npy"), 12)
    odd = parse_mask(saved((square.astype(np.uint8) * 7).view(bool), "odd.npy"), 12)
    assert plain.identity == columns.identity == odd.identity
    np.testing.assert_array_equal(odd.keep(12).view(np.uint8), square[None].view(np.uint8))


def test_a_changed_file_is_another_mask(saved):
    text = saved(np.ones((12, 12), bool))
    before = parse_mask(text, 12)
    saved(np.tri(12, dtype=bool))
    after = parse_mask(text, 12)
    assert before.identity != after.identity
    with pytest.raises(MaskError, match="changed while it was in use"):
        before.keep(12)


def test_a_mask_error_is_a_workload_error():
    with pytest.raises(WorkloadError):
        Workload(mask="ring")
