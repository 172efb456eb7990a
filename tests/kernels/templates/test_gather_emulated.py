"""Gathering attention on an emulated machine."""

from dataclasses import replace

import numpy as np
import pytest

from atoffer_rl.gather_plan import gather_plan
from atoffer_rl.kernels.templates import gather
from atoffer_rl.row_order import Order
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from tests.kernels.templates.checks import assert_unkept_columns_stay_out_emulated, launch, random_qkv
from tests.kernels.templates.gather_choices import (
    LOW,
    ONE_BUFFER,
    ORDERS,
    PIECES,
    RUNS,
    SMALL,
    SMALL_WIDE,
    STEP_WARPS,
    WIDE,
    choice_of,
    possible_choice,
)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("run", RUNS)
def test_every_order_emulated(assert_emulated, run, order):
    dtype = "float16" if (run.first + run.last + order) % 2 else "bfloat16"
    workload = replace(SMALL_WIDE if order is Order.WIDE_APART else SMALL, dtype=dtype)
    assert_emulated(workload, possible_choice(workload, run, **LOW, order=order, stages=3))


@pytest.mark.parametrize("residents", [1, 2])
@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({}, {"tile_rows": 16, "warps": 1, "step": 16, "splits": 2, "chunk": 16}),
        ({"head_dim": 64}, {"splits": 2, "chunk": 32}),
        ({"head_dim": 64, "dtype": "bfloat16"}, {"tile_rows": 64, "warps": 4, "splits": 3, "chunk": 32, "step": 16}),
        ({"head_dim": 64}, {"tile_rows": 64, "warps": 4, "splits": 9, "chunk": 16, "step": 16, "buffers": 1}),
        ({"head_dim": 64, "dtype": "float32"}, {"splits": 3, "chunk": 16, "step": 16}),
        ({"head_dim": 40}, {"warps": 4, "step": 16, "splits": 2}),
        ({"seq_len": 230, "mask": "longformer:window=8,global=20"}, {"splits": 5, "chunk": 16, "step": 16}),
        ({"head_dim": 128, "mask": "bigbird:window=8,global=2,random=1,block=8"}, {"splits": 2, "chunk": 32}),
        ({"lengths": "uniform"}, {"splits": 3, "chunk": 16, "step": 16}),
        ({"lengths": "uniform", "packed": True}, {"splits": 2, "chunk": 32}),
    ],
)
def test_wide_items_emulated(assert_emulated, monkeypatch, changes, values, residents):
    """Pieces: their items are partial, and a wide item merges their shelves, several at once."""
    if residents > 1:
        monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)
    workload = replace(SMALL_WIDE, **changes)
    choice = possible_choice(workload, Run(2, 6), **{**WIDE, "residents": residents, **values})
    kernel = assert_emulated(workload, choice, residents)
    assert "kWide = true" in kernel.program.source


def test_a_mask_without_wide_rows_beside_one_with_them_emulated(assert_emulated, tmp_path):
    keep = np.repeat(replace(SMALL, mask="sliding:window=8").mask_spec.keep(77), 2, axis=0)
    keep[1, 5] = True
    np.save(tmp_path / "mask.npy", keep)
    workload = replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")
    assert_emulated(workload, possible_choice(workload, Run(2, 6), **WIDE | {"splits": 2, "chunk": 32}))


