"""Memory-bound chains: what is offered, rendered and compiled; on a GPU, what they compute."""

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.kernels.templates.chain import MASK_WORDS, TEMPLATE
from atoffer_rl.operators import reads_mask, run_activations, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import assert_all_right, assert_right

DTYPES = ("float16", "bfloat16", "float32")
RUNS = sorted(TEMPLATE.runs)
BERT = Workload()
SHAPES = {
    "one": {"batch": 1, "seq_len": 1, "heads": 1, "head_dim": 1, "ffn_dim": 1},
    "odd": {"batch": 3, "seq_len": 37, "heads": 3, "head_dim": 33, "ffn_dim": 101},
    "pairs": {"batch": 2, "seq_len": 66, "heads": 5, "head_dim": 10, "ffn_dim": 98},
    "wide": {"batch": 1, "seq_len": 129, "heads": 48, "head_dim": 128, "ffn_dim": 24576},
    "long": {"batch": 1, "seq_len": 5000, "heads": 1, "head_dim": 32, "ffn_dim": 64},
}


def default(workload, run):
    return template_choices("chain", workload, run)[0]


def small(shape, dtype, mask="causal"):
    return Workload(**SHAPES[shape], dtype=dtype, mask=mask)


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_bert_has_a_decision_to_make(run):
    for dtype in DTYPES:
        assert 5 <= len(template_choices("chain", Workload(dtype=dtype), run)) <= 16


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_shape_has_a_choice(shape, dtype):
    for run in RUNS:
        assert template_choices("chain", small(shape, dtype), run)


def test_default_is_the_widest_access_that_divides_rows():
    assert default(BERT, Run(9, 9))["vector"] == 8
    assert default(Workload(dtype="float32"), Run(9, 9))["vector"] == 4
    assert default(BERT, Run(3, 3))["vector"] == 4, "masked scores are float32"
    assert default(Workload(heads=1, head_dim=6), Run(8, 9))["vector"] == 2
    assert default(Workload(head_dim=7, heads=8), Run(6, 6))["vector"] == 1, "heads, not rows, must be whole accesses"


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ((16, 32, 128), "larger than 16 bytes"),
        ((5, 32, 128), "do not divide"),
        ((8, 256, 128), "does not fit"),
        ((8, 128, 128), "without work"),
    ],
)
def test_hard_rules_name_themselves(values, rule):
    named = dict(zip(("vector", "team", "threads"), values, strict=True))
    assert rule in (TEMPLATE.impossible(BERT, Run(9, 9), named, H100) or "")


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_program_names_its_tensors(run):
    program = TEMPLATE.program(BERT, default(BERT, run))
    plan = {MASK_WORDS} if reads_mask(run) else set()
    assert set(program.arguments) == {*run_activations(run), *run_weights(run), *run_results(run), *plan}
    assert set(program.plan()) == plan
    assert program == TEMPLATE.program(BERT, default(BERT, run))
    assert program.source == TEMPLATE.program(BERT, default(BERT, run)).source


def test_mask_words_are_the_mask():
    program = TEMPLATE.program(BERT, default(BERT, Run(3, 4)))
    words = program.plan()[MASK_WORDS]
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    assert np.array_equal(bits.astype(bool), BERT.mask_spec.keep(BERT.seq_len))


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_blocks_cover_all_rows(run):
    workload = small("odd", "float16")
    tensor = layer_tensors(workload)[run_results(run)[0]]
    for choice in template_choices("chain", workload, run):
        geometry = TEMPLATE.geometry(workload, choice)
        assert geometry.blocks * geometry.tile_rows >= tensor.size // tensor.shape[-1]
        assert (geometry.blocks - 1) * geometry.tile_rows < tensor.size // tensor.shape[-1]
        assert TEMPLATE.program(workload, choice).grid == (geometry.blocks, 1, 1)


def test_work_counts_every_tensor_once():
    work = TEMPLATE.work(BERT, default(BERT, Run(8, 9)))
    rows = BERT.rows * BERT.width * 2
    assert (work.bytes_read, work.bytes_written) == (2 * rows + 3 * BERT.width * 2, rows)
    masked = TEMPLATE.work(BERT, default(BERT, Run(3, 4)))
    assert masked.bytes_read == BERT.score_count * 4 + BERT.seq_len**2 // 8
    assert masked.bytes_written == BERT.score_count * 2


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_compiles(run, arch):
    for workload in (BERT, small("odd", "bfloat16"), small("wide", "float32")):
        choice = template_choices("chain", workload, run)[-1]
        assert compile_kernel(TEMPLATE.program(workload, choice), arch).startswith(b"\x7fELF")


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_every_choice_is_right(run):
    workload = Workload(batch=3, seq_len=128)
    assert_all_right([(workload, choice) for choice in template_choices("chain", workload, run)])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_shape_is_right(shape, dtype):
    workload = small(shape, dtype)
    offered = [template_choices("chain", workload, run) for run in RUNS]
    assert_all_right([(workload, choice) for choices in offered for choice in {choices[0], choices[-1]}])


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_are_exact(activation, dtype):
    workload = Workload(batch=1, seq_len=64, dtype=dtype, activation=activation)
    assert_right(workload, default(workload, Run(11, 11)))


@pytest.mark.gpu
@pytest.mark.parametrize("run", [Run(3, 3), Run(3, 4), Run(4, 4)], ids=str)
def test_masks_that_differ_in_a_batch_and_rows_that_keep_nothing(run, tmp_path):
    keep = np.random.default_rng(0).random((2, 45, 45)) < 0.3
    keep[1, 7] = False
    np.save(tmp_path / "mask.npy", keep)
    workload = Workload(batch=2, seq_len=45, heads=3, head_dim=32, mask=f"file:{tmp_path / 'mask.npy'}")
    assert_all_right([(workload, choice) for choice in template_choices("chain", workload, run)])
