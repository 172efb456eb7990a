"""Gathering attention: rendered, compiled, run on a GPU; test_gather_emulated.py runs it on an emulated machine."""

from dataclasses import replace
from itertools import product

import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import CompileError
from atoffer_rl.gather_plan import gather_plan
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.template import Geometry
from atoffer_rl.kernels.templates import gather
from atoffer_rl.kernels.templates.gather import SCRATCH_NAMES, TEMPLATE, plan_bytes
from atoffer_rl.row_order import Order
from atoffer_rl.run import Run
from atoffer_rl.workload import Workload
from tests.kernels.templates.checks import (
    assert_all_right,
    assert_rendered_alike,
    assert_right,
    assert_unkept_columns_stay_out,
)
from tests.kernels.templates.gather_choices import (
    ARCHS,
    DEFAULT,
    LOW,
    MASKS,
    ORDERS,
    PIECES,
    RUNS,
    SMALL,
    SMALL_WIDE,
    choice_of,
    possible_choice,
)

# ---- What is rendered.


@pytest.mark.parametrize("run", RUNS)
def test_rendering_is_deterministic(run):
    assert_rendered_alike(Workload(), choice_of(run))


def test_arguments_follow_the_run():
    arguments = {run: TEMPLATE.program(SMALL, choice_of(run)).arguments for run in RUNS}
    plan = ("gather_items", "gather_rows", "gather_steps")
    assert arguments[Run(1, 6)] == ("qkv_raw", "b_qkv", *plan, "merged")
    assert arguments[Run(2, 5)] == ("qkv", *plan, "context")


@pytest.mark.parametrize(
    ("changes", "order", "read"),
    [
        ({}, Order.NATURAL, "items rows steps"),
        ({}, Order.SPLIT, "items rows columns steps"),
        ({}, Order.TWO_PASSES, "items rows orders steps"),
        ({"lengths": "uniform"}, Order.NATURAL, "items rows columns steps limits"),
    ],
)
def test_only_what_the_kernel_reads_of_the_plan_is_passed(changes, order, read):
    workload = replace(SMALL, **changes)
    program = TEMPLATE.program(workload, possible_choice(workload, **LOW, order=order))
    names = tuple(f"gather_{name}" for name in read.split())
    assert tuple(program.plan()) == names
    scratch = tuple(name for name, _ in program.scratch)
    assert tuple(name for name in program.arguments if name.startswith("gather_")) == names + scratch


@pytest.mark.parametrize(
    ("values", "scratch"),
    [
        ({}, ()),
        ({"splits": 2, **LOW, "chunk": 32}, (2 * 2 * 13 * 32 * 2, 2 * 2 * 13 * 4, (2 + 4) * 4)),
        ({"order": Order.SPLIT}, (2 * 2 * 77 * 32 * 2, 2 * 2 * 77 * 4, (2 + 4) * 4)),
    ],
)
def test_partial_results_need_scratch(values, scratch):
    program = TEMPLATE.program(SMALL, choice_of(**values))
    assert program.scratch == tuple(zip(SCRATCH_NAMES, scratch, strict=False))
    assert program.arguments == ("qkv", *program.plan(), *SCRATCH_NAMES[: len(scratch)], "context")


def test_float32_keeps_partial_results_and_their_weights_with_all_bits():
    program = TEMPLATE.program(replace(SMALL, dtype="float32"), choice_of(order=Order.SPLIT))
    assert [size for _, size in program.scratch] == [2 * 2 * 77 * 32 * 4, 2 * 2 * 77 * 8, (2 + 4) * 4]


def test_blocks_that_take_several_items_draw_them():
    program = TEMPLATE.program(Workload(), choice_of(residents=2))
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
        ({"stages": 0}, "at least 1"),
        ({"residents": 0}, "at least 1"),
        ({"splits": 0}, "at least 1"),
        ({"order": 5}, "order must be one of 0, 1, 2, 3, 4"),
        ({"order": Order.WIDE_APART}, "no rows need far more columns than most"),
        ({"order": Order.TWO_PASSES, "splits": 2}, "two passes need"),
        ({"order": Order.TWO_PASSES, "chunk": 32, "step": 32, "warps": 4, "stages": 1}, "chunks in shared memory"),
        ({"chunk": 256, "stages": 4, "copy_warps": 4}, "bytes of shared memory are needed"),
        ({**LOW, "residents": 3, "stages": 3}, "3 blocks of"),
        ({"tile_rows": 128, "warps": 16, "chunk": 128, "residents": 1, "stages": 1}, "registers, it has"),
    ],
)
def test_hard_rules(values, reason):
    why = TEMPLATE.impossible(Workload(heads=6, head_dim=128), Run(2, 5), DEFAULT | values, H100)
    assert why is not None
    assert reason in why


