"""Gather plans against the masks they describe, read as the kernel reads them."""

import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoffer_rl.gather_items import FINAL, FINAL_WIDE, MOST_WASTE, gather_outline
from atoffer_rl.gather_plan import PADDING, gather_plan, kept_groups, lane_words
from atoffer_rl.masks import parse_mask
from atoffer_rl.row_order import FRAGMENT_ROWS, NO_ROW, Order
from tests.core.row_masks import NAMED, squares

BLOCK, GROUP, LANES, WORD_BITS = 64, 16, 32, 32


def place_of_bit(lane, bit):
    """Row and column of a block of 16 x 64 that a bit of a lane's word stands for."""
    group, eight, high_row, odd = bit // 8, bit // 4 % 2, bit // 2 % 2, bit % 2
    return lane // 4 + 8 * high_row, 16 * group + 8 * eight + 2 * (lane % 4) + odd


ROW_OF_BIT, COLUMN_OF_BIT = np.array(
    [[place_of_bit(lane, bit) for bit in range(WORD_BITS)] for lane in range(LANES)]
).transpose(2, 0, 1)


def unpack(words):
    """(16, 64 * blocks) bool of (blocks, 32) words."""
    kept = np.zeros((len(words), FRAGMENT_ROWS, BLOCK), bool)
    kept[:, ROW_OF_BIT, COLUMN_OF_BIT] = words[..., None] >> np.arange(WORD_BITS, dtype=np.uint32) & 1
    return kept.swapaxes(0, 1).reshape(FRAGMENT_ROWS, -1)


def header(plan, mask_number, item):
    """Chunks, chunks kept for the second pass, shelf, merges."""
    return (int(number) for number in plan.headers[mask_number, item])


def chunks_of_pass(plan, mask_number, item, number):
    chunks, kept, *_ = header(plan, mask_number, item)
    return range(chunks - kept if number > 0 else 0, chunks)


