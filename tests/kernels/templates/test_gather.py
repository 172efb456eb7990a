"""Gathering attention: rendered, compiled, run on an emulated machine and on a GPU."""

import ctypes
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import CompileError
from atoffer_rl.gather_plan import gather_plan
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.template import Geometry
from atoffer_rl.kernels.templates import gather
from atoffer_rl.kernels.templates.gather import PLAN_NAMES, SCRATCH_NAMES, TEMPLATE, plan_bytes
from atoffer_rl.row_order import Order
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
DEFAULT = {
    "tile_rows": 64,
    "chunk": 64,
    "step": 64,
    "warps": 4,
    "copy_warps": 1,
    "slots": 2,
    "buffers": 2,
    "blocks": 1,
    "order": Order.NATURAL,
    "pieces": 1,
}
LOW = {"tile_rows": 32, "warps": 2, "step": 32}
SMALL = Workload(batch=2, seq_len=77, heads=2, head_dim=32)


def choice_of(run=RUNS[2], **values):
    return Choice(run, "gather", tuple((DEFAULT | values).items()))


def possible_choice(workload, run=RUNS[2], **values):
    """A choice that the template itself calls possible."""
    assert TEMPLATE.why_not(workload, run, H100) is None
    assert TEMPLATE.impossible(workload, run, DEFAULT | values, H100) is None
    return choice_of(run, **values)


@pytest.fixture
def ragged_workload(tmp_path):
    """A mask for each sequence, with rows that keep nothing, a tile that keeps nothing, and columns no row keeps."""
    index = np.arange(77)
    keep = np.random.default_rng(1).random((2, 77, 77)) < 0.1
    keep |= np.abs(index[:, None] - index) < 3
    keep[0, 20:50] = False
    keep[1, :17] = False
    keep[1, 64:] = False
    keep[:, :, 30:35] = False
    np.save(tmp_path / "mask.npy", keep)
    return replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")


# ---- What is rendered.


@pytest.mark.parametrize("run", RUNS)
def test_rendering_is_deterministic(run):
    assert_rendered_alike(Workload(), choice_of(run))


def test_arguments_follow_the_run():
    arguments = {run: TEMPLATE.program(SMALL, choice_of(run)).arguments for run in RUNS}
    assert arguments[Run(1, 6)] == ("qkv_raw", "b_qkv", *PLAN_NAMES, "merged")
    assert arguments[Run(2, 5)] == ("qkv", *PLAN_NAMES, "context")


@pytest.mark.parametrize(
    ("values", "scratch"),
    [
        ({}, ()),
        ({"pieces": 2, **LOW, "chunk": 32}, (2 * 2 * 77 * 32 * 2, 2 * 2 * 77 * 4, (2 + 4) * 4)),
        ({"order": Order.SPLIT}, (2 * 2 * 77 * 32 * 2, 2 * 2 * 77 * 4, (2 + 4) * 4)),
    ],
)
def test_partial_results_need_scratch(values, scratch):
    program = TEMPLATE.program(SMALL, choice_of(**values))
    assert program.scratch == tuple(zip(SCRATCH_NAMES, scratch, strict=False))
    assert program.arguments == ("qkv", *PLAN_NAMES, *SCRATCH_NAMES[: len(scratch)], "context")


def test_float32_keeps_partial_results_and_their_weights_with_all_bits():
    program = TEMPLATE.program(replace(SMALL, dtype="float32"), choice_of(order=Order.SPLIT))
    assert [size for _, size in program.scratch] == [2 * 2 * 77 * 32 * 4, 2 * 2 * 77 * 8, (2 + 4) * 4]


def test_blocks_that_take_several_items_draw_them():
    program = TEMPLATE.program(Workload(), choice_of(blocks=2))
    assert program.grid == (2 * 132, 1, 1)
    assert dict(program.scratch)["gather_counts"] == (2 + 16 * 12) * 4


def test_launch_covers_every_item():
    choice = choice_of(tile_rows=32, copy_warps=2)
    program = TEMPLATE.program(SMALL, choice)
    assert program.grid == (3 * 2 * 2, 1, 1)
    assert program.block == (6 * 32, 1, 1)
    assert TEMPLATE.geometry(SMALL, choice) == Geometry(tile_rows=32, tile_columns=64, blocks=12, threads=192)


