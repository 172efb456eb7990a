"""What plans cost, against a plain count; and where pairs are computed, against the plan itself."""

import numpy as np
import pytest

from atoffer_rl.gather_plan import BLOCK_COLUMNS, FINAL, gather_plan
from atoffer_rl.mask_structure import BLOCK_SIZES
from atoffer_rl.masks import parse_mask
from atoffer_rl.plan_summary import (
    CHUNK,
    NOBODY,
    TILE_ROWS,
    best_plan,
    dense_summary,
    plan_map,
    plan_orders,
    plan_summaries,
    plan_summary,
)
from atoffer_rl.row_order import FRAGMENT_ROWS, Order

ROW_BYTES = 128
TEXTS = ["dense", "causal", "strided", "fixed", "sliding:window=6", "longformer", "bigbird"]


def file_mask(folder, keep):
    np.save(folder / "mask.npy", keep)
    return parse_mask(f"file:{folder / 'mask.npy'}", keep.shape[-1])


def naturally(square, tile_rows):
    """Columns gathered and pairs multiplied by tiles of neighbouring rows, counted row by row."""
    gathered = products = 0
    for first in range(0, len(square), tile_rows):
        columns = np.flatnonzero(square[first : first + tile_rows].any(axis=0))
        gathered += len(columns)
        needs = [square[row : row + FRAGMENT_ROWS].any(axis=0) for row in range(first, first + tile_rows, 16)]
        keys = [tuple(need[column] for need in needs) for column in columns]
        # Columns that the same fragments need lie together, in the order in which such columns first come.
        ordered = sorted(range(len(columns)), key=lambda place: (keys.index(keys[place]), place))
        for start in range(0, len(ordered), CHUNK):
            chunk = columns[ordered[start : start + CHUNK]]
            products += sum(-(-int(need[chunk].sum()) // 16) * 16 * FRAGMENT_ROWS for need in needs)
    return gathered, products


@pytest.mark.parametrize("seq_len", [1, 17, 200])
@pytest.mark.parametrize("text", TEXTS)
def test_natural_order_against_a_plain_count(text, seq_len):
    mask = parse_mask(text, seq_len)
    for tile_rows in (16, 64):
        summary = plan_summary(mask, seq_len, Order.NATURAL, tile_rows, ROW_BYTES)
        assert (summary.gathered, summary.products) == naturally(mask.keep(seq_len)[0], tile_rows)
        assert summary.items == -(-seq_len // tile_rows)
        assert summary.size_bytes == (2 * seq_len + 2 * summary.gathered) * ROW_BYTES


def test_what_splitting_saves():
    mask = parse_mask("strided", 1024)
    natural = plan_summary(mask, 1024, Order.NATURAL, 64, ROW_BYTES)
    split = plan_summary(mask, 1024, Order.SPLIT, 64, ROW_BYTES)
    assert (natural.gathered / 1024, natural.products / 1024) == pytest.approx((8.5, 279.8), abs=0.06)
    assert (split.gathered / 1024, split.products / 1024) == pytest.approx((2.41, 71.2), abs=0.06)
    # Queries twice, keys and values, results; a partial row and its log-sum-exp written and read.
    assert split.size_bytes == (3 * 1024 + 2 * split.gathered) * ROW_BYTES + 2 * 1024 * (ROW_BYTES + 4)


APPLY_TO_STRIDED = (Order.NATURAL, Order.FIRST_COLUMN, Order.SPLIT, Order.TWO_PASSES)


@pytest.mark.parametrize("seq_len", [1, 33, 256])
@pytest.mark.parametrize("tile_rows", BLOCK_SIZES)
def test_a_dense_mask_costs_what_dense_costs(tile_rows, seq_len):
    planned = plan_summary(parse_mask("dense", seq_len), seq_len, Order.NATURAL, tile_rows, ROW_BYTES)
    assert planned == dense_summary(seq_len, tile_rows, ROW_BYTES)


def test_orders_that_apply(tmp_path):
    assert plan_orders(parse_mask("dense", 64), 64) == (Order.NATURAL,)
    assert plan_orders(parse_mask("causal", 64), 64) == (Order.NATURAL,)
    assert plan_orders(parse_mask("strided", 256), 256) == APPLY_TO_STRIDED
    assert Order.WIDE_APART in plan_orders(parse_mask("longformer", 256), 256)
    assert plan_orders(file_mask(tmp_path, np.zeros((1, 40, 40), bool)), 40) == (Order.NATURAL,)


def test_a_batch_one_of_whose_masks_has_a_single_part_is_not_split(tmp_path):
    strided = parse_mask("strided", 64).keep(64)[0]
    orders = plan_orders(file_mask(tmp_path, np.stack([strided, np.ones_like(strided)])), 64)
    assert orders == (Order.NATURAL, Order.FIRST_COLUMN)


def test_the_best_has_the_least_products_times_bytes():
    plans = plan_summaries(parse_mask("strided", 256), 256, ROW_BYTES)
    tried = [(plan.order, plan.tile_rows) for plan in plans]
    assert tried == [(order, rows) for order in APPLY_TO_STRIDED for rows in TILE_ROWS]
    best = best_plan(plans)
    assert best.cost == min(plan.products * plan.size_bytes for plan in plans)


def test_a_batch_has_the_mean_of_its_masks(tmp_path):
    squares = [parse_mask(text, 48).keep(48)[0] for text in ("strided", "sliding:window=4")]
    alone = [plan_summary(file_mask(tmp_path, square), 48, Order.NATURAL, 16, ROW_BYTES) for square in squares]
    both = plan_summary(file_mask(tmp_path, np.stack(squares)), 48, Order.NATURAL, 16, ROW_BYTES)
    for what in ("items", "gathered", "products", "size_bytes"):
        assert getattr(both, what) == np.mean([getattr(plan, what) for plan in alone])


def pairs_of(plan, item):
    """(pass, row, column) of every pair that an item of the first mask multiplies and keeps."""
    for chunk, one_pass, fragment, block, lane in np.ndindex(plan.words.shape[2:]):
        word = int(plan.words[0, item, chunk, one_pass, fragment, block, lane])
        for bit in range(32):
            if word >> bit & 1:
                group, tile, half, next_column = bit >> 3, bit >> 2 & 1, bit >> 1 & 1, bit & 1
                place = fragment * FRAGMENT_ROWS + lane // 4 + 8 * half
                column = 16 * group + 8 * tile + 2 * (lane % 4) + next_column
                assert column < BLOCK_COLUMNS
                gathered = plan.places[0, item, chunk, one_pass, fragment, block, column]
                row = plan.rows[0, item, plan.orders[0, item, one_pass, place]]
                yield one_pass, int(row), int(plan.columns[0, item, chunk, gathered])


@pytest.mark.parametrize("order", list(Order))
def test_the_map_says_what_the_plan_does(order):
    mask, seq_len, tile_rows = parse_mask("strided", 70), 70, 32
    plan, placed = gather_plan(mask, seq_len, tile_rows, CHUNK, order, 1), plan_map(mask, seq_len, order, tile_rows)
    items, far = np.full((seq_len, seq_len), NOBODY), np.zeros((seq_len, seq_len), bool)
    for item in range(plan.items):
        for one_pass, row, column in pairs_of(plan, item):
            assert items[row, column] == NOBODY
            items[row, column] = item
            partial = plan.headers[0, item, 2] != FINAL
            far[row, column] = partial or (order is Order.TWO_PASSES and one_pass == 0)
    np.testing.assert_array_equal(placed.items, items)
    np.testing.assert_array_equal(placed.far, far)
    np.testing.assert_array_equal(placed.items >= 0, mask.keep(seq_len)[0])
    assert placed.gathered.sum() == plan.gathered


@pytest.mark.parametrize("order", list(Order))
def test_masks_that_keep_little(tmp_path, order):
    keep = np.zeros((1, 37, 37), bool)
    assert (plan_map(file_mask(tmp_path, keep), 37, order, 16).items == NOBODY).all()
    keep[0, 5, 30] = True
    mask = file_mask(tmp_path, keep)
    placed = plan_map(mask, 37, order, 16)
    assert np.count_nonzero(placed.items >= 0) == placed.gathered.sum() == 1
    assert plan_summary(mask, 37, order, 16, ROW_BYTES).products == 256