@pytest.mark.parametrize(
    ("run", "mask", "seq_len", "head_dim", "values"),
    [
        (RUNS[0], "strided", 77, 64, {**LOW, "stages": 3}),
        (RUNS[1], "strided", 130, 128, {**LOW, "order": Order.FIRST_COLUMN, "chunk": 32}),
        (RUNS[2], "strided", 77, 40, {**LOW, "order": Order.SPLIT, "splits": 2, "chunk": 32}),
        (RUNS[3], "strided", 130, 64, {"order": Order.TWO_PASSES, "tile_rows": 128, "warps": 8, "stages": 2}),
        (RUNS[1], "strided", 77, 32, {**LOW, "order": Order.TWO_PASSES, "stages": 3}),
        (RUNS[1], "dense", 1, 64, {}),
        (RUNS[2], "causal", 17, 8, {"tile_rows": 16, "warps": 1, "chunk": 16, "step": 16}),
        (RUNS[1], "fixed", 130, 64, {"tile_rows": 16, "warps": 3, "step": 16, "splits": 4, "copy_warps": 4}),
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
        ("dense", 33, 128, {"chunk": 128, "stages": 1}),
        ("dense", 130, 40, {"tile_rows": 128, "warps": 8, "copy_warps": 4, "chunk": 128, "stages": 1}),
        ("causal", 130, 32, {"chunk": 128, "step": 32, "copy_warps": 2}),
        ("causal", 130, 64, {"tile_rows": 16, "warps": 3, "chunk": 64, "step": 16, "splits": 4}),
        ("fixed", 77, 40, {}),
        ("fixed", 130, 64, {**LOW, "order": Order.FIRST_COLUMN, "splits": 2, "chunk": 32}),
        ("sliding:window=10", 17, 8, {"tile_rows": 16, "warps": 1, "chunk": 16, "step": 16, "stages": 5}),
        ("longformer:window=8,global=3", 130, 64, {"tile_rows": 16, "warps": 4, "step": 16, "splits": 3}),
        ("longformer:window=8,global=3", 77, 32, {"tile_rows": 32, "warps": 4, "step": 32}),
        ("bigbird:window=8,global=2,random=1,block=8", 77, 128, {**LOW, "splits": 2, "chunk": 32}),
        ("document:lengths=20/1/56", 77, 64, {"copy_warps": 4}),
        ("strided", 130, 64, {"order": Order.TWO_PASSES, "tile_rows": 128, "warps": 8, "step": 32, "stages": 4}),
        ("strided", 130, 128, {"order": Order.TWO_PASSES, "chunk": 32, "step": 32, "stages": 5}),
        ("strided", 130, 128, {"order": Order.SPLIT, "step": 16, "chunk": 16, "stages": 4}),
        ("strided", 33, 8, {**LOW, "order": Order.TWO_PASSES}),
        ("strided", 77, 40, {**LOW, "order": Order.SPLIT, "splits": 2, "chunk": 32}),
    ],
)
def test_masks_and_shapes_emulated(assert_emulated, mask, seq_len, head_dim, values):
    workload = replace(SMALL, seq_len=seq_len, head_dim=head_dim, mask=mask)
    assert_emulated(workload, possible_choice(workload, Run(1, 6), **values))


@pytest.mark.parametrize("values", [*ORDERS, PIECES])
def test_a_mask_for_each_sequence_emulated(assert_emulated, ragged_workload, values):
    assert_emulated(ragged_workload, possible_choice(ragged_workload, Run(2, 6), **values))


@pytest.mark.parametrize("residents", [1, 64])
def test_a_head_whose_items_merge_nothing_leaves_no_count_emulated(assert_emulated, monkeypatch, tmp_path, residents):
    """One sequence's mask is cut into pieces, the other's is not: nobody needs its partial items, which are empty."""
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)
    keep = np.ones((2, 77, 77), np.bool_)
    keep[1] = np.eye(77, dtype=np.bool_)
    np.save(tmp_path / "mask.npy", keep)
    workload = replace(SMALL, mask=f"file:{tmp_path / 'mask.npy'}")
    choice = possible_choice(workload, **LOW, chunk=32, stages=1, buffers=1, splits=3)
    choice = Choice(choice.run, "gather", tuple((dict(choice.parameters) | {"residents": residents}).items()))
    kernel = assert_emulated(workload, choice)
    partial = gather_plan(workload.mask_spec, 77, 32, 32, Order.NATURAL, 3).headers
    assert partial[0, :, 3].any()
    assert not partial[1, :, 3].any()
    assert kernel.program.grid == (min(residents, 4 * partial.shape[1]), 1, 1)