# ---- What is possible.


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tile_rows": 24}, "multiple of 16"),
        ({"tile_rows": 0}, "multiple of 16"),
        ({"warps": 6}, "warps must be a multiple"),
        ({"tile_rows": 128, "warps": 24}, "warps must be a multiple"),
        ({"step": 48}, "16, 32 or 64 columns"),
        ({"chunk": 96}, "chunk must be a multiple of step"),
        ({"chunk": 320}, "chunk must be a multiple of step up to 256"),
        ({"warps": 8}, "more warps share a fragment"),
        ({"copy_warps": 3}, "copy_warps must be one of 1, 2, 4"),
        ({"buffers": 3}, "buffers must be one of 1, 2"),
        ({"slots": 0}, "at least 1"),
        ({"blocks": 0}, "at least 1"),
        ({"pieces": 0}, "at least 1"),
        ({"order": 4}, "order must be one of 0, 1, 2, 3"),
        ({"order": Order.TWO_PASSES, "pieces": 2}, "two passes need"),
        ({"order": Order.TWO_PASSES, "chunk": 32, "step": 32, "warps": 4, "slots": 1}, "chunks in shared memory"),
        ({"chunk": 256, "slots": 4, "copy_warps": 4}, "bytes of shared memory are needed"),
        ({**LOW, "blocks": 3, "slots": 3}, "3 blocks of"),
        ({"tile_rows": 128, "warps": 16, "chunk": 128, "blocks": 1, "slots": 1}, "registers, it has"),
    ],
)
def test_hard_rules(values, reason):
    why = TEMPLATE.impossible(Workload(heads=6, head_dim=128), Run(2, 5), DEFAULT | values, H100)
    assert why is not None
    assert reason in why


@pytest.mark.parametrize(
    ("blocks", "warps", "copy_warps", "registers"),
    [(1, 4, 1, 255), (2, 4, 4, 128), (3, 4, 1, 128), (1, 16, 2, 96), (2, 8, 1, 96), (5, 2, 1, 128), (4, 2, 1, 168)],
)
def test_schedulers_share_their_registers_out_among_resident_warps(blocks, warps, copy_warps, registers):
    values = {"blocks": blocks, "warps": warps, "copy_warps": copy_warps}
    assert gather.thread_registers(values) == registers


def test_partial_results_that_31_bits_do_not_index_are_refused():
    large = Workload(batch=3000, heads=96, head_dim=8, ffn_dim=768)
    values = DEFAULT | {"order": Order.SPLIT}
    assert "31 bits index" in (TEMPLATE.impossible(large, Run(2, 5), values, H100) or "")
    assert TEMPLATE.impossible(replace(large, batch=2000), Run(2, 5), values, H100) is None


@pytest.mark.parametrize("lengths", ["full", "uniform"])
@pytest.mark.parametrize("order", Order)
def test_work_counts_the_bytes_of_the_plan(order, lengths):
    workload = replace(SMALL, lengths=lengths)
    choice = possible_choice(workload, **LOW, order=order)
    plan = gather_plan(workload.mask_spec, workload.seq_len, LOW["tile_rows"], DEFAULT["chunk"], order, 1)
    arrays = TEMPLATE.program(workload, choice).plan().values()
    assert plan_bytes(workload, plan) == sum(array.nbytes for array in arrays)


def test_a_chunk_of_float32_is_shorter():
    workload = Workload(heads=6, head_dim=128, dtype="float32")
    values = DEFAULT | {"chunk": 256, "slots": 1, "copy_warps": 4}
    assert "16-bit offsets" in (TEMPLATE.impossible(workload, Run(2, 5), values, H100) or "")
    assert "16-bit offsets" not in (TEMPLATE.impossible(workload, Run(2, 5), values | {"chunk": 128}, H100) or "")


@pytest.mark.parametrize("order", [Order.SPLIT, Order.TWO_PASSES])
def test_masks_without_a_near_part_are_not_split(order):
    workload = replace(SMALL, mask="dense")
    assert "no part near its diagonal" in (
        TEMPLATE.impossible(workload, Run(2, 5), DEFAULT | {"order": order}, H100) or ""
    )
    assert TEMPLATE.impossible(SMALL, Run(2, 5), DEFAULT | {"order": order}, H100) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"head_dim": 36}, "head_dim"), ({"head_dim": 136}, "head_dim")],
)
def test_why_not(changes, reason):
    assert reason in (TEMPLATE.why_not(replace(SMALL, **changes), Run(2, 5), H100) or "")