def check_fragment(columns, places, kept):
    """Kept columns come first; what fills their last group names a column, too: nothing else is in shared memory."""
    needed = np.flatnonzero(kept.any(axis=0))
    np.testing.assert_array_equal(needed, np.arange(len(needed)))
    assert len(np.unique(places[: len(needed)])) == len(needed)
    multiplied = -(-len(needed) // GROUP) * GROUP
    assert (columns[places[:multiplied]] != PADDING).all()
    return multiplied


def multiply(plan, mask_number, seq_len):
    """How often each pair is multiplied and kept, and how many pairs are multiplied at all."""
    pairs, products = np.zeros((seq_len, seq_len), int), 0
    fragments = plan.words.shape[4]
    for item, number, fragment in product(range(plan.items), range(plan.outline.passes), range(fragments)):
        order = plan.orders[mask_number, item, number, fragment * FRAGMENT_ROWS : (fragment + 1) * FRAGMENT_ROWS]
        rows = plan.rows[mask_number, item][order]
        for chunk in chunks_of_pass(plan, mask_number, item, number):
            columns = plan.columns[mask_number, item, chunk]
            places = plan.places[mask_number, item, chunk, number, fragment].reshape(-1)
            kept = unpack(plan.words[mask_number, item, chunk, number, fragment])
            products += FRAGMENT_ROWS * check_fragment(columns, places, kept)
            row, column = np.nonzero(kept)
            assert (rows[row] != NO_ROW).all()
            np.add.at(pairs, (rows[row], columns[places[column]]), 1)
    return pairs, products


def check_columns(plan, mask_number, keep):
    """An item gathers a column once, if one of its rows keeps it or a formula gives it; padding comes last."""
    gathered = needed = 0
    for item in range(plan.items):
        chunks, *_ = header(plan, mask_number, item)
        columns = plan.columns[mask_number, item].reshape(-1)
        real = columns[columns != PADDING]
        np.testing.assert_array_equal(columns[: len(real)], real)
        assert len(np.unique(real)) == len(real) <= chunks * plan.columns.shape[-1]
        rows = plan.rows[mask_number, item]
        gathered += len(real)
        needed += int(keep[rows[rows != NO_ROW]][:, real].any(axis=0).sum())
    assert gathered <= (MOST_WASTE if plan.formula else 1) * needed


def check_passes(plan, mask_number):
    """Each pass brings all rows into fragments; a later one keeps nothing of the chunks that it does not take."""
    for item, number in product(range(plan.items), range(plan.outline.passes)):
        chunks, *_ = header(plan, mask_number, item)
        if chunks:
            order = plan.orders[mask_number, item, number]
            np.testing.assert_array_equal(np.sort(order), np.arange(len(order)))
        taken = chunks_of_pass(plan, mask_number, item, number)
        others = np.setdiff1d(np.arange(plan.chunks), taken)
        assert not plan.words[mask_number, item, others, number].any()


def check_shelves(plan, mask_number, seq_len):
    """A final item merges, of each of its rows, exactly the shelves on which partial items leave it."""
    final = np.zeros(seq_len, int)
    merged, left = np.zeros((2, plan.outline.shelves, seq_len), int)
    for item in range(plan.items):
        _, _, shelf, merges = header(plan, mask_number, item)
        rows = plan.rows[mask_number, item]
        rows = rows[rows != NO_ROW]
        assert (shelf < 0) == (item >= plan.partial_items)
        if shelf < 0:
            final[rows] += 1
            merged[:merges, rows] += 1
        else:
            assert merges == 0
            left[shelf, rows] += 1
    assert (final == 1).all()
    assert set(np.flatnonzero(left.any(axis=0))) <= set(plan.outline.shelved)
    np.testing.assert_array_equal(left, merged)
    assert left.max(initial=0) <= 1


def check_rows(plan, mask_number):
    """The fragments of a wide item have the same rows, those of any other rows of their own."""
    for item in range(plan.items):
        _, _, shelf, _ = header(plan, mask_number, item)
        fragments = plan.rows[mask_number, item].reshape(-1, FRAGMENT_ROWS)
        if plan.outline.wide and shelf != FINAL:
            assert (fragments == fragments[0]).all()
            fragments = fragments[:1]
        rows = fragments[fragments != NO_ROW]
        assert len(np.unique(rows)) == len(rows)


def check_plan(mask, seq_len, order, tile_rows=16, chunk=16, splits=1):
    plan = gather_plan(mask, seq_len, tile_rows, chunk, order, splits)
    outline = gather_outline(mask, seq_len, tile_rows, chunk, order, splits)
    assert plan.outline == outline
    assert (outline.passes, outline.blocks) == (plan.orders.shape[2], plan.words.shape[5])
    assert (outline.kept, outline.shelves) == tuple(plan.headers[..., [1, 3]].max(axis=(0, 1)))
    assert outline.wide == (plan.headers[..., 2] == FINAL_WIDE).any()
    keep, products = mask.keep(seq_len), 0
    assert len(plan.headers) == len(keep)
    for mask_number, square in enumerate(keep):
        pairs, multiplied = multiply(plan, mask_number, seq_len)
        np.testing.assert_array_equal(pairs, square)
        products += multiplied
        check_columns(plan, mask_number, square)
        check_passes(plan, mask_number)
        check_rows(plan, mask_number)
        check_shelves(plan, mask_number, seq_len)
    assert plan.products == products
    return plan


def test_few_rows_with_partial_results_need_little_room():
    plan = check_plan(parse_mask("longformer:window=8,global=16", 300), 300, Order.NATURAL, tile_rows=32, splits=4)
    assert (plan.outline.shelves, plan.outline.shelved) == (3, range(32))
    assert check_plan(parse_mask("longformer:window=8,global=16", 300), 300, Order.NATURAL).outline.shelved == range(0)


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_a_wide_fragment_is_cut_by_itself(splits):
    mask = parse_mask("longformer:window=8,global=20", 300)
    plan = check_plan(mask, 300, Order.WIDE_APART, tile_rows=64, chunk=64, splits=splits)
    natural = check_plan(mask, 300, Order.NATURAL, tile_rows=64, chunk=64)
    assert plan.outline.wide
    assert not natural.outline.wide
    wide = plan.headers[0, :, 2] != FINAL
    assert wide.sum() == 2 * splits
    assert (plan.partial_items, plan.outline.shelves) == (2 * (splits - 1), splits - 1)
    assert plan.headers[0, ~wide, 0].max() < natural.headers[0, :, 0].max()
    # Of a wide item's chunk each fragment multiplies a quarter, of the same rows in a natural tile all.
    assert kept_groups(plan.words[0, wide]).sum(axis=(-2, -1)).max() == 1
    assert kept_groups(natural.words[0]).sum(axis=(-2, -1)).max() == 4


orders = st.sampled_from(Order)
tiles = st.sampled_from([(16, 16), (16, 64), (32, 48), (64, 32), (64, 128)])


@given(squares(batches=(1, 3)), orders, tiles, st.integers(1, 4))
@settings(max_examples=60)
def test_any_mask_is_multiplied_once(mask, order, tile, splits):
    check_plan(mask, mask.seq_len, order, *tile, splits=1 if order is Order.TWO_PASSES else splits)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("seq_len", [1, 16, 33, 67])
@pytest.mark.parametrize("text", NAMED)
def test_named_masks_are_multiplied_once(text, seq_len, order):
    check_plan(parse_mask(text, seq_len), seq_len, order, tile_rows=32, chunk=32)


@pytest.mark.parametrize("splits", [1, 2, 3, 9])
def test_pieces_are_as_many_as_asked_where_chunks_allow(splits):
    plan = check_plan(parse_mask("dense", 64), 64, Order.NATURAL, tile_rows=32, chunk=16, splits=splits)
    taken = {1: 1, 2: 2, 3: 2, 9: 4}[splits]  # of 4 chunks, so many pieces of equally many
    assert (plan.items, plan.partial_items, plan.outline.shelves) == (2 * taken, 2 * (taken - 1), taken - 1)
    assert plan.chunks == 4 // taken


@pytest.mark.parametrize("order", [Order.NATURAL, Order.FIRST_COLUMN, Order.SPLIT])
def test_items_with_the_most_chunks_come_first_and_those_that_merge_last(order):
    plan = check_plan(parse_mask("strided", 130), 130, order, splits=2)
    chunks, merges = plan.headers[0, :, 0], plan.headers[0, :, 3] > 0
    finals = slice(plan.partial_items, None)
    assert (np.diff(merges[finals].astype(int)) >= 0).all()
    assert not merges[: plan.partial_items].any()
    for part in (chunks[: plan.partial_items], chunks[finals][~merges[finals]], chunks[finals][merges[finals]]):
        assert (np.diff(part) <= 0).all()


def test_masks_of_one_batch_may_have_different_numbers_of_items():
    """The first needs pieces, the second keeps nothing: its items only store zeros."""
    squares_of_batch = np.zeros((2, 64, 64), bool)
    squares_of_batch[0] = True
    mask = type("Batch", (), {"keep": lambda self, seq_len: squares_of_batch})()
    plan = check_plan(mask, 64, Order.NATURAL, splits=4)
    assert plan.partial_items == 12
    assert not plan.words[1].any()
    assert (plan.columns[1] == PADDING).all()


def test_two_passes_keep_the_chunks_of_the_near_part():
    plan = check_plan(parse_mask("strided:stride=8", 64), 64, Order.TWO_PASSES, tile_rows=32, chunk=16)
    assert plan.outline.passes == 2
    assert plan.partial_items == plan.outline.shelves == 0
    for item in range(plan.items):
        chunks, kept, *_ = header(plan, 0, item)
        rows = plan.rows[0, item]
        near = set(range(max(0, rows.min() - 7), rows.max() + 1))
        assert near <= set(plan.columns[0, item, chunks - kept : chunks].reshape(-1).tolist())


@given(st.integers(1, 130), st.integers(0, 2**32 - 1))
def test_lane_words_follow_the_accumulators(columns, seed):
    kept = np.random.default_rng(seed).random((3, FRAGMENT_ROWS, columns)) < 0.5
    words = lane_words(kept)
    assert words.shape == (3, -(-columns // BLOCK), LANES)
    for number, block, lane, bit in product(range(1), range(words.shape[1]), range(LANES), range(WORD_BITS)):
        row, column = place_of_bit(lane, bit)
        column += block * BLOCK
        assert bool(words[number, block, lane] >> bit & 1) == (column < columns and kept[number, row, column])
    for square, described in zip(kept, words, strict=True):
        np.testing.assert_array_equal(unpack(described)[:, :columns], square)


def test_splitting_strided_pays():
    mask, kept = parse_mask("strided", 1024), int(parse_mask("strided", 1024).keep(1024).sum())
    natural, split, two_passes = (
        gather_plan(mask, 1024, 64, 64, order, 1) for order in (Order.NATURAL, Order.SPLIT, Order.TWO_PASSES)
    )
    assert split.gathered < natural.gathered / 3
    assert split.products < natural.products / 3
    assert split.products < 2 * kept
    assert two_passes.gathered == natural.gathered
    assert two_passes.products < 0.7 * natural.products


@pytest.mark.parametrize("order", Order)
def test_long_rows_are_planned_within_seconds(order):
    mask = parse_mask("strided", 4096)
    mask.keep(4096)
    start = time.process_time()
    plan = gather_plan(mask, 4096, 64, 64, order, 1)
    assert time.process_time() - start < 2
    assert plan.products > 4096


@pytest.mark.parametrize("seq_len", [1, 17, 64, 200, 256])
@pytest.mark.parametrize("name", ["dense", "causal", "fixed", "fixed:block=5", "sliding:window=10", "strided"])
def test_a_formula_gives_the_columns_that_the_plan_lists(name, seq_len):
    mask = parse_mask(name, seq_len)
    plan = gather_plan(mask, seq_len, 32, 64, Order.NATURAL, 1)
    if plan.formula is None:
        assert name == "strided"
        assert seq_len % 32
        return
    for number, listed in enumerate(plan.columns[0]):
        first = (plan.items - 1 - number) * 32
        columns = plan.formula.columns(first, min(first + 32, seq_len), seq_len)
        np.testing.assert_array_equal(listed[listed >= 0], columns)


@pytest.mark.parametrize("order", Order)
def test_only_natural_tiles_in_one_piece_have_a_formula(order):
    mask = parse_mask("strided", 256)
    natural = order in (Order.NATURAL, Order.TWO_PASSES)
    assert (gather_plan(mask, 256, 64, 64, order, 1).formula is not None) is natural
    assert order is Order.TWO_PASSES or gather_plan(mask, 256, 64, 64, order, 2).formula is None


def test_a_second_pass_finds_its_columns_last_though_they_are_computed():
    mask = parse_mask("strided", 256)
    computed = gather_plan(mask, 256, 64, 64, Order.TWO_PASSES, 1)
    assert computed.formula is not None
    assert computed.outline.kept == 2


@pytest.mark.parametrize("mask", ["strided", "fixed", "longformer:window=8,global=3"])
@pytest.mark.parametrize(("seq_len", "tile_rows"), [(77, 32), (130, 64), (256, 256)])
def test_the_last_of_two_passes_has_rows_in_their_own_order(mask, seq_len, tile_rows):
    """A warp stages its results where it alone has read what the first pass left there: see `far_pass`."""
    plan = gather_plan(parse_mask(mask, seq_len), seq_len, tile_rows, 64, Order.TWO_PASSES, 1)
    assert (plan.orders[:, :, -1] == np.arange(tile_rows)).all()
