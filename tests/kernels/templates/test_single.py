"""Attention of tiles that keep few columns: emulated, compiled, run on a GPU."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from atoffer_rl.device import H100
from atoffer_rl.errors import CompileError
from atoffer_rl.kernels.compiler import compile_kernel
from atoffer_rl.kernels.registry import template_choices
from atoffer_rl.kernels.templates.single import TEMPLATE
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.single_plan import single_plan
from atoffer_rl.workload import Workload
from tests.core.row_masks import Squares
from tests.kernels.templates.checks import (
    assert_all_right,
    assert_rendered_alike,
    assert_unkept_columns_stay_out,
    assert_unkept_columns_stay_out_emulated,
)
from tests.kernels.templates.gather_choices import ARCHS, MASKS

RUNS = [Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)]
SMALL = Workload(batch=2, seq_len=77, heads=2, head_dim=64)
TILINGS = [(16, 4), (16, 1), (32, 2), (64, 1), (64, 4)]
SPLIT_TILINGS = [(16, 4, 2), (16, 2, 4), (16, 4, 8), (32, 4, 4), (32, 2, 8), (64, 1, 2)]
WIDE_ROWS = "longformer:window=8,global=5"


def choice_of(run=RUNS[3], tile_rows=16, column_warps=4, splits=1):
    return Choice(run, "single", (("tile_rows", tile_rows), ("column_warps", column_warps), ("splits", splits)))


def why_impossible(workload, choice):
    return TEMPLATE.why_not(workload, choice.run, H100) or TEMPLATE.impossible(
        workload, choice.run, dict(choice.parameters), H100
    )


def possible_choice(workload, run=RUNS[3], tile_rows=16, column_warps=4, splits=1):
    choice = choice_of(run, tile_rows, column_warps, splits)
    assert why_impossible(workload, choice) is None
    return choice


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("run", RUNS)
def test_every_mask_emulated(assert_emulated, run, mask):
    workload = replace(SMALL, mask=mask, dtype="float16" if run.first == 1 else "bfloat16")
    assert_emulated(workload, possible_choice(workload, run))


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_every_tiling_emulated(assert_emulated, tiling, head_dim):
    workload = replace(SMALL, seq_len=100, head_dim=head_dim, mask="strided")
    assert_emulated(workload, possible_choice(workload, RUNS[1], *tiling))


@pytest.mark.parametrize("seq_len", [1, 15, 16, 17, 64, 130])
def test_odd_lengths_emulated(assert_emulated, seq_len):
    workload = replace(SMALL, seq_len=seq_len, mask="causal")
    assert_emulated(workload, possible_choice(workload))


@pytest.mark.parametrize("tiling", TILINGS)
def test_masks_of_a_batch_emulated(assert_emulated, ragged_workload, tiling):
    assert_emulated(ragged_workload, possible_choice(ragged_workload, RUNS[3], *tiling))


@pytest.mark.parametrize("tiling", SPLIT_TILINGS)
@pytest.mark.parametrize("run", RUNS)
def test_pieces_of_a_cluster_emulated(assert_emulated, run, tiling):
    head_dim = {16: 32, 32: 64, 64: 128}[tiling[0]]
    workload = replace(SMALL, seq_len=130 if tiling[2] < 8 else 260, head_dim=head_dim, mask=WIDE_ROWS)
    assert_emulated(workload, possible_choice(workload, run, *tiling))


@pytest.fixture
def wide_rows_of_one_sequence(tmp_path):
    """In the first sequence alone a row keeps all columns; in the other it keeps nothing."""
    index = np.arange(130)
    keep = np.broadcast_to(np.abs(index[:, None] - index) < 3, (2, 130, 130)).copy()
    keep[0, 40] = True
    keep[1, 40] = False
    np.save(tmp_path / "mask.npy", keep)
    return replace(SMALL, seq_len=130, mask=f"file:{tmp_path / 'mask.npy'}")


@pytest.mark.parametrize("tiling", [(16, 4, 2), (16, 1, 4), (32, 2, 4)])
def test_pieces_of_masks_of_a_batch_emulated(assert_emulated, wide_rows_of_one_sequence, tiling):
    assert_emulated(wide_rows_of_one_sequence, possible_choice(wide_rows_of_one_sequence, RUNS[3], *tiling))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_columns_that_no_row_keeps_never_reach_the_result_emulated(emulator, ragged_workload, poison):
    assert_unkept_columns_stay_out_emulated(emulator, ragged_workload, choice_of(), poison)


@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_compile(arch):
    for workload, run, tiling in (
        (SMALL, RUNS[0], (16, 4)),
        (replace(SMALL, head_dim=128, dtype="bfloat16"), RUNS[1], (64, 2)),
        (replace(SMALL, head_dim=32), RUNS[3], (32, 1)),
    ):
        choice = possible_choice(workload, run, *tiling)
        assert compile_kernel(TEMPLATE.program(workload, choice), arch).startswith(b"\x7fELF")


def test_every_possible_tiling_compiles():
    choices = [choice_of(RUNS[3], *tiling) for tiling in product(range(16, 257, 16), range(1, 5))]
    possible = [choice for choice in choices if why_impossible(SMALL, choice) is None]
    assert len(possible) == 12
    for choice in possible:
        assert compile_kernel(TEMPLATE.program(SMALL, choice), "sm_90a").startswith(b"\x7fELF")


def test_shared_memory_that_python_and_the_kernel_disagree_about_does_not_compile(monkeypatch):
    program = TEMPLATE.program(SMALL, choice_of())
    wrong = replace(program, source=re.sub(r"kSharedBytes = \d+", "kSharedBytes = 16", program.source))
    with pytest.raises(CompileError, match="the launch gives the shared memory"):
        compile_kernel(wrong, "sm_90a")


@pytest.mark.parametrize(
    ("changes", "device", "reason"),
    [
        ({"dtype": "float32"}, H100, "float32"),
        ({"head_dim": 48}, H100, "head_dim must be 32, 64 or 128, not 48"),
        ({"lengths": "uniform"}, H100, "lengths of sequences are not read"),
        ({}, replace(H100, arch="sm_75"), "sm_80 or later, not sm_75"),
    ],
)
def test_what_it_cannot_do_at_all(changes, device, reason):
    assert reason in TEMPLATE.why_not(replace(SMALL, **changes), RUNS[3], device)


@pytest.mark.parametrize(
    ("workload", "values", "reason"),
    [
        (SMALL, (24, 4), "multiple of 16"),
        (SMALL, (16, 3), "column_warps must be 1, 2 or 4"),
        (SMALL, (128, 4), "16 warps at most"),
        (SMALL, (48, 4), "power of two"),
        (SMALL, (16, 4, 3), "splits must be 1, 2, 4 or 8"),
        (replace(SMALL, mask="sliding:window=8"), (16, 4, 2), "pieces save no room"),
        (Workload(batch=1, seq_len=1024, mask="dense"), (16, 4), "an item has 1024 columns"),
        (Workload(batch=1, seq_len=512, heads=2, head_dim=128, mask="dense"), (16, 4), "bytes of shared memory"),
    ],
)
def test_what_is_impossible(workload, values, reason):
    choice = choice_of(RUNS[3], *values)
    assert reason in TEMPLATE.impossible(workload, RUNS[3], dict(choice.parameters), H100)


@pytest.mark.parametrize("run", RUNS)
def test_what_is_offered(run):
    """Nothing beyond 24,576 rows of heads, and the default first: 16 rows, four warps."""
    largest = Workload(batch=8, seq_len=256, heads=12, mask="fixed")
    offered = template_choices("single", largest, run)
    assert offered == tuple(choice_of(run, *tiling) for tiling in ((16, 4), (16, 2), (32, 2)))
    assert not template_choices("single", replace(largest, seq_len=257), run)
    wide_rows = Workload(batch=1, seq_len=512, mask="longformer:window=64,global=16")
    offered = template_choices("single", wide_rows, run)
    assert offered == tuple(choice_of(run, *tiling) for tiling in ((16, 4, 1), (32, 2, 4), (32, 2, 8), (16, 4, 8)))


def test_work_and_geometry():
    workload = Workload(batch=3, seq_len=40, heads=2, head_dim=64, mask="sliding:window=3")
    choice, bytes_of_row = choice_of(), 2 * 64 * 2
    geometry, work = TEMPLATE.geometry(workload, choice), TEMPLATE.work(workload, choice)
    assert (geometry.tile_rows, geometry.tile_columns, geometry.blocks, geometry.threads) == (16, 32, 3 * 3 * 2, 128)
    plan = single_plan(workload.mask_spec, 40, 16, 1)
    assert plan.counts.tolist() == [[9, 18, 17]]
    assert work.bytes_read == (3 * 40 + 2 * 44 * 3) * bytes_of_row + plan_bytes(workload, choice)
    assert work.bytes_written == 3 * 40 * bytes_of_row
    assert work.flops == 4 * 5 * 16 * 16 * 128 * 3


def test_work_and_geometry_of_pieces():
    """One of 9 tiles is cut in two, each of which reads its rows; the other 8 are four clusters."""
    workload = replace(SMALL, batch=3, seq_len=130, mask=WIDE_ROWS)
    choice, bytes_of_row = choice_of(splits=2), 2 * 64 * 2
    geometry, work = TEMPLATE.geometry(workload, choice), TEMPLATE.work(workload, choice)
    assert (geometry.tile_columns, geometry.blocks) == (80, 10 * 3 * 2)
    columns = int(single_plan(workload.mask_spec, 130, 16, 2).counts.sum())
    assert work.bytes_read == (3 * (130 + 16) + 2 * columns * 3) * bytes_of_row + plan_bytes(workload, choice)
    assert work.bytes_written == 3 * 130 * bytes_of_row
    assert work.flops == TEMPLATE.work(workload, choice_of()).flops


def test_a_ragged_tile_is_read_as_far_as_it_goes():
    """All columns are kept by the last of 77 rows: 13 rows are its tile's, and each of two pieces reads them."""
    keep = np.eye(77, dtype=np.bool_)
    keep[76] = True
    plan = single_plan(Squares(keep[None]), 77, 16, 2)
    assert plan.tiles.tolist() == [[4, 4, 3, 2, 1, 0]]
    assert plan.rows_read(77) == 77 + 13