@pytest.mark.parametrize(
    ("residents", "warps", "copy_warps", "registers"),
    [(1, 4, 1, 255), (2, 4, 4, 128), (3, 4, 1, 128), (1, 16, 2, 96), (2, 8, 1, 96), (5, 2, 1, 128), (4, 2, 1, 168)],
)
def test_schedulers_share_their_registers_out_among_resident_warps(residents, warps, copy_warps, registers):
    values = {"residents": residents, "warps": warps, "copy_warps": copy_warps}
    assert gather.thread_registers(values) == registers


def test_partial_results_that_31_bits_do_not_index_are_refused():
    large = Workload(batch=3000, heads=96, head_dim=8, ffn_dim=768)
    values = DEFAULT | {"order": Order.SPLIT}
    assert "31 bits index" in (TEMPLATE.impossible(large, Run(2, 5), values, H100) or "")
    assert TEMPLATE.impossible(replace(large, batch=2000), Run(2, 5), values, H100) is None


@pytest.mark.parametrize("lengths", ["full", "uniform"])
@pytest.mark.parametrize("order", Order)
def test_work_counts_the_bytes_of_the_plan(order, lengths):
    workload = replace(SMALL_WIDE if order is Order.WIDE_APART else SMALL, lengths=lengths)
    choice = possible_choice(workload, **LOW, order=order)
    plan = gather_plan(workload.mask_spec, workload.seq_len, LOW["tile_rows"], DEFAULT["chunk"], order, 1)
    arrays = TEMPLATE.program(workload, choice).plan().values()
    assert plan_bytes(workload, plan) == sum(array.nbytes for array in arrays)


def test_a_chunk_of_float32_is_shorter():
    workload = Workload(heads=6, head_dim=128, dtype="float32")
    values = DEFAULT | {"chunk": 256, "stages": 1, "copy_warps": 4}
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
    plan_bytes = 4 * items * (4 + tile_rows + fragments * (32 + 32))
    assert work.bytes_read == 3 * 2 * 128 * row_bytes + plan_bytes
    assert work.bytes_written == 2 * 128 * row_bytes
    assert work.flops == 4 * 2 * 2 * 128 * 16 * 32


def test_work_counts_partial_results_twice():
    whole, split = (TEMPLATE.work(SMALL, choice_of(**LOW, chunk=32, splits=splits)) for splits in (1, 2))
    scratch = sum(size for _, size in TEMPLATE.program(SMALL, choice_of(**LOW, chunk=32, splits=2)).scratch)
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
            {"tile_rows": 16, "warps": 2, "step": 16, "splits": 2, "order": Order.FIRST_COLUMN},
        ),
        (Run(1, 5), "float16", 32, {"chunk": 128, "step": 32, "stages": 3, "residents": 2, "order": Order.SPLIT}),
        (Run(2, 6), "bfloat16", 40, {"tile_rows": 128, "warps": 8, "stages": 4, "order": Order.TWO_PASSES}),
        (Run(1, 6), "float32", 64, {"step": 16, "order": Order.SPLIT}),
        (Run(1, 5), "float32", 128, {"tile_rows": 32, "warps": 2, "chunk": 32, "step": 32}),
        (Run(2, 6), "float32", 32, {"stages": 4, "order": Order.TWO_PASSES}),
        (Run(2, 6), "float16", 64, {"order": Order.WIDE_APART, "splits": 2}),
        (Run(1, 6), "float32", 64, {"order": Order.WIDE_APART, "splits": 2, "step": 16, "chunk": 32}),
    ],
)
def test_compiles(run, dtype, head_dim, values, arch):
    mask = "longformer" if values.get("order") is Order.WIDE_APART else "strided"
    workload = Workload(dtype=dtype, heads=960 // head_dim, head_dim=head_dim, mask=mask)
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


# ---- What it computes, on a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("run", RUNS)
def test_every_order_on_gpu(run, dtype):
    strided = Workload(batch=2, seq_len=200, heads=4, head_dim=64, dtype=dtype)
    workloads = [strided, replace(strided, mask="longformer:window=8,global=16")]
    settings = [
        {"stages": 3},
        {"tile_rows": 16, "warps": 4, "step": 16},
        {"tile_rows": 128, "warps": 8, "chunk": 128, "step": 32, "copy_warps": 4},
        {**LOW, "chunk": 32, "stages": 5, "residents": 2, "copy_warps": 2},
        {**LOW, "chunk": 32, "stages": 5, "buffers": 1, "residents": 2},
    ]
    orders = [{"order": order, "splits": splits} for order in Order for splits in (1, 3)]
    tried = [(workload, DEFAULT | values | order) for workload, values, order in product(workloads, settings, orders)]
    possible = [(workload, v) for workload, v in tried if TEMPLATE.impossible(workload, run, v, H100) is None]
    assert {values["order"] for _, values in possible} == set(Order)
    assert_all_right([(workload, choice_of(run, **values)) for workload, values in possible])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("head_dim", [32, 40, 64, 128])
@pytest.mark.parametrize("seq_len", [1, 17, 77, 259])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_on_gpu(mask, seq_len, head_dim, dtype):
    workload = Workload(batch=2, seq_len=seq_len, heads=3, head_dim=head_dim, mask=mask, dtype=dtype)
    cases = [(Run(1, 6), {}), (Run(2, 5), LOW), (Run(2, 6), {**LOW, "order": Order.FIRST_COLUMN, "splits": 2})]
    assert_all_right([(workload, choice_of(run, **values)) for run, values in cases])


@pytest.mark.gpu
@pytest.mark.parametrize("order", [Order.NATURAL, Order.SPLIT, Order.TWO_PASSES])
def test_many_items_for_each_block_on_gpu(order):
    workload = Workload(batch=24, seq_len=512, heads=12, head_dim=64)
    choices = [possible_choice(workload, Run(2, 6), order=order, stages=3, residents=residents) for residents in (1, 2)]
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
        {"tile_rows": 256, "warps": 16, "stages": 3},
        {"tile_rows": 128, "warps": 8, "buffers": 1, "residents": 2},
        {"tile_rows": 128, "warps": 8, "buffers": 1, "residents": 2, "copy_warps": 1},
    ],
)
def test_two_passes_over_wide_tiles_on_gpu(values, seq_len):
    workload = Workload(batch=4, seq_len=seq_len, mask="strided")
    wide = {"chunk": 128, "step": 16, "copy_warps": 2, "order": Order.TWO_PASSES}
    assert_all_right([(workload, possible_choice(workload, Run(2, 6), **wide | values))])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("values", [{"order": Order.SPLIT}, {"splits": 3}, {"order": Order.SPLIT, "splits": 3}])