def test_why_not_on_an_old_device():
    assert "sm_80" in (TEMPLATE.why_not(SMALL, Run(2, 5), replace(H100, arch="sm_75")) or "")
    assert TEMPLATE.why_not(SMALL, Run(2, 5), H100) is None


# ---- What it costs.


def test_work_counts_gathered_columns_and_whole_groups():
    workload = Workload(batch=2, seq_len=128, heads=2, head_dim=32, mask="sliding:window=0")
    work = TEMPLATE.work(workload, choice_of())
    row_bytes, items, tile_rows, fragments = 2 * 32 * 2, 2, 64, 4
    plan_bytes = 4 * items * (4 + tile_rows + tile_rows + 64 + fragments * (32 + 32))
    assert work.bytes_read == 3 * 2 * 128 * row_bytes + plan_bytes
    assert work.bytes_written == 2 * 128 * row_bytes
    assert work.flops == 4 * 2 * 2 * 128 * 16 * 32


def test_work_counts_partial_results_twice():
    whole, split = (TEMPLATE.work(SMALL, choice_of(**LOW, chunk=32, pieces=pieces)) for pieces in (1, 2))
    scratch = sum(size for _, size in TEMPLATE.program(SMALL, choice_of(**LOW, chunk=32, pieces=2)).scratch)
    assert split.bytes_written == whole.bytes_written + scratch
    assert split.bytes_read > whole.bytes_read + scratch
    assert split.flops == whole.flops