@pytest.mark.parametrize("residents", [1, 2])
@pytest.mark.parametrize("values", [*ORDERS, PIECES, STEP_WARPS, ONE_BUFFER, ORDERS[3] | {"buffers": 1}])
def test_blocks_that_share_items_emulated(assert_emulated, monkeypatch, values, residents):
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)
    workload = replace(SMALL, head_dim=40)
    kernel = assert_emulated(workload, possible_choice(workload, Run(2, 5), **values | {"residents": 2}), residents)
    assert kernel.program.grid == (2, 1, 1)
    assert kernel.launches == 3


@pytest.mark.parametrize(
    ("mask", "values"), [("strided", {}), ("strided", STEP_WARPS), ("longformer:window=8,global=3", PIECES)]
)
def test_items_of_a_group_of_heads_in_turn_emulated(assert_emulated, monkeypatch, mask, values):
    """Pieces: two partial items a head come before its others, and the one that merges them last."""
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 4)
    workload = replace(SMALL, mask=mask, batch=3, seq_len=150)
    kernel = assert_emulated(workload, possible_choice(workload, Run(2, 6), **values | {"residents": 2}), 2)
    assert "kInTurn = true" in kernel.program.source
    assert "kGroupHeads = 1," not in kernel.program.source
    assert kernel.program.grid == (8, 1, 1)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("values", [*ORDERS, PIECES])
def test_columns_that_no_row_keeps_never_reach_the_result_emulated(emulator, ragged_workload, values, poison):
    assert_unkept_columns_stay_out_emulated(emulator, ragged_workload, choice_of(Run(2, 6), **values), poison)


@pytest.mark.parametrize("values", [ORDERS[Order.SPLIT], PIECES, STEP_WARPS])
def test_results_depend_on_no_order_of_blocks_and_warps(emulator, ragged_workload, values):
    kernel, qkv = emulator.load(ragged_workload, choice_of(Run(2, 6), **values)), random_qkv(ragged_workload)
    first, *others = (launch(kernel, ragged_workload, qkv) for _ in range(3))
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("head_dim", [40, 64])
@pytest.mark.parametrize(
    ("dtype", "mask", "values"),
    [
        ("float16", "strided", LOW),
        ("float16", "strided", STEP_WARPS),
        ("float16", "strided", PIECES),
        ("float16", "strided", ORDERS[Order.SPLIT]),
        ("float16", "strided", ORDERS[Order.TWO_PASSES] | {"stages": 3}),
        ("float16", SMALL_WIDE.mask, WIDE),
        ("float32", "strided", {**LOW, "step": 16}),
    ],
)
def test_a_nan_of_a_query_stays_in_its_row(emulator, monkeypatch, dtype, mask, values, head_dim):
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)  # so that a block takes many heads, one after another
    workload = replace(SMALL, head_dim=head_dim, dtype=dtype, mask=mask)
    kernel = emulator.load(workload, possible_choice(workload, Run(2, 6), **values | {"residents": 2}))
    qkv = random_qkv(workload).astype(dtype)
    rows = [5, 21, 50, 76]  # in several fragments of their tiles
    qkv[0, rows, 0, 0] = np.nan
    heads = launch(kernel, workload, qkv).reshape(*qkv.shape[:2], *qkv.shape[3:])
    assert np.argwhere(np.isnan(heads).any(axis=-1)).tolist() == [[0, row, 0] for row in rows]


@pytest.mark.parametrize("values", [LOW, PIECES, ORDERS[Order.TWO_PASSES] | {"stages": 3}])
def test_infinite_values_stay_in_their_head(emulator, monkeypatch, values):
    monkeypatch.setattr(gather, "MULTIPROCESSORS", 1)
    workload = replace(SMALL, head_dim=40, mask="strided")
    kernel = emulator.load(workload, possible_choice(workload, Run(2, 6), **values | {"residents": 2}))
    qkv = random_qkv(workload)
    qkv[0, :, 2, 0] = np.inf
    heads = launch(kernel, workload, qkv).reshape(*qkv.shape[:2], *qkv.shape[3:])
    spoiled = ~np.isfinite(heads).all(axis=-1)
    assert spoiled[0, :, 0].all()
    assert spoiled.sum() == workload.seq_len
