"""Gathering attention: a plan's items on tensor cores, from `qkv` or `qkv_raw` to `context` or `merged`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from atoffer_rl.device import DeviceSpec
from atoffer_rl.gather_items import BLOCK_COLUMNS, GatherOutline, gather_outline
from atoffer_rl.gather_plan import GatherPlan, gather_plan
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.attention import RUNS, shape_arguments
from atoffer_rl.kernels.templates.gather_arrays import COLUMNS, ORDERS, plan_arrays, plan_bytes, plan_names
from atoffer_rl.kernels.templates.gather_room import (
    COPY_REGISTERS,
    MOST_CHANNELS,
    channels,
    needed_registers,
    row_bytes,
    shared_bytes,
    shifted_registers,
    thread_registers,
    threads,
    weight_bytes,
)
from atoffer_rl.kernels.templates.limits import too_many_residents, too_much_shared, too_old
from atoffer_rl.lengths import FULL
from atoffer_rl.masks import Mask
from atoffer_rl.operators import run_results, run_weights
from atoffer_rl.roofline import kept_pairs, stored_bytes, valid_share
from atoffer_rl.row_order import FRAGMENT_ROWS, Order, has_two_parts
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors, no_place, run_inputs
from atoffer_rl.workload import MAX_INDEX, Workload

VECTOR_CHANNELS = 8
STEPS = (16, 32, 64)
LONGEST_CHUNK = 256
MOST_CHUNK_BYTES = 2**16
MAX_WARPS = 16
COPY_WARPS = (1, 2, 4)
BUFFERS = (1, 2)
TWO_PARTS = (Order.SPLIT, Order.TWO_PASSES)
SHIFTING_CAPABILITY = 90
"""Of chips whose warps can give registers to others of their block."""
MULTIPROCESSORS = 132
"""Of a large card. A smaller one executes as many blocks, just not all of them at a time."""
PARTIAL_ITEMS_AT_ONCE = 640
"""Of a group of heads, where most final items merge: with 400, 1,000 and 1,400 it took longer."""
HEADERS = (
    "common.cuh",
    "barriers.cuh",
    "registers.cuh",
    "ring.cuh",
    "swizzle.cuh",
    "pairs.cuh",
    "tf32.cuh",
    "gather_layout.cuh",
    "gather_copy.cuh",
    "gather_products.cuh",
    "gather_fragment.cuh",
    "gather.cuh",
)
SCRATCH_NAMES = ("gather_sums", "gather_weights", "gather_counts")
RENDERED = ("tile_rows", "chunk", "step", "warps", "copy_warps", "stages", "buffers", "residents")
"""Parameters that the source names as they are; order and splits go into the plan."""


class GatherTemplate:
    """Blocks take items of each head and sequence until none is left; see gather.cuh for the data flow."""

    name = "gather"
    runs = RUNS
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why this template cannot implement `run` of `workload` at all; None if it can."""
        if workload.head_dim % VECTOR_CHANNELS or workload.head_dim > MOST_CHANNELS:
            return f"head_dim must be a multiple of {VECTOR_CHANNELS} up to {MOST_CHANNELS}, not {workload.head_dim}"
        return too_old(device) or no_place(workload, run)

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule `values` break; None if none."""
        return (
            _bad_tiling(values)
            or _bad_chunk(workload, values)
            or _too_few_registers(workload, values, device)
            or _bad_plan(workload, values)
            or _too_large(workload, values, device)
        )

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The rendered kernel of `choice`."""
        values, run = dict(choice.parameters), choice.run
        plan = _plan(workload, values)
        entry, scratch = f"gather_attention_{run.first}_{run.last}", _scratch(workload, values, plan)
        source = render(
            "gather.cu.j2",
            entry=entry,
            **shape_arguments(workload, run),
            **_plan_arguments(workload, values, plan),
            **{name: values[name] for name in RENDERED},
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=HEADERS,
            grid=(_grid(workload, values, plan), 1, 1),
            block=(threads(values), 1, 1),
            shared_bytes=shared_bytes(workload, values, plan.outline),
            arguments=(
                *run_inputs(workload, run),
                *run_weights(run),
                *plan_names(workload, plan),
                *(name for name, _ in scratch),
                *run_results(run),
            ),
            plan=partial(_plan_arrays, workload, values),
            scratch=scratch,
            overlaps=True,
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes and flops of `choice`: each item reads its columns once, and a fragment multiplies what it keeps.

        Of padded sequences, what lies within their lengths counts, on average.
        """
        w, plan = workload, _plan(workload, dict(choice.parameters))
        repeats = w.batch // len(plan.headers)
        token_bytes = w.width * w.element.itemsize
        tensors = layer_tensors(w)
        rows_read = round((np.count_nonzero(plan.rows >= 0) + 2 * plan.gathered) * valid_share(w))
        weights = sum(tensors[name].size_bytes for name in run_weights(choice.run))
        partial_bytes = sum(size_bytes for _, size_bytes in _scratch(w, dict(choice.parameters), plan))
        return Work(
            bytes_read=rows_read * token_bytes * repeats + weights + plan_bytes(w, plan) + partial_bytes,
            bytes_written=stored_bytes(w, choice.run) + partial_bytes,
            flops=round(4 * plan.products * w.width * repeats * _pair_share(w)),
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Tiles and blocks of `choice`."""
        return Geometry(
            tile_rows=choice["tile_rows"],
            tile_columns=choice["chunk"],
            blocks=_grid(workload, dict(choice.parameters), _plan(workload, dict(choice.parameters))),
            threads=threads(dict(choice.parameters)),
        )


def _bad_tiling(values: Mapping[str, int]) -> str | None:
    fragments, ragged_rows = divmod(values["tile_rows"], FRAGMENT_ROWS)
    if ragged_rows or not fragments:
        return "tile_rows must be a multiple of 16"
    if values["warps"] not in range(fragments, MAX_WARPS + 1, fragments):
        return f"warps must be a multiple of tile_rows / 16 up to {MAX_WARPS}"
    if values["step"] not in STEPS:
        return "a step takes 16, 32 or 64 columns"
    if values["chunk"] not in range(values["step"], LONGEST_CHUNK + 1, values["step"]):
        return f"chunk must be a multiple of step up to {LONGEST_CHUNK}"
    if values["warps"] // fragments > values["chunk"] // values["step"]:
        return "more warps share a fragment than a chunk has steps"
    for name, offered in ("copy_warps", COPY_WARPS), ("buffers", BUFFERS):
        if values[name] not in offered:
            return f"{name} must be one of {', '.join(map(str, offered))}"
    if min(values[name] for name in ("stages", "residents", "splits")) < 1:
        return "stages, residents and splits must be at least 1"
    return None


def _bad_chunk(workload: Workload, values: Mapping[str, int]) -> str | None:
    if (size_bytes := values["chunk"] * row_bytes(workload)) > MOST_CHUNK_BYTES:
        return f"a chunk's keys take {size_bytes} bytes, 16-bit offsets name {MOST_CHUNK_BYTES}"
    return None


def _too_few_registers(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    shifted = shifted_registers(values) if device.compute_capability == SHIFTING_CAPABILITY else 0
    needed, most = needed_registers(workload, values), shifted or thread_registers(values)
    return f"a thread needs {needed} registers, it has {most}" if needed > most else None


def _bad_plan(workload: Workload, values: Mapping[str, int]) -> str | None:
    if values["order"] not in list(Order):
        return f"order must be one of {', '.join(str(int(order)) for order in Order)}"
    if values["order"] == Order.WIDE_APART and not _outline(workload, values).wide:
        return "no rows need far more columns than most"
    if values["order"] not in TWO_PARTS:
        return None
    if not _has_two_parts(workload.mask_spec, workload.seq_len):
        return "the mask has no part near its diagonal to split off"
    if values["order"] == Order.SPLIT:
        return None
    if values["warps"] != values["tile_rows"] // FRAGMENT_ROWS or values["splits"] > 1:
        return "two passes need one warp for each 16 rows, and tiles in one piece"
    if (kept := _outline(workload, values).kept) > values["stages"]:
        return f"the second pass needs {kept} chunks in shared memory, there are {values['stages']} stages"
    return None


@lru_cache(maxsize=32)
def _has_two_parts(mask: Mask, seq_len: int) -> bool:
    return all(has_two_parts(keep) for keep in mask.keep(seq_len))


def _too_large(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    outline = _outline(workload, values)
    needed = shared_bytes(workload, values, outline)
    if reason := too_much_shared(needed, device) or too_many_residents(values["residents"], needed, device):
        return reason
    partial_sums = outline.shelves * len(outline.shelved) * workload.batch * workload.heads * channels(workload)
    if partial_sums > MAX_INDEX:
        return f"partial results would have {partial_sums:,} elements, and 31 bits index {MAX_INDEX + 1:,} at most"
    return None


def _plan(workload: Workload, values: Mapping[str, int]) -> GatherPlan:
    return gather_plan(*_tiling(workload, values))


def _outline(workload: Workload, values: Mapping[str, int]) -> GatherOutline:
    return gather_outline(*_tiling(workload, values))


def _tiling(workload: Workload, values: Mapping[str, int]) -> tuple[Mask, int, int, int, Order, int]:
    order = Order(values["order"])
    return workload.mask_spec, workload.seq_len, values["tile_rows"], values["chunk"], order, values["splits"]


def _plan_arrays(workload: Workload, values: Mapping[str, int]) -> dict[str, PlanArray]:
    return plan_arrays(workload, _plan(workload, values))


def _plan_arguments(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> dict[str, object]:
    """What the source says of the plan, and of how blocks take its items."""
    names = plan_names(workload, plan)
    return {
        "grid": _grid(workload, values, plan),
        "has_scratch": bool(_scratch(workload, values, plan)),
        "items": plan.items,
        "partial_items": plan.partial_items,
        "shelved": plan.outline.shelved,
        "wide": plan.outline.wide,
        "formula": plan.formula,
        "padded": workload.padded,
        "packed": workload.packed,
        "chunks": plan.chunks,
        "passes": plan.outline.passes,
        "fragment_columns": _fragment_columns(values, plan),
        "has_orders": ORDERS in names,
        "has_columns": COLUMNS in names,
        "group_heads": _group_heads(workload, values, plan),
        "in_turn": _in_turn(workload, values, plan),
        "registers": shifted_registers(values),
        "copy_registers": COPY_REGISTERS,
        "shared_bytes": shared_bytes(workload, values, plan.outline),
    }


def _fragment_columns(values: Mapping[str, int], plan: GatherPlan) -> int:
    """Columns of a chunk that a fragment multiplies at most, in whole steps."""
    return min(values["chunk"], plan.outline.blocks * BLOCK_COLUMNS)


def _in_turn(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> bool:
    """Whether an item of each head of a group is taken before the next of any: `head_item_of`, gather_layout.cuh."""
    return not plan.most_merge and plan.items * workload.batch * workload.heads > _grid(workload, values, plan)


def _group_heads(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> int:
    """Heads whose items are taken together, a divisor of all heads.

    Where most final items merge, enough that their partial items keep the card busy. Else, where there are partial or
    wide ones, two items for each block that it executes at a time; where there are none, one for every other block.
    """
    heads, blocks = workload.batch * workload.heads, values["residents"] * MULTIPROCESSORS
    items, wanted = plan.items, 2 * blocks if plan.partial_items or plan.outline.wide else blocks // 2
    if plan.most_merge:
        items, wanted = plan.partial_items, PARTIAL_ITEMS_AT_ONCE
    enough = -(-wanted // items)
    return next(size for size in range(min(enough, heads), heads + 1) if heads % size == 0)


def _pair_share(workload: Workload) -> float:
    """Pairs that the mask keeps within the sequences' lengths over all that it keeps, on average."""
    whole = kept_pairs(replace(workload, lengths=FULL, packed=False))
    return kept_pairs(workload) / whole if whole else 1.0


def _grid(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> int:
    """Blocks: no more than a card executes at a time."""
    return min(plan.items * workload.heads * workload.batch, values["residents"] * MULTIPROCESSORS)


def _scratch(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> tuple[tuple[str, int], ...]:
    """Room for partial results and counts: see `Plan` of gather_layout.cuh."""
    heads = workload.batch * workload.heads
    if not plan.partial_items and _grid(workload, values, plan) == plan.items * heads:
        return ()
    rows = max(1, plan.outline.shelves * heads * len(plan.outline.shelved))
    sizes = (rows * row_bytes(workload), rows * weight_bytes(workload), (2 + heads) * 4)
    return tuple(zip(SCRATCH_NAMES, sizes, strict=True))


TEMPLATE = GatherTemplate()