# ---- What is compiled.


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("run", "dtype", "head_dim", "values"),
    [
        (Run(2, 5), "float16", 64, {}),
        (
            Run(1, 6),
            "bfloat16",
            128,
            {"tile_rows": 16, "warps": 2, "step": 16, "pieces": 2, "order": Order.FIRST_COLUMN},
        ),
        (Run(1, 5), "float16", 32, {"chunk": 128, "step": 32, "slots": 3, "blocks": 2, "order": Order.SPLIT}),
        (Run(2, 6), "bfloat16", 40, {"tile_rows": 128, "warps": 8, "slots": 4, "order": Order.TWO_PASSES}),
        (Run(1, 6), "float32", 64, {"step": 16, "order": Order.SPLIT}),
        (Run(1, 5), "float32", 128, {"tile_rows": 32, "warps": 2, "chunk": 32, "step": 32}),
        (Run(2, 6), "float32", 32, {"slots": 4, "order": Order.TWO_PASSES}),
    ],
)
def test_compiles(run, dtype, head_dim, values, arch):
    workload = Workload(dtype=dtype, heads=960 // head_dim, head_dim=head_dim)
    assert compile_kernel(TEMPLATE.program(workload, possible_choice(workload, run, **values)), arch)


def test_device_code_refuses_what_it_cannot_do():
    with pytest.raises(CompileError, match="each fragment has the same number of warps"):
        compile_kernel(TEMPLATE.program(SMALL, choice_of(warps=6)), "sm_90a")


def test_device_code_checks_the_shared_memory():
    program = TEMPLATE.program(SMALL, choice_of())
    size = program.shared_bytes
    wrong = replace(program, source=program.source.replace(f"kSharedBytes = {size}", f"kSharedBytes = {size + 16}"))
    with pytest.raises(CompileError, match="the launch gives the shared memory"):
        compile_kernel(wrong, "sm_90a")


# ---- What it computes, on an emulated machine.


@pytest.fixture
def one_thread():
    """What torch computes here is small: more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def assert_emulated(emulator, one_thread):
    """Three launches in a row, on inputs of every kind, are within the budget for error and leave counts at rest."""

    def assert_emulated(workload, choice, residents=64):
        import torch

        from atoffer_rl.kernels.verify import verify_launchable

        kernel = emulator.load(workload, choice, residents)
        verdict = verify_launchable(workload, choice.run, kernel, device=torch.device("cpu"))
        assert verdict.passed, verdict.reason
        assert not kernel.program.scratch or not kernel.array("gather_counts", np.int32).any()
        return kernel

    return assert_emulated


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("run", RUNS)
def test_every_order_emulated(assert_emulated, run, order):
    dtype = "float16" if (run.first + run.last + order) % 2 else "bfloat16"
    workload = replace(SMALL, dtype=dtype)
    assert_emulated(workload, possible_choice(workload, run, **LOW, order=order, slots=3))


@pytest.mark.parametrize(
    ("run", "mask", "seq_len", "head_dim", "values"),
    [
        (RUNS[0], "strided", 77, 64, {**LOW, "slots": 3}),
        (RUNS[1], "strided", 130, 128, {**LOW, "order": Order.FIRST_COLUMN, "chunk": 32}),
        (RUNS[2], "strided", 77, 40, {**LOW, "order": Order.SPLIT, "pieces": 2, "chunk": 32}),
        (RUNS[3], "strided", 130, 64, {"order": Order.TWO_PASSES, "tile_rows": 128, "warps": 8, "slots": 2}),
        (RUNS[1], "strided", 77, 32, {**LOW, "order": Order.TWO_PASSES, "slots": 3}),
        (RUNS[1], "dense", 1, 64, {}),
        (RUNS[2], "causal", 17, 8, {"tile_rows": 16, "warps": 1, "chunk": 16, "step": 16}),
        (RUNS[1], "fixed", 130, 64, {"tile_rows": 16, "warps": 3, "step": 16, "pieces": 4, "copy_warps": 4}),
    ],
)
def test_float32_emulated(assert_emulated, run, mask, seq_len, head_dim, values):
    workload = replace(SMALL, dtype="float32", seq_len=seq_len, head_dim=head_dim, mask=mask)
    assert_emulated(workload, possible_choice(workload, run, **values))


@pytest.mark.parametrize(
    ("mask", "seq_len", "head_dim", "values"),
    [
        ("dense", 1, 64, {}),
        ("causal", 1, 8, {"order": Order.FIRST_COLUMN, "tile_rows": 16, "warps": 1}),
        ("dense", 33, 128, {"chunk": 128, "slots": 1}),
        ("dense", 130, 40, {"tile_rows": 128, "warps": 8, "copy_warps": 4, "chunk": 128, "slots": 1}),
        ("causal", 130, 32, {"chunk": 128, "step": 32, "copy_warps": 2}),
        ("causal", 130, 64, {"tile_rows": 16, "warps": 3, "chunk": 64, "step": 16, "pieces": 4}),
        ("fixed", 77, 40, {}),
        ("fixed", 130, 64, {**LOW, "order": Order.FIRST_COLUMN, "pieces": 2, "chunk": 32}),
        ("sliding:window=10", 17, 8, {"tile_rows": 16, "warps": 1, "chunk": 16, "step": 16, "slots": 5}),
        ("longformer:window=8,global=3", 130, 64, {"tile_rows": 16, "warps": 4, "step": 16, "pieces": 3}),
        ("longformer:window=8,global=3", 77, 32, {"tile_rows": 32, "warps": 4, "step": 32}),
        ("bigbird:window=8,global=2,random=1,block=8", 77, 128, {**LOW, "pieces": 2, "chunk": 32}),
        ("document:lengths=20/1/56", 77, 64, {"copy_warps": 4}),
        ("strided", 130, 64, {"order": Order.TWO_PASSES, "tile_rows": 128, "warps": 8, "step": 32, "slots": 4}),
        ("strided", 130, 128, {"order": Order.TWO_PASSES, "chunk": 32, "step": 32, "slots": 5}),
        ("strided", 130, 128, {"order": Order.SPLIT, "step": 16, "chunk": 16, "slots": 4}),
        ("strided", 33, 8, {**LOW, "order": Order.TWO_PASSES}),
        ("strided", 77, 40, {**LOW, "order": Order.SPLIT, "pieces": 2, "chunk": 32}),
    ],
)
def test_masks_and_shapes_emulated(assert_emulated, mask, seq_len, head_dim, values):
    workload = replace(SMALL, seq_len=seq_len, head_dim=head_dim, mask=mask)
    assert_emulated(workload, possible_choice(workload, Run(1, 6), **values))


ORDERS = [{**LOW, "order": order, "slots": 3} for order in Order]
PIECES = {**LOW, "pieces": 3, "chunk": 32}
ONE_BUFFER = {**LOW, "buffers": 1, "order": Order.SPLIT}
STEP_WARPS = {**LOW, "pieces": 2, "warps": 4, "step": 16}


@pytest.mark.parametrize("values", [*ORDERS, PIECES])
def test_a_mask_for_each_sequence_emulated(assert_emulated, ragged_workload, values):
    assert_emulated(ragged_workload, possible_choice(ragged_workload, Run(2, 6), **values))


@pytest.mark.parametrize("blocks", [1, 64])
def test_a_head_whose_items_merge_nothing_leaves_no_count_emulated(assert_emulated, monkeypatch, tmp_path, blocks):
    """One sequence's mask is cut into pieces, the other's is not: nobody needs its partial items, which are empty."""
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)
    keep = np.ones((2, 77, 77), np.bool_)
    keep[1] = np.eye(77, dtype=np.bool_)
    np.save(tmp_path / "mask.npy", keep)
    workload = replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")
    choice = possible_choice(workload, **LOW, chunk=32, slots=1, buffers=1, pieces=3)
    choice = Choice(choice.run, "gather", tuple((dict(choice.parameters) | {"blocks": blocks}).items()))
    kernel = assert_emulated(workload, choice)
    partial = gather_plan(workload.mask_spec, 77, 32, 32, Order.NATURAL, 3).headers
    assert partial[0, :, 3].any()
    assert not partial[1, :, 3].any()
    assert kernel.program.grid == (min(blocks, 4 * partial.shape[1]), 1, 1)


@pytest.mark.parametrize("residents", [1, 2])
@pytest.mark.parametrize("values", [*ORDERS, PIECES, STEP_WARPS, ONE_BUFFER, ORDERS[3] | {"buffers": 1}])
def test_blocks_that_share_items_emulated(assert_emulated, monkeypatch, values, residents):
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)
    workload = replace(SMALL, head_dim=40)
    kernel = assert_emulated(workload, possible_choice(workload, Run(2, 5), **values | {"blocks": 2}), residents)
    assert kernel.program.grid == (2, 1, 1)
    assert kernel.launches == 3


def launch(kernel, workload, qkv):
    """What `merged` holds after a launch on `qkv`, bit for bit."""
    result = ctypes.create_string_buffer(b"\xff" * (qkv.nbytes // 3), qkv.nbytes // 3)
    kernel.launch({"qkv": qkv.ctypes.data, "merged": ctypes.addressof(result)})
    return np.frombuffer(result.raw, np.float16).reshape(workload.batch, workload.seq_len, workload.width)


def random_qkv(workload):
    shape = workload.batch, workload.seq_len, 3, workload.heads, workload.head_dim
    return np.random.default_rng(2).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("values", [*ORDERS, PIECES])
def test_columns_that_no_row_keeps_never_reach_the_result_emulated(emulator, ragged_workload, values, poison):
    w, keep = ragged_workload, ragged_workload.mask_spec.keep(77)
    kernel, qkv = emulator.load(w, choice_of(Run(2, 6), **values)), random_qkv(ragged_workload)
    clean = launch(kernel, w, qkv)
    qkv[:, :, 1:][~keep.any(axis=1)] = poison
    np.testing.assert_array_equal(launch(kernel, w, qkv), clean)
    assert np.isfinite(clean).all()
    assert not clean[~keep.any(axis=2)].any()


@pytest.mark.parametrize("values", [ORDERS[Order.SPLIT], PIECES, STEP_WARPS])
def test_results_depend_on_no_order_of_blocks_and_warps(emulator, ragged_workload, values):
    kernel, qkv = emulator.load(ragged_workload, choice_of(Run(2, 6), **values)), random_qkv(ragged_workload)
    first, *others = (launch(kernel, ragged_workload, qkv) for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(other, first)


# ---- What it computes, on a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("run", RUNS)
def test_every_order_on_gpu(run, dtype):
    workload = Workload(batch=2, seq_len=200, heads=4, head_dim=64, dtype=dtype)
    settings = [
        {"slots": 3},
        {"tile_rows": 16, "warps": 4, "step": 16},
        {"tile_rows": 128, "warps": 8, "chunk": 128, "step": 32, "copy_warps": 4},
        {**LOW, "chunk": 32, "slots": 5, "blocks": 2, "copy_warps": 2},
        {**LOW, "chunk": 32, "slots": 5, "buffers": 1, "blocks": 2},
    ]
    orders = [{"order": order} for order in Order] + [{"order": order, "pieces": 3} for order in list(Order)[:3]]
    tried = [values | order for values, order in product(settings, orders)]
    possible = [values for values in tried if TEMPLATE.impossible(workload, run, DEFAULT | values, H100) is None]
    assert {values["order"] for values in possible} == set(Order)
    assert_all_right([(workload, choice_of(run, **values)) for values in possible])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("head_dim", [32, 40, 64, 128])
@pytest.mark.parametrize("seq_len", [1, 17, 77, 259])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_on_gpu(mask, seq_len, head_dim, dtype):
    workload = Workload(batch=2, seq_len=seq_len, heads=3, head_dim=head_dim, mask=mask, dtype=dtype)
    cases = [(Run(1, 6), {}), (Run(2, 5), LOW), (Run(2, 6), {**LOW, "order": Order.FIRST_COLUMN, "pieces": 2})]
    assert_all_right([(workload, choice_of(run, **values)) for run, values in cases])


@pytest.mark.gpu
@pytest.mark.parametrize("order", [Order.NATURAL, Order.SPLIT, Order.TWO_PASSES])
def test_many_items_for_each_block_on_gpu(order):
    workload = Workload(batch=24, seq_len=512, heads=12, head_dim=64)
    choices = [possible_choice(workload, Run(2, 6), order=order, slots=3, blocks=blocks) for blocks in (1, 2)]
    assert_all_right([(workload, choice) for choice in choices])


@pytest.mark.gpu
@pytest.mark.parametrize("values", [*ORDERS, PIECES, {"tile_rows": 16, "chunk": 16, "step": 16, "warps": 1}])
@pytest.mark.parametrize("run", RUNS)
def test_a_mask_for_each_sequence_on_gpu(ragged_workload, run, values):
    assert_right(ragged_workload, possible_choice(ragged_workload, run, **values))


@pytest.mark.gpu
@pytest.mark.parametrize("values", [*ORDERS, PIECES])
def test_columns_that_no_row_keeps_never_reach_the_result_on_gpu(ragged_workload, values):
    assert_unkept_columns_stay_out(ragged_workload, choice_of(Run(2, 6), **values))


@pytest.mark.gpu
@pytest.mark.parametrize("seq_len", [256, 512, 1024])
@pytest.mark.parametrize(
    "values",
    [
        {"tile_rows": 256, "warps": 16, "slots": 3},
        {"tile_rows": 128, "warps": 8, "buffers": 1, "blocks": 2},
        {"tile_rows": 128, "warps": 8, "buffers": 1, "blocks": 2, "copy_warps": 1},
    ],
)
def test_two_passes_over_wide_tiles_on_gpu(values, seq_len):
    workload = Workload(batch=4, seq_len=seq_len, mask="strided")
    wide = {"chunk": 128, "step": 16, "copy_warps": 2, "order": Order.TWO_PASSES}
    assert_all_right([(workload, possible_choice(workload, Run(2, 6), **wide | values))])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("values", [{"order": Order.SPLIT}, {"pieces": 3}, {"order": Order.SPLIT, "pieces": 3}])
def test_shelves_of_many_items_for_each_block_on_gpu(values, dtype):
    workload = Workload(batch=24, seq_len=512, mask="strided", dtype=dtype)
    settings = [{**LOW, "step": 16, "chunk": 32, "buffers": buffers, "blocks": 2} for buffers in (1, 2)]
    assert_all_right([(workload, possible_choice(workload, Run(1, 6), **setting | values)) for setting in settings])


@pytest.mark.parametrize("seq_len", [256, 512, 1024])
@pytest.mark.parametrize("copy_warps", [1, 2])
def test_wide_tiles_of_two_passes_are_possible(seq_len, copy_warps):
    workload = Workload(seq_len=seq_len, mask="strided")
    wide = {"chunk": 128, "step": 16, "copy_warps": copy_warps, "order": Order.TWO_PASSES}
    possible_choice(workload, **wide, tile_rows=128, warps=8, buffers=1, blocks=2)
    possible_choice(workload, **wide, tile_rows=256, warps=16, slots=3)


def test_what_is_legal_is_found_without_writing_plans(monkeypatch):
    monkeypatch.setattr(gather, "gather_plan", None)
    for order in Order:
        values = DEFAULT | {"order": int(order), "tile_rows": 64, "warps": 4}
        TEMPLATE.impossible(Workload(seq_len=320), Run(1, 6), values, H100)
