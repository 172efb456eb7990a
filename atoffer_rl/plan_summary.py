"""What the plans of gathered attention cost one head, beside a dense mask, and which item computes which pair."""

from dataclasses import dataclass

import numpy as np

from atoffer_rl.gather_items import GROUP_COLUMNS
from atoffer_rl.gather_plan import GatherPlan, gather_plan
from atoffer_rl.mask_plan import Int32
from atoffer_rl.mask_structure import BLOCK_SIZES
from atoffer_rl.masks import Keep, Mask
from atoffer_rl.row_order import FRAGMENT_ROWS, Order, by_first_column, has_two_parts, has_wide, parts_of

TILE_ROWS = (*BLOCK_SIZES, 256)
"""Rows of a tile, for plans that are compared."""
CHUNK = 128
"""Columns of a chunk, for all plans that are compared."""
LOG_BYTES = 4
"""Bytes of a partial row's log-sum-exp."""
MOST_PAIRS = 2**25
"""Pairs of all masks together up to which plans are compared: twenty plans of so many take some ten seconds."""
NOBODY = -1


@dataclass(frozen=True)
class PlanSummary:
    """One plan, mean over the masks of a batch.

    Attributes:
        order: How rows are brought into tiles.
        tile_rows: Rows of an item.
        items: Blocks of a head.
        gathered: Columns that all items gather.
        products: Pairs of a row and a column that are multiplied.
        size_bytes: Bytes that a head moves: queries, gathered keys and values, partial results both ways, the result.
            The plan itself, which all heads share, is not counted.
    """

    order: Order
    tile_rows: int
    items: int
    gathered: float
    products: float
    size_bytes: float

    @property
    def cost(self) -> float:
        """Products times bytes: which of them bounds a kernel depends on card and batch, so both count alike."""
        return self.products * self.size_bytes


@dataclass(frozen=True)
class PlanMap:
    """Where each kept pair of one mask is computed.

    Attributes:
        items: (seq_len, seq_len) int32: the item, or `NOBODY`.
        far: (seq_len, seq_len) bool: pairs of the far part, whose rows are tiled or cut into fragments on their own.
        gathered: (items,) the columns that each item gathers.
    """

    items: Int32
    far: Keep
    gathered: Int32


def plan_orders(mask: Mask, seq_len: int) -> tuple[Order, ...]:
    """The row orders that differ for `mask`, natural first."""
    keep = mask.keep(seq_len)
    orders = [Order.NATURAL]
    if any(not np.array_equal(by_first_column(square), np.arange(seq_len)) for square in keep):
        orders.append(Order.FIRST_COLUMN)
    if all(has_two_parts(square) for square in keep):
        orders += [Order.SPLIT, Order.TWO_PASSES]
    if any(has_wide(square) for square in keep):
        orders.append(Order.WIDE_APART)
    return tuple(orders)


def plan_summaries(mask: Mask, seq_len: int, row_bytes: int) -> tuple[PlanSummary, ...]:
    """Every order that applies to `mask`, for tiles of each of `TILE_ROWS` rows.

    Args:
        mask: Any mask.
        seq_len: Tokens in a sequence.
        row_bytes: Bytes of one row of one head.
    """
    return tuple(
        plan_summary(mask, seq_len, order, tile_rows, row_bytes)
        for order in plan_orders(mask, seq_len)
        for tile_rows in TILE_ROWS
    )


def plan_summary(mask: Mask, seq_len: int, order: Order, tile_rows: int, row_bytes: int) -> PlanSummary:
    """What the plan of `mask` for `order` and `tile_rows` costs."""
    plan = _plan(mask, seq_len, order, tile_rows)
    masks = len(plan.headers)
    queries = int(np.count_nonzero(plan.rows >= 0)) / masks
    partial = int(np.count_nonzero(plan.rows[:, : plan.partial_items] >= 0)) / masks
    gathered = plan.gathered / masks
    rows_moved = queries + 2 * gathered + 2 * partial + seq_len
    size_bytes = rows_moved * row_bytes + 2 * partial * LOG_BYTES
    return PlanSummary(order, tile_rows, plan.items, gathered, plan.products / masks, size_bytes)


def dense_summary(seq_len: int, tile_rows: int, row_bytes: int) -> PlanSummary:
    """What attention costs that ignores the mask: tiles gather, and rows multiply, all columns, in whole groups."""
    tiles = -(-seq_len // tile_rows)
    size_bytes = 2 * (seq_len + tiles * seq_len) * row_bytes
    products = (-(-seq_len // GROUP_COLUMNS) * GROUP_COLUMNS) * (-(-seq_len // FRAGMENT_ROWS) * FRAGMENT_ROWS)
    return PlanSummary(Order.NATURAL, tile_rows, tiles, tiles * seq_len, products, size_bytes)


def best_plan(summaries: tuple[PlanSummary, ...]) -> PlanSummary:
    """The plan with the least products times bytes."""
    return min(summaries, key=lambda summary: (summary.cost, summary.size_bytes))


def plan_map(mask: Mask, seq_len: int, order: Order, tile_rows: int) -> PlanMap:
    """Which item computes each pair of the first of the masks."""
    plan = _plan(mask, seq_len, order, tile_rows)
    keep = mask.keep(seq_len)[0]
    parts = parts_of(keep, order)
    far = parts[0].keep if len(parts) > 1 else np.zeros_like(keep)
    first_final = plan.partial_items
    natural = _item_of_row(plan, seq_len, first_final, plan.items)
    own = _item_of_row(plan, seq_len, 0, first_final) if order is Order.SPLIT else natural
    items = np.where(far, own[:, None], np.where(keep, natural[:, None], np.int32(NOBODY)))
    return PlanMap(items, far, np.count_nonzero(plan.columns[0] >= 0, axis=(1, 2)).astype(np.int32))


def _plan(mask: Mask, seq_len: int, order: Order, tile_rows: int) -> GatherPlan:
    return gather_plan(mask, seq_len, tile_rows, CHUNK, order, 1)


def _item_of_row(plan: GatherPlan, seq_len: int, first: int, end: int) -> Int32:
    """The item among `first` to `end` that has each row of the first mask."""
    result = np.full(seq_len, NOBODY, np.int32)
    rows = plan.rows[0, first:end]
    result[rows[rows >= 0]] = np.broadcast_to(np.arange(first, end, dtype=np.int32)[:, None], rows.shape)[rows >= 0]
    return result
