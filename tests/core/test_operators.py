"""What runs read and store, from the layer's own data flow."""

from atoffer_rl.operators import (
    ACTIVATION_OPERATOR,
    LAYER_INPUT,
    LAYER_OUTPUT,
    MASK_OPERATOR,
    MERGE_OPERATOR,
    OPERATORS,
    PV_OPERATOR,
    QK_OPERATOR,
    QKV_BIAS_OPERATOR,
    SOFTMAX_OPERATOR,
    run_activations,
    run_results,
    run_weights,
)
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload


def test_the_chain_is_complete():
    known = {LAYER_INPUT}
    for index, operator in enumerate(OPERATORS):
        assert operator.index == index
        assert set(operator.activations) <= known
        known.add(operator.result)
    assert OPERATORS[-1].result == LAYER_OUTPUT


def test_named_operators_are_those_of_the_layer():
    named = {
        QKV_BIAS_OPERATOR: "qkv",
        QK_OPERATOR: "scores",
        MASK_OPERATOR: "masked_scores",
        SOFTMAX_OPERATOR: "probs",
        PV_OPERATOR: "context",
        MERGE_OPERATOR: "merged",
        ACTIVATION_OPERATOR: "ffn1_act",
    }
    assert {index: OPERATORS[index].result for index in named} == named


def test_a_run_reads_what_it_does_not_make():
    assert run_activations(Run(2, 6)) == ("qkv",)
    assert run_activations(Run(4, 5)) == ("masked_scores", "qkv")
    assert run_activations(Run(7, 8)) == ("merged", "x")
    assert run_activations(Run(12, 13)) == ("ffn1_act", "attn_norm")
    assert run_activations(Run(0, 14)) == ("x",)
    assert run_weights(Run(8, 11)) == ("b_out", "gamma_1", "beta_1", "w_ffn1", "b_ffn1")


def test_a_run_stores_what_is_read_later():
    assert run_results(Run(2, 6)) == ("merged",)
    assert run_results(Run(0, 1)) == ("qkv",)
    assert run_results(Run(1, 2)) == ("qkv", "scores")
    assert run_results(Run(8, 9)) == ("attn_norm",)
    assert run_results(Run(9, 12)) == ("attn_norm", "ffn2_raw")
    assert run_results(Run(9, 13)) == ("ffn_sum",)
    assert run_results(Run(0, 14)) == ("y",)


def test_every_tensor_has_a_shape():
    workload = Workload(batch=2, seq_len=5, heads=3, head_dim=32, ffn_dim=7)
    tensors = layer_tensors(workload)
    names = {LAYER_INPUT} | {op.result for op in OPERATORS} | {name for op in OPERATORS for name in op.weights}
    assert set(tensors) == names
    assert tensors["qkv"].shape == (2, 5, 288)
    assert tensors["scores"].shape == (2, 3, 5, 5)
    assert tensors["scores"].size_bytes == 4 * 2 * 3 * 25
    assert tensors["w_ffn2"].shape == (96, 7)
    assert tensors["y"].size_bytes == 2 * 2 * 5 * 96
