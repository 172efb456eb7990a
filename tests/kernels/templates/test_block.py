"""Block attention: its plan-driven algorithm and shared-memory layout in numpy, its kernels compiled, run on a GPU."""

from dataclasses import replace
from itertools import product
from math import sqrt

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import CompileError
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.template import Geometry
from atoffer_rl.kernels.templates.block import PLAN_NAMES, TEMPLATE, kept_values, pairs_at_once, registers, shared_bytes
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload
from tests.kernels.templates.block_choices import (
    BLOCKINGS,
    COPIED_QUERIES,
    DEFAULT,
    FOUR_SPLITS,
    LOADER,
    RUNS,
    SHORT,
    SMALL_LOADER,
    THREE_GROUPS,
    TWO_SPLITS,
    choice_of,
)
from tests.kernels.templates.checks import (
    assert_all_right,
    assert_rendered_alike,
    assert_right,
    assert_unkept_columns_stay_out,
)

MASKS = [
    "dense",
    "causal",
    "strided",
    "sliding:window=10",
    "longformer:window=8,global=3",
    "bigbird:window=8,global=2,random=1,block=8",
]
SMALL = Workload(batch=2, seq_len=77, heads=3, head_dim=64)
VECTOR, PANEL_ROW, PERIOD = 8, 128, 1024  # elements, bytes, bytes


# ---- The algorithm, by the arrays that the kernel reads.


def dense_attention(q, k, v, keep):
    """softmax(q k^T / sqrt(W)) v in float64 for (batch, heads, seq_len, W); rows that keep nothing are zeros."""
    scores = np.where(keep[:, None], np.einsum("bhik,bhjk->bhij", q, k) / sqrt(q.shape[-1]), -np.inf)
    highest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(highest), 0.0, highest))
    totals = weights.sum(axis=-1, keepdims=True)
    return np.divide(weights, totals, out=np.zeros_like(weights), where=totals > 0) @ v


def unpack(words):
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little").astype(bool)


def read_block(matrix, number, columns, needed):
    """A block of keys or values: what is not needed, or lies beyond the sequence, is zeros and not read."""
    block = np.zeros((columns, matrix.shape[1]))
    places = number * columns + np.flatnonzero(needed)
    block[needed] = matrix[places]
    return block


