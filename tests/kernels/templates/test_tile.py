"""Tile attention: its plan-driven algorithm in numpy against dense attention, its kernels compiled, run on a GPU."""

from dataclasses import replace
from itertools import product
from math import sqrt

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import CompileError
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.kernels.space import MAX_CHOICES
from atoffer_rl.kernels.template import Geometry
from atoffer_rl.kernels.templates.tile import PLAN_NAMES, TEMPLATE, kept_values, shared_bytes
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import (
    assert_all_right,
    assert_rendered_alike,
    assert_right,
    assert_unkept_columns_stay_out,
)

RUNS = [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)]
ARCHS = ["sm_80", "sm_86", "sm_89", "sm_90a"]
MASKS = [
    "dense",
    "causal",
    "strided",
    "fixed",
    "sliding:window=10",
    "longformer:window=8,global=3",
    "bigbird:window=8,global=2,random=1,block=8",
]
DEFAULT = {"tile_rows": 64, "chunk": 64, "warps": 4, "stages": 2}
SMALL = Workload(batch=2, seq_len=77, heads=3, head_dim=32)


def choice_of(run=RUNS[2], **values):
    return Choice(run, "tile", tuple((DEFAULT | values).items()))


def dense_attention(q, k, v, keep):
    """softmax(q k^T / sqrt(W)) v in float64 for (batch, heads, seq_len, W); rows that keep nothing are zeros."""
    scores = np.where(keep[:, None], np.einsum("bhik,bhjk->bhij", q, k) / sqrt(q.shape[-1]), -np.inf)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(highest), 0.0, highest))
    totals = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0) @ v


def unpack_bits(words, columns):
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")[..., :columns].astype(bool)


def attend_tile(q, k, v, column_chunks, kept_chunks):
    """One tile as the kernel does it: gather a chunk (padding is zeros), mask, rescale, accumulate."""
    rows, head_dim = q.shape
    maximum, total, sums = np.full(rows, -np.inf), np.zeros(rows), np.zeros((rows, head_dim))
    for columns, kept in zip(column_chunks, kept_chunks, strict=True):
        keys, values = (np.where((columns >= 0)[:, None], matrix[columns], 0.0) for matrix in (k, v))
        scores = np.where(kept[:rows], q @ keys.T / sqrt(head_dim), -np.inf)
        highest = np.maximum(maximum, scores.max(axis=1))
        base = np.where(np.isinf(highest), 0.0, highest)
        weights, factor = np.exp(scores - base[:, None]), np.exp(maximum - base)
        total = total * factor + weights.sum(axis=1)
        sums = sums * factor[:, None] + weights @ values
        maximum = highest
    return np.where((total == 0.0)[:, None], 0.0, sums / np.where(total == 0.0, 1.0, total)[:, None])


def tiled_attention(q, k, v, plan, choice):
    """All tiles by the arrays that the kernel reads."""
    starts, columns, words = (plan[name] for name in PLAN_NAMES)
    result, tiles, tile_rows = np.full_like(q, np.nan), starts.shape[1] - 1, choice["tile_rows"]
    for batch, head, tile in product(range(q.shape[0]), range(q.shape[1]), range(tiles)):
        mask = batch if len(starts) > 1 else 0
        chunks = [mask * tiles + tile, *range(starts[mask, tile], starts[mask, tile + 1])]
        rows = slice(tile * tile_rows, (tile + 1) * tile_rows)
        kept = unpack_bits(words[chunks], choice["chunk"])
        result[batch, head, rows] = attend_tile(
            q[batch, head, rows], k[batch, head], v[batch, head], columns[chunks], kept
        )
    return result


