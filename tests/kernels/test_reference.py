import pytest
import torch

from atoffer_rl.kernels import reference
from atoffer_rl.kernels.formulas import FORMULAS
from atoffer_rl.kernels.inputs import Inputs, draw_inputs, draw_weights
from atoffer_rl.kernels.packing import without_padding
from atoffer_rl.kernels.reference import Precision, batch_chunks, encoder_reference, layer_reference, run_reference
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
    products = FORMULAS["qk_gemm"]

    def counted(workload, entries, qkv):
        scores = products(workload, entries, qkv)
        multiplied.append(scores.shape[1])
        return scores

    monkeypatch.setitem(FORMULAS, "qk_gemm", counted)
    monkeypatch.setattr(reference, "ATTENTION_SCORES", 2 * SMALL.batch * SMALL.seq_len**2)
    parts = run_reference(SMALL, run, inputs, precision)
    assert multiplied == [2, 1]
    assert tuple(parts) == tuple(whole)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value)


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