def plan_bytes(workload, choice):
    return sum(array.nbytes for array in TEMPLATE.program(workload, choice).plan().values())


def test_programs_are_rendered_alike():
    assert_rendered_alike(SMALL, choice_of())


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_mask_on_gpu(mask, dtype):
    workloads = [Workload(batch=3, seq_len=seq_len, mask=mask, dtype=dtype) for seq_len in (1, 17, 64, 130, 256)]
    tilings = [(RUNS[index % 4], *tiling) for index, tiling in enumerate(TILINGS)]
    pairs = [(workload, choice_of(*tiling)) for workload in workloads for tiling in tilings]
    possible = [pair for pair in pairs if why_impossible(*pair) is None]
    assert {choice for _, choice in possible} == {choice_of(*tiling) for tiling in tilings}
    assert {workload for workload, _ in possible} == set(workloads)
    assert_all_right(possible)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [32, 128])
def test_other_widths_on_gpu(head_dim):
    workload = Workload(batch=3, seq_len=100, heads=3, head_dim=head_dim, mask="strided")
    assert_all_right([(workload, possible_choice(workload, run, *tiling)) for run in RUNS for tiling in TILINGS])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("run", RUNS)
def test_pieces_of_a_cluster_on_gpu(run, dtype):
    masks = WIDE_ROWS, "bigbird:window=8,global=2,random=1,block=8", "causal"
    workloads = [
        Workload(batch=2, seq_len=seq_len, heads=3, head_dim=head_dim, mask=mask, dtype=dtype)
        for seq_len, head_dim in ((130, 128), (261, 64), (512, 32))
        for mask in masks
    ]
    pairs = [(workload, choice_of(run, *tiling)) for workload in workloads for tiling in SPLIT_TILINGS]
    possible = [pair for pair in pairs if why_impossible(*pair) is None]
    assert {choice for _, choice in possible} == {choice_of(run, *tiling) for tiling in SPLIT_TILINGS}
    assert {workload for workload, _ in possible} == set(workloads)
    assert_all_right(possible)


@pytest.mark.gpu
@pytest.mark.parametrize("tiling", TILINGS)
def test_columns_that_no_row_keeps_never_reach_the_result_on_gpu(ragged_workload, tiling):
    assert_unkept_columns_stay_out(ragged_workload, choice_of(RUNS[3], *tiling))