def check_algorithm(workload, choice):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, workload.batch, workload.heads, workload.seq_len, workload.head_dim))
    keep = workload.mask_spec.keep(workload.seq_len)
    expected = dense_attention(q, k, v, keep)
    unkept = np.broadcast_to(~keep.any(axis=1), (workload.batch, workload.seq_len))
    for matrix in (k, v):
        matrix.transpose(0, 2, 1, 3)[unkept] = np.nan
    plan = TEMPLATE.program(workload, choice).plan()
    np.testing.assert_allclose(tiled_attention(q, k, v, plan, choice), expected, rtol=1e-12, atol=1e-12)


@pytest.fixture
def ragged_workload(tmp_path):
    """A mask for each sequence, with rows that keep nothing, a tile that keeps nothing, and columns no row keeps."""
    keep = np.random.default_rng(1).random((2, 77, 77)) < 0.1
    keep[0, 20:50] = False
    keep[1, :17] = False
    keep[:, :, 30:35] = False
    np.save(tmp_path / "mask.npy", keep)
    return replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")


@pytest.mark.parametrize(("tile_rows", "chunk"), [(16, 16), (32, 64), (64, 32), (128, 128)])
@pytest.mark.parametrize("seq_len", [1, 16, 77, 131])
@pytest.mark.parametrize("mask", MASKS)
def test_algorithm(mask, seq_len, tile_rows, chunk):
    workload = replace(SMALL, batch=1, heads=1, seq_len=seq_len, mask=mask)
    check_algorithm(workload, choice_of(tile_rows=tile_rows, chunk=chunk, warps=tile_rows // 16))


@pytest.mark.parametrize(("tile_rows", "chunk"), [(16, 16), (32, 64), (64, 32)])
def test_algorithm_with_a_mask_for_each_sequence(ragged_workload, tile_rows, chunk):
    check_algorithm(ragged_workload, choice_of(tile_rows=tile_rows, chunk=chunk, warps=tile_rows // 16))


@pytest.mark.parametrize("run", RUNS)
def test_bert_base_has_16_to_28_choices_default_first(run):
    choices = template_choices("tile", Workload(), run)
    assert 16 <= len(choices) <= 28 <= MAX_CHOICES
    assert choices[0] == choice_of(run)


@pytest.mark.parametrize("run", RUNS)
def test_rendering_is_deterministic(run):
    assert_rendered_alike(Workload(), choice_of(run))


def test_arguments_follow_the_run():
    arguments = {run: TEMPLATE.program(SMALL, choice_of(run)).arguments for run in RUNS}
    assert arguments[Run(1, 6)] == ("qkv_raw", "b_qkv", *PLAN_NAMES, "merged")
    assert arguments[Run(2, 5)] == ("qkv", *PLAN_NAMES, "context")


def test_launch_covers_every_tile():
    choice = choice_of(tile_rows=32, warps=4)
    program = TEMPLATE.program(SMALL, choice)
    assert program.grid == (3 * 3 * 2, 1, 1)
    assert program.block == (128, 1, 1)
    assert TEMPLATE.geometry(SMALL, choice) == Geometry(tile_rows=32, tile_columns=64, blocks=18, threads=128)


def test_stages_and_partial_sums_share_memory():
    workload = Workload(head_dim=64)
    assert shared_bytes(workload, DEFAULT) == 2 * 2 * 64 * 128
    few_stages = DEFAULT | {"chunk": 32, "warps": 8, "stages": 1}
    assert shared_bytes(workload, few_stages) == 64 * 128 + 4 * 32 * 36 * 4


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tile_rows": 24}, "multiple of 16"),
        ({"warps": 6}, "warps must be a multiple"),
        ({"tile_rows": 128, "warps": 16}, "warps must be a multiple"),
        ({"tile_rows": 128, "chunk": 16, "warps": 8, "stages": 0}, "at least one stage"),
        ({"chunk": 16, "warps": 8}, "16, 32, 64 or 128 columns"),
        ({"chunk": 48, "warps": 4}, "16, 32, 64 or 128 columns"),
        ({"chunk": 128, "stages": 8}, "shared memory"),
        ({"chunk": 128, "stages": 1}, "registers"),
    ],
)
def test_hard_rules(values, reason):
    why = TEMPLATE.impossible(Workload(heads=6, head_dim=128), Run(2, 5), DEFAULT | values, H100)
    assert why is not None
    assert reason in why


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"dtype": "float32"}, "float32"), ({"head_dim": 48}, "head_dim"), ({"head_dim": 256}, "head_dim")],
)
def test_why_not(changes, reason):
    why = TEMPLATE.why_not(replace(SMALL, **changes), Run(2, 5), H100)
    assert why is not None
    assert reason in why


