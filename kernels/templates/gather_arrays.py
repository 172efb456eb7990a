"""The arrays that gathering attention reads of a plan, as the kernel wants them."""

import numpy as np

from atoffer_rl.gather_items import GROUP_COLUMNS
from atoffer_rl.gather_plan import GatherPlan
from atoffer_rl.kernels.program import PlanArray
from atoffer_rl.kernels.templates.gather_room import VECTOR_BYTES, row_bytes
from atoffer_rl.mask_plan import Int32, Words
from atoffer_rl.workload import Workload

ITEMS, ROWS, ORDERS, COLUMNS, STEPS_OF_ITEMS, LIMITS = (
    f"gather_{name}" for name in ("items", "rows", "orders", "columns", "steps", "limits")
)
BANK_VECTORS = 8
"""Vectors that span all banks of shared memory."""


def plan_arrays(workload: Workload, plan: GatherPlan) -> dict[str, PlanArray]:
    """Those of `plan_names`."""
    arrays: dict[str, PlanArray] = {ITEMS: plan.headers, ROWS: plan.rows, ORDERS: plan.orders, COLUMNS: plan.columns}
    arrays[STEPS_OF_ITEMS] = _steps(plan, row_bytes(workload))
    if workload.padded:
        arrays[LIMITS] = _limits(plan)
    return {name: arrays[name] for name in plan_names(workload, plan)}


def plan_names(workload: Workload, plan: GatherPlan) -> tuple[str, ...]:
    """The arrays of the plan that the kernel reads, in the order of its parameters."""
    unread = {
        ORDERS: plan.outline.passes == 1,
        COLUMNS: plan.formula is not None and not workload.padded,
        LIMITS: not workload.padded,
    }
    return tuple(name for name in (ITEMS, ROWS, ORDERS, COLUMNS, STEPS_OF_ITEMS, LIMITS) if not unread.get(name))


def plan_bytes(workload: Workload, plan: GatherPlan) -> int:
    """Of what `plan_arrays` gives, where a place takes two bytes."""
    sizes = {ITEMS: plan.headers.nbytes, ROWS: plan.rows.nbytes, ORDERS: plan.orders.nbytes}
    sizes |= {COLUMNS: plan.columns.nbytes, STEPS_OF_ITEMS: plan.words.nbytes + 2 * plan.places.size}
    sizes |= {LIMITS: plan.headers[..., 0].size * (1 + plan.chunks) * 4}
    return sum(sizes[name] for name in plan_names(workload, plan))


def _limits(plan: GatherPlan) -> Int32:
    """(masks, items, 1 + chunks): an item's lowest row, and the lowest column of each chunk and those after it."""
    beyond = np.iinfo(np.int32).max
    rows = np.where(plan.rows < 0, beyond, plan.rows).min(axis=-1, keepdims=True)
    columns = np.where(plan.columns < 0, beyond, plan.columns).min(axis=-1)
    from_here = np.minimum.accumulate(columns[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([rows, from_here], axis=-1).astype(np.int32)


def _steps(plan: GatherPlan, bytes_of_row: int) -> Words:
    """For each block of 64 columns: a 16-bit offset of each in shared memory, then the bits of its rows.

    Two words for each of 16 columns hold the offsets of that column and the ones 16, 32 and 48 further. An offset names
    the first vector of a row; see `swizzled` of swizzle.cuh for how vectors lie.
    """
    rows = plan.places.astype(np.uint32)
    vectors = bytes_of_row // VECTOR_BYTES
    keys = min(vectors, BANK_VECTORS)
    line = rows // (BANK_VECTORS // keys)
    key = (line + line // 8 + line // 16 + line // 32) % keys
    offsets = ((rows * vectors + key) * VECTOR_BYTES).astype(np.uint16)
    by_column = offsets.reshape(*offsets.shape[:-1], -1, GROUP_COLUMNS).swapaxes(-1, -2)
    packed = np.ascontiguousarray(by_column).view("<u4").reshape(*offsets.shape[:-1], -1)
    return np.concatenate([packed, plan.words], axis=-1)
