"""Masks that are files."""

import os
import pickle
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from atoffer_rl import mask_file
from atoffer_rl.errors import MaskError
from atoffer_rl.masks import parse_mask
from atoffer_rl.workload import Workload


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
        (np.ones((2, 12, 12), bool), "holds 2 masks, but batch is 16: it must hold 1 or 16"),
        (np.array([{"pickled": True}]), "holds object of shape (1,): it must hold a boolean array"),
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
        _npy(_HEADER.replace("SHAPE", f"({'9' * 5000}, 12)")),
        _npy(_HEADER.replace("SHAPE", "(12, 12)")),
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 20_000,
        b"\x93NUMPY\x09\x00" + b" " * 200,
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_array_is_not_read(tmp_path, content):
    (tmp_path / "mask.npy").write_bytes(content)
    with pytest.raises(MaskError, match="cannot read mask file"):
        parse_mask(f"file:{tmp_path / 'mask.npy'}", 12)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ("(1000000, 1000000)", "must end in (12, 12)"),
        ("(4294967296, 4294967296, 4294967296)", "must end in (12, 12)"),
        (f"({'9' * 4000}, 12, 13)", "must end in (12, 12)"),
        (f"({'9' * 4000}, 12, 12)", "masks, but batch is 16"),
        ("(-12, -12)", "boolean array"),
        ("(-1, 12, 12)", "boolean array"),
        ("(1000000, 12, 12)", "holds 1000000 masks, but batch is 16"),
        ("(0, 12, 12)", "boolean array"),
        ("(True, 12, 12)", "boolean array"),
    ],
)
def test_nothing_of_another_shape_is_read(tmp_path, shape, says):
    path = tmp_path / "mask.npy"
    path.write_bytes(_npy(_HEADER.replace("SHAPE", shape)))
    os.truncate(path, 10**12)  # whoever reads it runs out of memory
    with pytest.raises(MaskError) as caught:
        parse_mask(f"file:{path}", 12, batch=16)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


def test_more_than_can_be_indexed_is_not_read(tmp_path):
    path = tmp_path / "mask.npy"
    path.write_bytes(_npy(_HEADER.replace("SHAPE", "(100000000, 12, 12)")))
    with pytest.raises(MaskError, match="reduce batch or seq_len"):
        parse_mask(f"file:{path}", 12)


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


def test_a_file_is_read_again_only_if_it_changed(saved, tmp_path, monkeypatch):
    text = saved(np.ones((12, 12), bool))
    hashed = []
    sha256 = mask_file.hashlib.sha256
    monkeypatch.setattr(mask_file.hashlib, "sha256", lambda content: hashed.append(1) or sha256(content))
    monkeypatch.setattr(mask_file, "SETTLED_NS", -(10**18))
    first = parse_mask(text, 12)
    assert parse_mask(text, 12, batch=3) == first
    assert len(hashed) == 1
    saved(np.tri(12, dtype=bool))
    os.utime(tmp_path / "mask.npy")
    assert parse_mask(text, 12) != first


def test_times_that_are_too_coarse_hide_no_change(saved, monkeypatch):
    tick_ns, fstat = time.time_ns(), os.fstat

    def coarse(descriptor):
        exact = fstat(descriptor)
        kept = {name: getattr(exact, name) for name in ("st_mode", "st_dev", "st_ino", "st_size")}
        return SimpleNamespace(**kept, st_mtime_ns=tick_ns, st_ctime_ns=tick_ns)

    monkeypatch.setattr(os, "fstat", coarse)
    for keep in (np.ones((12, 12), bool), np.tri(12, dtype=bool)):
        np.testing.assert_array_equal(parse_mask(saved(keep), 12).keep(12)[0], keep)


def test_a_changed_file_is_another_mask(saved):
    text = saved(np.ones((12, 12), bool))
    before = parse_mask(text, 12)
    saved(np.tri(12, dtype=bool))
    after = parse_mask(text, 12)
    assert before.identity != after.identity
    with pytest.raises(MaskError, match="changed while it was in use"):
        before.keep(12)