def test_why_not_on_an_old_device():
    old = replace(H100, arch="sm_75")
    assert "sm_80" in (TEMPLATE.why_not(SMALL, Run(2, 5), old) or "")
    assert TEMPLATE.why_not(SMALL, Run(2, 5), H100) is None


def test_work_counts_gathered_columns():
    workload = Workload(batch=2, seq_len=128, heads=2, head_dim=32, mask="sliding:window=0")
    work = TEMPLATE.work(workload, choice_of())
    row_bytes = 2 * 32 * 2
    plan_bytes = 4 * 3 + 4 * 2 * 64 + 4 * 2 * 64 * 2
    assert work.bytes_read == 3 * 2 * 128 * row_bytes + plan_bytes
    assert work.bytes_written == 2 * 128 * row_bytes
    assert work.flops == 4 * 2 * 2 * 128 * 64 * 32


def test_kept_values_grow_with_columns_and_copies():
    workload = Workload(head_dim=64)
    assert kept_values(workload, DEFAULT) == 32 + 32 + 16 + 4
    assert kept_values(workload, DEFAULT | {"warps": 8}) == 32 + 16 + 16 + 2


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("run", "dtype", "head_dim", "values"),
    [
        (Run(2, 5), "float16", 64, {}),
        (Run(1, 6), "bfloat16", 64, {"tile_rows": 16, "warps": 4}),
        (Run(1, 5), "float16", 128, {"tile_rows": 128, "chunk": 32, "warps": 8, "stages": 1}),
        (Run(2, 6), "bfloat16", 32, {"tile_rows": 32, "chunk": 128, "stages": 3}),
    ],
)
def test_compiles(run, dtype, head_dim, values, arch):
    workload = Workload(dtype=dtype, heads=768 // head_dim, head_dim=head_dim)
    assert compile_kernel(TEMPLATE.program(workload, choice_of(run, **values)), arch)


def test_device_code_refuses_what_it_cannot_do():
    with pytest.raises(CompileError, match="warps split the rows first"):
        compile_kernel(TEMPLATE.program(SMALL, choice_of(warps=6)), "sm_90a")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("run", RUNS)
def test_every_choice_on_gpu(run, dtype):
    workload = Workload(batch=2, seq_len=200, heads=4, head_dim=64, dtype=dtype)
    assert_all_right([(workload, choice) for choice in template_choices("tile", workload, run)])


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("seq_len", [1, 17, 77, 259])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_on_gpu(mask, seq_len, head_dim):
    workload = Workload(batch=2, seq_len=seq_len, heads=3, head_dim=head_dim, mask=mask)
    cases = [(Run(1, 6), {}), (Run(2, 5), {"tile_rows": 32, "chunk": 64, "warps": 4})]
    assert_all_right([(workload, choice_of(run, **values)) for run, values in cases])


@pytest.mark.gpu
@pytest.mark.parametrize("values", [{}, {"tile_rows": 16, "chunk": 16, "warps": 1}, {"tile_rows": 16, "warps": 4}])
@pytest.mark.parametrize("run", RUNS)
def test_a_mask_for_each_sequence_on_gpu(ragged_workload, run, values):
    assert_right(ragged_workload, choice_of(run, **values))


@pytest.mark.gpu
def test_columns_that_no_row_keeps_never_reach_the_result_on_gpu(ragged_workload):
    assert_unkept_columns_stay_out(ragged_workload, choice_of(Run(2, 6)))
