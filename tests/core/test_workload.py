"""Workloads: canonical, hashable, round-trip through JSON, and refuse what is no layer."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl import mask_file
from atoffer_rl.errors import AtofferError, MaskError, WorkloadError
from atoffer_rl.run import Run
from atoffer_rl.signature import signature
from atoffer_rl.workload import ACTIVATIONS, FIELD_NAMES, OPTIONAL_FIELDS, Workload

workloads = st.builds(
    Workload,
    batch=st.integers(1, 8),
    seq_len=st.integers(1, 70),
    heads=st.integers(1, 16),
    head_dim=st.sampled_from([32, 64, 128]),
    ffn_dim=st.integers(1, 4096),
    layers=st.integers(1, 24),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    mask=st.sampled_from(["dense", "triangle", "strided", "fixed:block=3", "bigbird:seed=2,random=1"]),
    activation=st.sampled_from(ACTIVATIONS),
    epsilon=st.floats(0, 0.5),
)


packed_workloads = st.builds(
    Workload,
    batch=st.just(3),
    seq_len=st.integers(4, 70),
    lengths=st.sampled_from(["uniform", "uniform:shortest=0,longest=3", "list:0/4/1"]),
    packed=st.booleans(),
)


@given(workloads | packed_workloads)
def test_round_trip(workload):
    again = Workload.from_json(json.loads(json.dumps(workload.to_json())))
    assert again == workload
    assert hash(again) == hash(workload)
    assert again.key == workload.key


def test_names_of_one_mask_make_one_workload():
    assert Workload(mask="strided") == Workload(mask="strided:stride=16")
    assert Workload(mask="triangle").key == Workload(mask="causal").key
    assert Workload(epsilon=0) == Workload(epsilon=0.0)


def test_the_key_is_stable():
    assert Workload().key == "9b68b280ab48"
    assert len({Workload().key, Workload(batch=8).key, Workload(mask="fixed").key, Workload(layers=1).key}) == 4


def test_sizes():
    workload = Workload(batch=2, seq_len=10, heads=3, head_dim=32)
    assert (workload.width, workload.rows, workload.score_count) == (96, 20, 600)
    assert replace(workload, layers=3) == Workload(batch=2, seq_len=10, heads=3, head_dim=32, layers=3)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("batch", 0, "batch must be a positive whole number, not 0"),
        ("seq_len", -3, "seq_len must be"),
        ("heads", 1.5, "heads must be"),
        ("head_dim", "64", "head_dim must be"),
        ("layers", True, "layers must be"),
        ("ffn_dim", None, "ffn_dim must be"),
        ("dtype", "float64", "dtype must be one of float32, float16, bfloat16"),
        ("dtype", [], "dtype must be one of"),
        ("activation", "swish", "activation must be one of gelu, gelu_tanh, relu"),
        ("epsilon", -1.0, "epsilon must be at least 0 and below 1"),
        ("epsilon", float("nan"), "epsilon must be at least 0 and below 1"),
        ("epsilon", "small", "epsilon must be at least 0 and below 1"),
        ("mask", None, "mask must be text"),
        ("packed", True, "full sequences cannot be packed: give lengths"),
        ("packed", 1, "packed must be true or false, not 1"),
        ("packed", "yes", "packed must be true or false, not 'yes'"),
        ("seq_len", 2**15, "reduce batch or seq_len"),
        ("batch", 10**9, "reduce batch or seq_len"),
        ("seq_len", 10**6, "seq_len must be at most 32768"),
        ("ffn_dim", 2**30, "reduce heads, head_dim or ffn_dim"),
        ("heads", 10**9, "reduce heads, head_dim or ffn_dim"),
        ("layers", 10**30, "layers must be at most 10000"),
        ("colour", "red", "not a workload"),
    ],
)
def test_bad_workloads(field, value, says):
    with pytest.raises(WorkloadError) as caught:
        Workload.from_json(Workload(batch=32).to_json() | {field: value})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (10**5000, 1, "not a workload: <int too large to show> unknown"),
        ("batch", -(10**5000), "batch must be a positive whole number, not <int too large to show>"),
        ("seq_len", 10**5000, "seq_len must be at most 32768, not <int too large to show>"),
        ("heads", 10**5000, "reduce heads, head_dim or ffn_dim"),
        ("layers", 10**5000, "layers must be at most 10000, not <int"),
        ("epsilon", 10**5000, "epsilon must be at least 0 and below 1, not <int"),
        ("activation", [10**5000], "activation must be one of gelu, gelu_tanh, relu, not <list"),
        ("dtype", "x" * 10**6, "dtype must be one of"),
        ("mask", 10**5000, "mask must be text"),
        ("lengths", 10**5000, "lengths must be text"),
        ("lengths", "x" * 10**6, "unknown lengths"),
        ("lengths", f"uniform:{'x' * 10**6}", "has no parameter"),
        ("lengths", f"uniform:longest={'9' * 5000}", "must be a whole number from 0 to seq_len"),
        ("packed", 10**5000, "packed must be true or false, not <int"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "large",
)
def test_values_that_are_too_large_to_show(field, value, says):
    with pytest.raises(WorkloadError) as caught:
        Workload.from_json(Workload(batch=32).to_json() | {field: value})
    assert says in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_score_matrix_may_be_larger_than_what_is_indexed():
    assert Workload(batch=16, seq_len=4096).score_count > 2**31


def test_a_mask_may_not(tmp_path, monkeypatch):
    np.save(tmp_path / "keep.npy", np.ones((2, 40, 40), bool))
    sizes = {"batch": 2, "seq_len": 40, "heads": 1, "head_dim": 8, "ffn_dim": 8}
    Workload(mask=f"file:{tmp_path / 'keep.npy'}", **sizes)
    monkeypatch.setattr(mask_file, "MAX_ELEMENTS", 2 * 40 * 40 - 1)
    with pytest.raises(MaskError, match="reduce batch or seq_len"):
        Workload(mask=f"file:{tmp_path / 'keep.npy'}", **sizes)


def test_workloads_of_two_contents_of_a_mask_file_differ(tmp_path):
    path = tmp_path / "keep.npy"
    sizes = {"batch": 2, "seq_len": 40, "heads": 1, "head_dim": 8, "ffn_dim": 8, "mask": f"file:{path}"}
    np.save(path, np.ones((40, 40), bool))
    before = Workload(**sizes)
    assert before == Workload(**sizes)
    assert hash(before) == hash(Workload(**sizes))
    np.save(path, np.tri(40, dtype=bool))
    after = Workload(**sizes)
    assert len({before, after, Workload(**sizes)}) == 2
    assert before.key != after.key
    assert before.to_json() == after.to_json() == Workload.from_json(after.to_json()).to_json()
    assert after.mask_spec.keep(40).sum() == 820
    with pytest.raises(MaskError, match="changed while it was in use"):
        replace(before, batch=1)
    with pytest.raises(MaskError, match="changed while it was in use"):
        pickle.loads(pickle.dumps(before)).mask_spec.keep(40)
    assert replace(before, mask="causal") == replace(after, mask="causal")
    np.save(tmp_path / "other.npy", np.eye(40, dtype=bool))
    assert replace(before, mask=f"file:{tmp_path / 'other.npy'}").mask_spec.keep(40).sum() == 40


@pytest.mark.parametrize("value", [None, [], "strided", 3])
def test_what_is_no_object_is_no_workload(value):
    with pytest.raises(AtofferError):
        Workload.from_json(value)


def test_signatures_share_what_they_can():
    strided, fixed = Workload(mask="strided"), Workload(mask="fixed")
    other_split = Workload(batch=8, seq_len=512, mask="fixed")
    for run in (Run(0, 0), Run(7, 8), Run(10, 12), Run(13, 14)):
        assert signature(strided, run) == signature(fixed, run) == signature(other_split, run)
    for run in (Run(0, 1), Run(2, 2), Run(6, 7), Run(4, 5)):
        assert signature(strided, run) == signature(fixed, run) != signature(other_split, run)
    for run in (Run(3, 3), Run(2, 6), Run(1, 5)):
        assert signature(strided, run) != signature(fixed, run)
    relu = Workload(activation="relu")
    assert signature(relu, Run(10, 10)) == signature(strided, Run(10, 10))
    assert signature(relu, Run(10, 11)) != signature(strided, Run(10, 11))


def test_layers_do_not_change_a_signature():
    assert signature(Workload(layers=1), Run(2, 6)) == signature(Workload(layers=12), Run(2, 6))


def test_packed_sequences_make_another_workload():
    padded = Workload(lengths="uniform")
    packed = replace(padded, packed=True)
    assert packed.key != padded.key
    assert packed.to_json() == padded.to_json() | {"packed": True}
    assert Workload.from_json(padded.to_json()) == padded
    assert packed.rows == padded.rows
    for run in (Run(0, 0), Run(1, 1), Run(7, 8), Run(13, 14)):
        assert signature(packed, run) == signature(padded, run)
    for run in (Run(1, 6), Run(2, 6)):
        assert signature(packed, run) != signature(padded, run)


@pytest.mark.parametrize("field", [name for name in FIELD_NAMES if name not in OPTIONAL_FIELDS])
def test_every_field_but_the_optional_must_be_there(field):
    lacking = {name: value for name, value in Workload().to_json().items() if name != field}
    with pytest.raises(WorkloadError, match=f"{field} missing"):
        Workload.from_json(lacking)
    with pytest.raises(WorkloadError, match="colour unknown"):
        Workload.from_json(Workload().to_json() | {"colour": 1})
