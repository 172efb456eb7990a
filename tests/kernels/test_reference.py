from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoffer_rl.kernels import reference
from atoffer_rl.kernels.reference import (
    PEAK,
    Inputs,
    Precision,
    batch_chunks,
    draw_inputs,
    draw_weights,
    encoder_reference,
    layer_reference,
    pack_rows,
    run_reference,
    sequence_tensors,
    softmax_rows,
    unpack_rows,
    without_padding,
)
from atoffer_rl.operators import OPERATOR_COUNT, run_results
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

SMALL = Workload(batch=2, seq_len=19, heads=3, head_dim=32, ffn_dim=70, layers=2, dtype="float32")


def torch_layer(workload, x, w):
    """The layer as torch's own functions give it, with no view of the operator table."""
    d, functional = workload.width, torch.nn.functional
    query, key, value = functional.linear(x, w["w_qkv"], w["b_qkv"]).split(d, dim=-1)
    heads = [t.view(x.shape[0], -1, workload.heads, workload.head_dim).transpose(1, 2) for t in (query, key, value)]
    keep = torch.tensor(workload.mask_spec.keep(workload.seq_len))[:, None]
    merged = functional.scaled_dot_product_attention(*heads, attn_mask=keep).transpose(1, 2).reshape(x.shape)
    total = functional.linear(merged, w["w_out"], w["b_out"]) + x
    norm = functional.layer_norm(total, (d,), w["gamma_1"], w["beta_1"], workload.epsilon)
    hidden = functional.gelu(functional.linear(norm, w["w_ffn1"], w["b_ffn1"]))
    total = functional.linear(hidden, w["w_ffn2"], w["b_ffn2"]) + norm
    return functional.layer_norm(total, (d,), w["gamma_2"], w["beta_2"], workload.epsilon)


@pytest.mark.parametrize("mask", ["strided", "sliding:window=6", "dense"])
def test_layer_agrees_with_torch(mask):
    workload = Workload(**SMALL.to_json() | {"mask": mask})
    x = draw_inputs(workload, Run(0, 0), Inputs.RANDOM, 3, "cpu")["x"].double()
    weights = {name: value.double() for name, value in draw_weights(workload, 4, "cpu").items()}
    torch.testing.assert_close(layer_reference(workload, x, weights), torch_layer(workload, x, weights))


def test_encoder_applies_its_layers_in_turn():
    x = draw_inputs(SMALL, Run(0, 0), Inputs.RANDOM, 0, "cpu")["x"]
    first, second = draw_weights(SMALL, 1, "cpu"), draw_weights(SMALL, 2, "cpu")
    by_hand = layer_reference(SMALL, layer_reference(SMALL, x, first), second)
    torch.testing.assert_close(encoder_reference(SMALL, x, [first, second]), by_hand)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", Inputs)
def test_every_run_stores_its_results_near_the_truth(dtype, kind):
    workload = Workload(**SMALL.to_json() | {"dtype": dtype})
    for run in [Run(i, i) for i in range(OPERATOR_COUNT)] + [Run(0, 14), Run(1, 6), Run(8, 9), Run(11, 13)]:
        inputs = draw_inputs(workload, run, kind, 0, "cpu")
        exact = run_reference(workload, run, inputs)
        eager = run_reference(workload, run, inputs, Precision.EAGER)
        assert tuple(exact) == tuple(eager) == run_results(run)
        for name, truth in exact.items():
            assert truth.shape == layer_tensors(workload)[name].shape
            assert str(eager[name].dtype) == f"torch.{layer_tensors(workload)[name].dtype.value}"
            assert torch.equal(eager[name].isneginf(), truth.isneginf())
            assert not truth.isnan().any()
            if kind is not Inputs.PEAKED:
                finite = truth.isfinite()
                error = (eager[name].double() - truth)[finite].abs().max()
                assert error <= 8 * workload.element.epsilon * truth[finite].abs().max()


def test_cutting_a_layer_anywhere_gives_the_same_truth():
    inputs = draw_inputs(SMALL, Run(0, 14), Inputs.RANDOM, 0, "cpu")
    whole = run_reference(SMALL, Run(0, 14), inputs)["y"]
    for last in range(OPERATOR_COUNT - 1):
        stored = inputs | run_reference(SMALL, Run(0, last), inputs)
        torch.testing.assert_close(run_reference(SMALL, Run(last + 1, 14), stored)["y"], whole)