def test_shelves_of_many_items_for_each_block_on_gpu(values, dtype):
    workload = Workload(batch=24, seq_len=512, mask="strided", dtype=dtype)
    settings = [{**LOW, "step": 16, "chunk": 32, "buffers": buffers, "residents": 2} for buffers in (1, 2)]
    assert_all_right([(workload, possible_choice(workload, Run(1, 6), **setting | values)) for setting in settings])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_shelves_of_items_in_turn_on_gpu(dtype):
    workload = Workload(batch=24, seq_len=512, mask="longformer:window=64,global=16", dtype=dtype)
    values = {**LOW, "step": 16, "chunk": 32, "residents": 2, "splits": 3}
    choice = possible_choice(workload, Run(1, 6), **values)
    assert "kInTurn = true" in TEMPLATE.program(workload, choice).source
    assert_all_right([(workload, choice)])


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["longformer:window=64,global=16", "bigbird:window=64,global=16,random=2,block=16"])
@pytest.mark.parametrize("splits", [1, 2, 7])
def test_wide_items_beside_many_others_on_gpu(splits, mask):
    workload = Workload(batch=24, seq_len=1024, mask=mask)
    settings = [{"stages": 3, "residents": 2}, {"tile_rows": 128, "warps": 8, "chunk": 128, "copy_warps": 2}]
    wide = {"order": Order.WIDE_APART, "splits": splits}
    choices = [possible_choice(workload, Run(1, 6), **wide | setting) for setting in settings]
    assert_all_right([(workload, choice) for choice in choices])


@pytest.mark.parametrize("seq_len", [256, 512, 1024])
@pytest.mark.parametrize("copy_warps", [1, 2])
def test_wide_tiles_of_two_passes_are_possible(seq_len, copy_warps):
    workload = Workload(seq_len=seq_len, mask="strided")
    wide = {"chunk": 128, "step": 16, "copy_warps": copy_warps, "order": Order.TWO_PASSES}
    possible_choice(workload, **wide, tile_rows=128, warps=8, buffers=1, residents=2)
    possible_choice(workload, **wide, tile_rows=256, warps=16, stages=3)


def test_what_is_legal_is_found_without_writing_plans(monkeypatch):
    monkeypatch.setattr(gather, "gather_plan", None)
    for order in Order:
        values = DEFAULT | {"order": int(order), "tile_rows": 64, "warps": 4}
        TEMPLATE.impossible(Workload(seq_len=320), Run(1, 6), values, H100)
