"""Rowwise attention: what is offered, rendered and compiled; on a GPU, what it computes."""

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.kernels.templates.rowwise import MASK_COLUMNS, MASK_STARTS, TEMPLATE, longest_list, visited_pairs
from atoffer_rl.masks import MAX_SEQ_LEN
from atoffer_rl.operators import reads_mask, run_activations, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import assert_all_right, assert_right

DTYPES = ("float16", "bfloat16", "float32")
RUNS = sorted(TEMPLATE.runs)
BERT = Workload()
SHAPES = {
    "one": {"batch": 1, "seq_len": 1, "heads": 1, "head_dim": 1},
    "odd": {"batch": 3, "seq_len": 37, "heads": 3, "head_dim": 33},
    "small heads": {"batch": 2, "seq_len": 50, "heads": 3, "head_dim": 32},
    "uneven heads": {"batch": 1, "seq_len": 65, "heads": 2, "head_dim": 80},
    "large heads": {"batch": 2, "seq_len": 61, "heads": 2, "head_dim": 128},
    "huge heads": {"batch": 1, "seq_len": 19, "heads": 1, "head_dim": 1024},
}
MASKS = ("dense", "causal", "strided", "fixed", "sliding:window=8", "longformer:window=4,global=2", "bigbird:block=8")


def default(workload, run):
    return template_choices("rowwise", workload, run)[0]


def batch_mask(folder, batch, seq_len):
    """A file of masks that differ in the batch; one row keeps nothing, and no row keeps column 5."""
    keep = np.random.default_rng(0).random((batch, seq_len, seq_len)) < 0.3
    keep[-1, 7] = False
    keep[:, :, 5] = False
    np.save(folder / "mask.npy", keep)
    return f"file:{folder / 'mask.npy'}"


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_bert_has_a_decision_to_make(run):
    for dtype in DTYPES:
        assert 6 <= len(template_choices("rowwise", Workload(dtype=dtype), run)) <= 16


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_shape_has_a_choice(shape, dtype):
    for run in RUNS:
        assert template_choices("rowwise", Workload(**SHAPES[shape], dtype=dtype), run)


def test_the_longest_possible_rows_have_a_choice():
    longest = Workload(batch=1, seq_len=MAX_SEQ_LEN, heads=1, head_dim=64, mask="dense")
    for run in (Run(2, 2), Run(4, 6), Run(5, 5)):
        assert default(longest, run)["warps"] == 1


def test_heads_that_a_warp_cannot_hold_are_refused_in_words():
    assert "1024" in (TEMPLATE.why_not(Workload(heads=1, head_dim=2048), Run(2, 6), H100) or "")


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ((8, 16, 1), "no work"),
        ((8, 1, 1), "registers"),
        ((8, 2, 4), "registers"),
        ((32, 8, 1), "shared memory"),
    ],
)
def test_hard_rules_name_themselves(values, rule):
    named = dict(zip(("warps", "lanes", "unroll"), values, strict=True))
    workload = Workload(batch=1, seq_len=2048, mask="dense")
    assert rule in (TEMPLATE.impossible(workload, Run(2, 6), named, H100) or "")


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_program_names_its_tensors(run):
    program = TEMPLATE.program(BERT, default(BERT, run))
    plan = {MASK_STARTS, MASK_COLUMNS} if reads_mask(run) else set()
    assert set(program.arguments) == {*run_activations(run), *run_weights(run), *run_results(run), *plan}
    assert len(set(program.arguments)) == len(program.arguments)
    assert set(program.plan()) == plan
    assert program.source == TEMPLATE.program(BERT, default(BERT, run)).source


def test_runs_without_the_mask_do_not_depend_on_it():
    for run in RUNS:
        programs = [TEMPLATE.program(w, default(w, run)) for w in (BERT, Workload(mask="fixed"))]
        assert (programs[0] == programs[1]) or reads_mask(run)


def test_staged_rows_hold_the_longest_list_or_all_columns():
    longest = longest_list(BERT.mask_spec, BERT.seq_len)
    assert longest == BERT.mask_spec.keep(BERT.seq_len).sum(axis=2).max()
    fused, stored = default(BERT, Run(2, 6)), default(BERT, Run(2, 4))
    assert TEMPLATE.program(BERT, fused).shared_bytes == 4 * longest * fused["warps"]
    assert TEMPLATE.program(BERT, stored).shared_bytes == 4 * BERT.seq_len * stored["warps"]


def test_a_mask_that_keeps_nothing_is_offered(tmp_path):
    np.save(tmp_path / "mask.npy", np.zeros((16, 16), bool))
    workload = Workload(batch=1, seq_len=16, mask=f"file:{tmp_path / 'mask.npy'}")
    program = TEMPLATE.program(workload, default(workload, Run(1, 6)))
    assert program.plan()[MASK_COLUMNS].size
    assert not program.plan()[MASK_STARTS].any()