def attend_tile(q, k, v, blocks, plan, columns):
    """One tile as the kernel does it: block by block, masked, rescaled, accumulated."""
    rows, head_dim = q.shape
    maximum, total, sums = np.full(rows, -np.inf), np.zeros(rows), np.zeros((rows, head_dim))
    for number, bitmap, *words in blocks:
        whole = np.ones(columns, bool)
        needed = unpack(np.array(words[: columns // 32], np.int32)) if bitmap >= 0 else whole
        kept = unpack(plan["block_bitmaps"][bitmap])[:rows] if bitmap >= 0 else whole
        keys, values = (read_block(matrix, number, columns, needed) for matrix in (k, v))
        scores = np.where(kept, q @ keys.T / sqrt(head_dim), -np.inf)
        highest = np.maximum(maximum, scores.max(axis=1))
        base = np.where(np.isinf(highest), 0.0, highest)
        weights, factor = np.exp(scores - base[:, None]), np.exp(maximum - base)
        total = total * factor + weights.sum(axis=1)
        sums = sums * factor[:, None] + weights @ values
        maximum = highest
    return np.where((total == 0.0)[:, None], 0.0, sums / np.where(total == 0.0, 1.0, total)[:, None])


def check_algorithm(workload, choice):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, workload.batch, workload.heads, workload.seq_len, workload.head_dim))
    keep = workload.mask_spec.keep(workload.seq_len)
    expected = dense_attention(q, k, v, keep)
    unkept = np.broadcast_to(~keep.any(axis=1), (workload.batch, workload.seq_len))
    for matrix in (k, v):
        matrix.transpose(0, 2, 1, 3)[unkept] = np.nan
    plan, result = TEMPLATE.program(workload, choice).plan(), np.full_like(q, np.nan)
    lists = plan["block_lists"]
    for batch, head, place in product(range(workload.batch), range(workload.heads), range(lists.shape[1])):
        (tile, count, *_), *blocks = lists[batch if len(lists) > 1 else 0, place]
        rows = slice(tile * choice["tile_rows"], (tile + 1) * choice["tile_rows"])
        inputs = q[batch, head, rows], k[batch, head], v[batch, head]
        result[batch, head, rows] = attend_tile(*inputs, blocks[:count], plan, choice["columns"])
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.fixture
def ragged_workload(tmp_path):
    """A mask for each sequence, with rows that keep nothing, a tile that keeps nothing, and columns no row keeps."""
    keep = np.random.default_rng(1).random((2, 201, 201)) < 0.1
    keep[0, 20:50] = False
    keep[0, 128:] = False
    keep[1, :17] = False
    keep[:, :, 30:35] = False
    keep[1, :, 64:192] = False
    np.save(tmp_path / "mask.npy", keep)
    return replace(SMALL, seq_len=201, mask=f"file:{tmp_path / 'mask.npy'}")


@pytest.mark.parametrize(("tile_rows", "columns"), [(64, 64), (128, 128), (192, 128)])
@pytest.mark.parametrize("seq_len", [1, 64, 77, 200])
@pytest.mark.parametrize("mask", MASKS)
def test_algorithm(mask, seq_len, tile_rows, columns):
    workload = replace(SMALL, batch=1, heads=1, seq_len=seq_len, mask=mask)
    check_algorithm(workload, choice_of(tile_rows=tile_rows, columns=columns))


@pytest.mark.parametrize(("tile_rows", "columns"), [(64, 64), (128, 128)])
def test_algorithm_with_a_mask_for_each_sequence(ragged_workload, tile_rows, columns):
    check_algorithm(ragged_workload, choice_of(tile_rows=tile_rows, columns=columns))


# ---- The layout in shared memory: written as block.cuh does, read as the hardware is documented to.


def panel_offset(row, vector):
    return row * PANEL_ROW + (vector ^ row % 8) * 16


def write_panels(matrix):
    """Bytes of a (rows, 64 n) matrix of 16-bit elements as `panel_offset` places them."""
    rows, columns = matrix.shape
    shared = np.zeros(rows * columns, np.uint16)
    for row, vector in product(range(rows), range(columns // VECTOR)):
        at = vector // 8 * rows * PANEL_ROW + panel_offset(row, vector % 8)
        shared[at // 2 : at // 2 + VECTOR] = matrix[row, vector * VECTOR : (vector + 1) * VECTOR]
    return shared


def swizzled(address):
    """The 128-byte swizzle: bits 4 to 6 XORed with bits 7 to 9."""
    return address ^ (address >> 7 & 7) << 4


def read_along_rows(shared, start, rows):
    """(rows, 16): rows are 128 bytes apart, groups of 8 rows 1024; the depth lies within a row."""
    addresses = [[start + r // 8 * PERIOD + r % 8 * PANEL_ROW + 2 * d for d in range(16)] for r in range(rows)]
    return shared[swizzled(np.array(addresses)) // 2]


def read_transposed(shared, start, panel_bytes, size):
    """(16, size): 64 elements of each depth lie in a panel; depths are 128 bytes apart, groups of 8 of them 1024."""
    addresses = [
        [start + n // 64 * panel_bytes + n % 64 * 2 + d // 8 * PERIOD + d % 8 * PANEL_ROW for n in range(size)]
        for d in range(16)
    ]
    return shared[swizzled(np.array(addresses)) // 2]


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_products_find_keys_and_values(head_dim, columns):
    matrix = np.arange(columns * head_dim, dtype=np.uint16).reshape(columns, head_dim)
    shared, panel_bytes = write_panels(matrix), columns * PANEL_ROW
    for k in range(head_dim // 16):
        start = k // 4 * panel_bytes + k % 4 * 32
        np.testing.assert_array_equal(read_along_rows(shared, start, columns), matrix[:, 16 * k : 16 * (k + 1)])
    for k in range(columns // 16):
        found = read_transposed(shared, k * 16 * PANEL_ROW, panel_bytes, head_dim)
        np.testing.assert_array_equal(found, matrix[16 * k : 16 * (k + 1)])


def transpose_quad(x):
    """What four lanes (first axis) hold in four registers after the exchange in block_warpgroup.cuh."""
    for mask, pairs in ((1, [(0, 1), (2, 3)]), (2, [(0, 2), (1, 3)])):
        sent = {(lane, a): x[lane, a if lane & mask else b] for lane in range(4) for a, b in pairs}
        for lane, (a, b) in product(range(4), pairs):
            x[lane, a if lane & mask else b] = sent[lane ^ mask, a]
    return x


def test_quads_exchange_vectors_for_pairs():
    x = np.arange(16).reshape(4, 4)
    np.testing.assert_array_equal(transpose_quad(x.copy()), x.T)


# ---- What is offered, rendered and compiled.


def possible(workload, run=RUNS[2]):
    return [choice_of(run, **values) for values in BLOCKINGS if not TEMPLATE.impossible(workload, run, values, H100)]


def test_which_blockings_are_possible():
    assert possible(Workload()) == [choice_of(**values) for values in BLOCKINGS]
    assert possible(Workload(heads=6, head_dim=128)) == [choice_of(**values) for values in (LOADER, SHORT, TWO_SPLITS)]


@pytest.mark.parametrize("run", RUNS)
def test_rendering_is_deterministic(run):
    assert_rendered_alike(Workload(), choice_of(run))


def test_arguments_follow_the_run():
    arguments = {run: TEMPLATE.program(SMALL, choice_of(run)).arguments for run in RUNS}
    assert arguments[Run(1, 6)] == ("qkv_raw", "b_qkv", *PLAN_NAMES, "merged")
    assert arguments[Run(2, 5)] == ("qkv", *PLAN_NAMES, "context")


def test_launch_covers_every_tile():
    choice = choice_of(**SMALL_LOADER)
    program = TEMPLATE.program(SMALL, choice)
    assert program.grid == (2 * 3 * 2, 1, 1)
    assert program.block == (256, 1, 1)
    assert TEMPLATE.geometry(SMALL, choice) == Geometry(tile_rows=64, tile_columns=128, blocks=12, threads=256)


def test_shared_memory_holds_queries_and_stages():
    assert shared_bytes(Workload(), DEFAULT) == 1024 + 128 * 128 + 4 * (2 * 64 * 128 + 24)
    assert shared_bytes(Workload(), DEFAULT | {"shared_queries": 0}) == shared_bytes(Workload(), DEFAULT) - 128 * 128


def test_blocks_that_share_rows_have_room_for_what_others_found():
    alone, others = FOUR_SPLITS | {"splits": 1}, 3 * 32 * (32 + 4) * 4
    assert shared_bytes(Workload(), alone) == 1024 + 3 * (2 * 64 * 128 + 24)
    assert shared_bytes(Workload(), FOUR_SPLITS) == shared_bytes(Workload(), alone) + 8 + others
    few, many = (TEMPLATE.geometry(SMALL, choice_of(**values)) for values in (alone, FOUR_SPLITS))
    assert many == replace(few, blocks=4 * few.blocks)


def test_a_loader_gives_its_registers_to_those_that_compute():
    assert registers(DEFAULT) == 128
    assert registers(LOADER) == 232
    assert registers(THREE_GROUPS) == 160
    assert kept_values(Workload(), DEFAULT) == 32 + 32 + 16 + 4
    assert kept_values(Workload(), LOADER) == 32 + 64 + 32 + 8 + 16


def test_pairs_at_once_share_the_cache():
    assert pairs_at_once(Workload(batch=8, seq_len=4096)) == 24
    assert pairs_at_once(Workload(batch=1, seq_len=512)) == 12


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tile_rows": 96}, "64, 128 or 192"),
        ({"tile_rows": 256}, "64, 128 or 192"),
        ({"columns": 96}, "64 or 128"),
        ({"tile_rows": 192}, "need a loader"),
        ({"stages": 2}, "need 3"),
        ({"stages": 16}, "shared memory"),
        ({"stages": 6}, "2 blocks of"),
        ({"splits": 3}, "1, 2 or 4"),
        ({"splits": 2}, "share 64 rows"),
        (SMALL_LOADER | {"splits": 2}, "share 64 rows"),
        (THREE_GROUPS | {"shared_queries": 0}, "registers"),
    ],
)
def test_hard_rules(values, reason):
    assert TEMPLATE.impossible(Workload(), Run(2, 5), DEFAULT, H100) is None
    assert TEMPLATE.impossible(Workload(), Run(2, 5), LOADER, H100) is None
    assert reason in (TEMPLATE.impossible(Workload(), Run(2, 5), DEFAULT | values, H100) or "")


@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        ({"dtype": "float32"}, "sm_90a", "float32"),
        ({"head_dim": 32}, "sm_90a", "head_dim"),
        ({"lengths": "uniform:shortest=1,longest=77"}, "sm_90a", "lengths"),
        ({}, "sm_89", "sm_90a"),
        ({}, "sm_100a", "sm_90a"),
    ],
)
def test_why_not(changes, arch, reason):
    assert TEMPLATE.why_not(SMALL, Run(2, 5), H100) is None
    assert reason in (TEMPLATE.why_not(replace(SMALL, **changes), Run(2, 5), replace(H100, arch=arch)) or "")


def test_work_counts_whole_blocks_and_needed_columns():
    workload = Workload(batch=2, seq_len=256, heads=2, head_dim=64, mask="sliding:window=0")
    work, row_bytes = TEMPLATE.work(workload, choice_of()), 2 * 64 * 2
    plan_bytes = 4 * (2 * (9 + 4) * 4 + 2 * 128 * 2)
    assert work.bytes_read == 3 * 2 * 256 * row_bytes + plan_bytes
    assert work.bytes_written == 2 * 256 * row_bytes
    assert work.flops == 4 * 2 * 2 * 4 * 128 * 64 * 64


@pytest.mark.parametrize(("values", "blocks"), [({}, 1 + 2 + 3 + 4), (LOADER, 2 * (1 + 2)), (SHORT, 1 + 2 + 3 + 4)])
def test_work_counts_what_warpgroups_multiply_up_to_their_diagonals(values, blocks):
    workload = Workload(batch=1, seq_len=256, heads=1, head_dim=64, mask="causal")
    choice = choice_of(**values)
    assert TEMPLATE.work(workload, choice).flops == 4 * blocks * 64 * choice["columns"] * 64


@pytest.mark.parametrize(
    ("run", "dtype", "head_dim", "values"),
    [
        (Run(2, 5), "float16", 64, {}),
        (Run(1, 6), "bfloat16", 64, SMALL_LOADER),
        (Run(1, 5), "float16", 128, LOADER),
        (Run(2, 6), "bfloat16", 64, THREE_GROUPS),
        (Run(2, 5), "bfloat16", 128, SHORT),
        (Run(1, 6), "float16", 64, TWO_SPLITS),
        (Run(2, 6), "float16", 64, COPIED_QUERIES),
        (Run(2, 6), "bfloat16", 64, FOUR_SPLITS),
    ],
)
def test_compiles(run, dtype, head_dim, values):
    workload = Workload(dtype=dtype, heads=768 // head_dim, head_dim=head_dim)
    assert compile_kernel(TEMPLATE.program(workload, choice_of(run, **values)), "sm_90a")


def test_device_code_refuses_what_it_cannot_do():
    with pytest.raises(CompileError, match="a block is copied while two others are in use"):
        compile_kernel(TEMPLATE.program(SMALL, choice_of(stages=2)), "sm_90a")


# ---- On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("run", RUNS)
def test_every_choice_on_gpu(run, dtype):
    workload = Workload(batch=2, seq_len=200, heads=4, head_dim=64, dtype=dtype)
    assert_all_right([(workload, choice) for choice in possible(workload, run)])


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seq_len", [1, 17, 200, 515])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_on_gpu(mask, seq_len, head_dim):
    workload = Workload(batch=2, seq_len=seq_len, heads=3, head_dim=head_dim, mask=mask)
    assert_all_right([(workload, choice_of(Run(1, 6), **LOADER)), (workload, choice_of(Run(2, 5), **SHORT))])


@pytest.mark.gpu
@pytest.mark.parametrize("values", BLOCKINGS)
@pytest.mark.parametrize("run", RUNS)
def test_a_mask_for_each_sequence_on_gpu(ragged_workload, run, values):
    assert_right(ragged_workload, choice_of(run, **values))


@pytest.mark.gpu
@pytest.mark.parametrize("values", BLOCKINGS)
def test_columns_that_no_row_keeps_never_reach_the_result_on_gpu(ragged_workload, values):
    assert_unkept_columns_stay_out(ragged_workload, choice_of(Run(2, 6), **values))