def test_a_slice_of_the_batch_is_a_slice_of_the_result(tmp_path):
    import numpy as np

    np.save(tmp_path / "keep.npy", np.random.default_rng(0).random((2, 19, 19)) < 0.4)
    workload = Workload(**SMALL.to_json() | {"mask": f"file:{tmp_path / 'keep.npy'}"})
    inputs = draw_inputs(workload, Run(1, 6), Inputs.RANDOM, 0, "cpu")
    whole = run_reference(workload, Run(1, 6), inputs)["merged"]
    assert batch_chunks(workload, 1) == [slice(0, 1), slice(1, 2)]
    parts = [
        run_reference(workload, Run(1, 6), inputs, entries=entries)["merged"] for entries in batch_chunks(workload, 1)
    ]
    torch.testing.assert_close(torch.cat(parts), whole)


@pytest.mark.parametrize("run", [Run(2, 5), Run(1, 6), Run(0, 14)])
@pytest.mark.parametrize("precision", Precision)
def test_a_few_heads_at_a_time_give_the_same(run, precision, monkeypatch):
    inputs = draw_inputs(SMALL, run, Inputs.RANDOM, 0, "cpu")
    whole = run_reference(SMALL, run, inputs, precision)
    multiplied = []
    products = reference._FORMULAS["qk_gemm"]

    def counted(workload, entries, qkv):
        scores = products(workload, entries, qkv)
        multiplied.append(scores.shape[1])
        return scores

    monkeypatch.setitem(reference._FORMULAS, "qk_gemm", counted)
    monkeypatch.setattr(reference, "ATTENTION_SCORES", 2 * SMALL.batch * SMALL.seq_len**2)
    parts = run_reference(SMALL, run, inputs, precision)
    assert multiplied == [2, 1]
    assert tuple(parts) == tuple(whole)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value)


def test_codes_are_the_same_in_pieces(monkeypatch):
    whole = draw_inputs(SMALL, Run(3, 4), Inputs.CODED, 0, "cpu")["scores"]
    monkeypatch.setattr(reference, "CODES_AT_ONCE", 100)
    assert torch.equal(draw_inputs(SMALL, Run(3, 4), Inputs.CODED, 0, "cpu")["scores"], whole)


def test_softmax_of_a_row_that_keeps_nothing_is_zero():
    rows = torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf], [-torch.inf, 900.0]])
    assert softmax_rows(rows).tolist() == [[0.5, 0.5], [0.0, 0.0], [0.0, 1.0]]


def test_inputs_repeat_and_are_what_their_kind_says():
    peaked = draw_inputs(SMALL, Run(2, 2), Inputs.PEAKED, 5, "cpu")["qkv"]
    assert torch.equal(peaked, draw_inputs(SMALL, Run(2, 2), Inputs.PEAKED, 5, "cpu")["qkv"])
    assert not torch.equal(peaked, draw_inputs(SMALL, Run(2, 2), Inputs.PEAKED, 6, "cpu")["qkv"])
    assert peaked[..., : SMALL.width].std() > PEAK / 2
    assert peaked[..., SMALL.width :].std() < 2
    coded = draw_inputs(SMALL, Run(0, 0), Inputs.CODED, 0, "cpu")
    assert torch.equal(coded["x"] * 16, (coded["x"] * 16).round())
    rows = coded["x"].view(-1, SMALL.width)
    assert len(rows.unique(dim=0)) == len(rows)
    assert len(rows.T.unique(dim=0)) == SMALL.width


def test_probabilities_drawn_are_row_stochastic_under_the_mask():
    probs = draw_inputs(SMALL, Run(5, 5), Inputs.RANDOM, 0, "cpu")["probs"]
    keep = torch.tensor(SMALL.mask_spec.keep(SMALL.seq_len))[:, None].expand_as(probs)
    torch.testing.assert_close(probs.sum(-1), torch.ones(probs.shape[:-1]))
    assert not probs[~keep].any()
    scores = draw_inputs(SMALL, Run(4, 4), Inputs.RANDOM, 0, "cpu")["masked_scores"]
    assert torch.equal(scores.isneginf(), ~keep)