def test_work_counts_kept_pairs(tmp_path):
    kept = int(BERT.mask_spec.keep(BERT.seq_len).sum())
    assert visited_pairs(BERT, Run(2, 6)) == kept * BERT.batch * BERT.heads
    assert visited_pairs(BERT, Run(2, 2)) == BERT.score_count
    fused, dense = (TEMPLATE.work(BERT, default(BERT, run)) for run in (Run(2, 6), Run(2, 2)))
    rows = BERT.rows * BERT.width * 2
    assert fused.bytes_written == rows
    assert dense.bytes_read == 2 * rows
    assert dense.flops == BERT.score_count * 2 * BERT.head_dim
    assert fused.flops < dense.flops / 2
    varied = Workload(batch=2, seq_len=40, heads=3, mask=batch_mask(tmp_path, 2, 40))
    assert visited_pairs(varied, Run(3, 5)) == 3 * varied.mask_spec.keep(40).sum()


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_blocks_cover_all_rows(run):
    workload = Workload(**SHAPES["odd"])
    for choice in template_choices("rowwise", workload, run):
        geometry = TEMPLATE.geometry(workload, choice)
        tiles = -(-workload.seq_len // geometry.tile_rows)
        assert geometry.blocks == tiles * workload.heads * workload.batch
        assert TEMPLATE.program(workload, choice).block == (geometry.threads, 1, 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_compiles(run, arch):
    for workload in (BERT, Workload(**SHAPES["uneven heads"], dtype="float32")):
        choice = template_choices("rowwise", workload, run)[-1]
        assert compile_kernel(TEMPLATE.program(workload, choice), arch).startswith(b"\x7fELF")


@pytest.mark.gpu
@pytest.mark.parametrize("run", [Run(1, 3), Run(1, 6), Run(2, 4), Run(3, 5), Run(5, 6)], ids=str)
def test_every_choice_is_right(run):
    workload = Workload(batch=2, seq_len=100, heads=3)
    assert_all_right([(workload, choice) for choice in template_choices("rowwise", workload, run)])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_run_is_right_for_every_shape(shape, dtype):
    workload = Workload(**SHAPES[shape], dtype=dtype)
    assert_all_right([(workload, default(workload, run)) for run in RUNS])


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks_are_right(mask, dtype):
    workload = Workload(batch=2, seq_len=77, heads=2, dtype=dtype, mask=mask)
    runs = (Run(1, 4), Run(2, 3), Run(2, 6), Run(3, 6))
    assert_all_right([(workload, template_choices("rowwise", workload, run)[-1]) for run in runs])


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS, ids=str)
def test_masks_that_differ_in_a_batch_and_rows_that_keep_nothing(run, tmp_path):
    workload = Workload(batch=2, seq_len=45, heads=3, mask=batch_mask(tmp_path, 2, 45))
    assert_right(workload, default(workload, run))


@pytest.mark.gpu
def test_rows_beyond_the_static_shared_memory_are_right():
    workload = Workload(batch=1, seq_len=4099, heads=1, mask="dense")
    assert_right(workload, default(workload, Run(2, 5)))


@pytest.mark.gpu
@pytest.mark.parametrize("run", [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6), Run(3, 5)], ids=str)
def test_columns_that_no_row_keeps_are_not_read(run, tmp_path):
    import torch

    from atoffer_rl.kernels.inputs import Inputs, draw_inputs
    from atoffer_rl.kernels.launch import load_choice
    from atoffer_rl.kernels.reference import run_reference

    workload = Workload(batch=2, seq_len=45, heads=3, mask=batch_mask(tmp_path, 2, 45))
    inputs = draw_inputs(workload, run, Inputs.RANDOM, 0, "cuda")
    expected = run_reference(workload, run, inputs)
    for name in ("qkv", "qkv_raw"):
        if name in inputs:
            inputs[name][:, 5, workload.width :] = torch.nan
    results = {name: torch.full_like(value, torch.nan, dtype=torch.float16) for name, value in expected.items()}
    pointers = {name: tensor.data_ptr() for name, tensor in (inputs | results).items()}
    load_choice(workload, default(workload, run)).launch(pointers, torch.cuda.current_stream().cuda_stream)
    for name, value in expected.items():
        torch.testing.assert_close(results[name].double(), value, rtol=0.01, atol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("run", [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)], ids=str)
def test_scores_that_are_too_large_to_store(run):
    workload = Workload(batch=16, seq_len=4096)
    assert_right(workload, default(workload, run))