@pytest.mark.parametrize("mask", ["strided", "bigbird:block=4,window=2,random=1"])
def test_a_padded_sequence_is_the_short_one_and_zeros(mask):
    padded = Workload(**SMALL.to_json() | {"mask": mask, "lengths": "list:11/0"})
    inputs = draw_inputs(padded, Run(1, 6), Inputs.RANDOM, 0, "cpu")
    merged = run_reference(padded, Run(1, 6), inputs)["merged"]
    keep = padded.mask_spec.keep(19)[:, :11, :11]
    qkv = (inputs["qkv_raw"] + inputs["b_qkv"])[:1, :11].double()
    query, key, value = qkv.view(1, 11, 3, 3, 32).permute(2, 0, 3, 1, 4)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=torch.tensor(keep)[:, None]
    )
    torch.testing.assert_close(merged[0, :11], attended.transpose(1, 2).reshape(11, 96), rtol=1e-5, atol=1e-5)
    assert not merged[0, 11:].any()
    assert not merged[1].any()


def test_what_lies_beyond_a_length_reaches_no_valid_row():
    padded = Workload(**SMALL.to_json() | {"lengths": "list:11/19"})
    x = draw_inputs(padded, Run(0, 0), Inputs.RANDOM, 0, "cpu")["x"]
    weights, lengths = [draw_weights(padded, 1, "cpu")], torch.tensor([11, 19])
    clean = encoder_reference(padded, x, weights, lengths=lengths)
    x[0, 11:] = 1e6
    other = encoder_reference(padded, x, weights, lengths=lengths)
    torch.testing.assert_close(without_padding(padded, other, lengths), without_padding(padded, clean, lengths))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_rows_are_packed_and_unpacked_again(lengths):
    packed = Workload(
        batch=len(lengths), seq_len=9, heads=1, head_dim=8, ffn_dim=8, lengths="uniform:shortest=0", packed=True
    )
    drawn = torch.tensor(lengths, dtype=torch.int32)
    rows = torch.arange(1.0, packed.rows * 8 + 1).view(-1, 9, 8)
    together = pack_rows(packed, rows, drawn)
    assert torch.equal(
        together.view(-1, 8)[: sum(lengths)], torch.cat([one[:n] for one, n in zip(rows, lengths, strict=True)])
    )
    assert not together.view(-1, 8)[sum(lengths) :].any()
    apart = unpack_rows(packed, together + 0.0, drawn)
    assert torch.equal(apart, without_padding(replace(packed, packed=False), rows, drawn))
    assert torch.equal(pack_rows(packed, apart, drawn), together)
    starts = sequence_tensors(packed, drawn)["offsets"]
    assert starts.dtype == torch.int32
    for start, n, one in zip(starts.tolist(), lengths, rows, strict=True):
        assert torch.equal(together.view(-1, 8)[start : start + n], one[:n])


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("lengths", ["list:11/19", "list:0/4", "list:19/19"])
def test_packed_sequences_are_what_each_is_alone(lengths, precision):
    packed = Workload(**SMALL.to_json() | {"lengths": lengths, "packed": True})
    x = draw_inputs(packed, Run(0, 0), Inputs.RANDOM, 0, "cpu")["x"]
    weights = [draw_weights(packed, seed, "cpu") for seed in (1, 2)]
    drawn = torch.tensor([int(n) for n in lengths[5:].split("/")])
    y = encoder_reference(packed, x, weights, precision, drawn).view(-1, packed.width)
    rows, first = x.view(-1, packed.width), 0
    for n in drawn.tolist():
        if n:
            alone = Workload(**SMALL.to_json() | {"batch": 1, "seq_len": n})
            own = encoder_reference(alone, rows[first : first + n][None], weights, precision)[0]
            torch.testing.assert_close(y[first : first + n], own)
        first += n


def test_lengths_are_extreme_and_inputs_as_they_were():
    padded = Workload(**SMALL.to_json() | {"lengths": "uniform:shortest=0"})
    seen = {n for kind in Inputs for n in draw_inputs(padded, Run(3, 3), kind, 0, "cpu")["lengths"].tolist()}
    assert {0, 1, 19} <= seen
    full, other = (draw_inputs(w, Run(2, 6), Inputs.RANDOM, 0, "cpu")["qkv"] for w in (SMALL, padded))
    assert torch.equal(full, other)
    probs = draw_inputs(padded, Run(5, 5), Inputs.RANDOM, 0, "cpu")["probs"]
    lengths = draw_inputs(padded, Run(2, 6), Inputs.RANDOM, 0, "cpu")["lengths"]
    for sequence, length in zip(probs, lengths, strict=True):
        assert not sequence[:, length:].any()
        assert not sequence[..., length:].any()
