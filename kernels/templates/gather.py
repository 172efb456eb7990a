"""Gathering attention: a plan's items on tensor cores, from `qkv` or `qkv_raw` to `context` or `merged`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import e, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.gather_items import BLOCK_COLUMNS, GatherOutline, gather_outline
from atoffer_rl.gather_plan import GROUP_COLUMNS, HEADER_WORDS, GatherPlan, gather_plan
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.elements import ELEMENT_TYPES
from atoffer_rl.lengths import FULL
from atoffer_rl.masks import Mask
from atoffer_rl.operators import MERGE_OPERATOR, QKV_BIAS_OPERATOR, run_results, run_weights
from atoffer_rl.roofline import kept_pairs, stored_bytes, valid_share
from atoffer_rl.row_order import FRAGMENT_ROWS, Order, splits
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors, no_place, run_inputs
from atoffer_rl.workload import MAX_INDEX, Workload

MOST_CHANNELS = 128
VECTOR_CHANNELS = 8
STEPS = (16, 32, 64)
LONGEST_CHUNK = 256
MOST_CHUNK_BYTES = 2**16
OLDEST_ARCH = 80
WARP_SIZE = 32
MAX_WARPS = 16
VECTOR_BYTES = 16
BANK_VECTORS = 8
"""Vectors that span all banks of shared memory."""
SCHEDULERS = 4
"""Of a multiprocessor, over which warps are dealt out."""
SCHEDULER_REGISTERS = 16384
REGISTER_STEP = 8
"""A thread gets a multiple of it."""
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
ITEMS, ROWS, ORDERS, COLUMNS, STEPS_OF_ITEMS, LIMITS = (
    f"gather_{name}" for name in ("items", "rows", "orders", "columns", "steps", "limits")
)
SCRATCH_NAMES = ("gather_sums", "gather_weights", "gather_counts")
MULTIPROCESSORS = 132
"""Of a large card. A smaller one executes as many blocks, just not all of them at a time."""
PARTIAL_ITEMS_AT_ONCE = 640
"""Of a group of heads, where most final items merge: with 400, 1,000 and 1,400 it took longer."""
COPY_WARPS = (1, 2, 4)
RENDERED = ("tile_rows", "chunk", "step", "warps", "copy_warps", "slots", "buffers", "blocks")
"""Parameters that the source names as they are; order and pieces go into the plan."""
TWO_PARTS = (Order.SPLIT, Order.TWO_PASSES)
BUFFERS = (1, 2)
SHARED_ALIGNMENT = 256
BLOCK_SHARED_BYTES = 1024
"""What the driver takes of shared memory for each block."""
MOST_REGISTERS = 255
OTHER_REGISTERS = 38
"""What addresses, conversions and the loop take of a multiplying thread's registers."""
SPLIT_REGISTERS = 12
"""What float32's split operands take besides."""
SHIFTING_CAPABILITY = 90
"""Of chips whose warps can give registers to others of their block."""
COPY_REGISTERS, PLENTY_REGISTERS = 64, 128
"""What a copying thread keeps, and a share with which a multiplying one needs no more."""
WARPGROUP = 4
"""Warps that give registers back, or take them, together."""


class GatherTemplate:
    """Blocks take items of each head and sequence until none is left; see gather.cuh for the data flow."""

    name = "gather"
    runs = frozenset({Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)})
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why this template cannot implement `run` of `workload` at all; None if it can."""
        if workload.head_dim % VECTOR_CHANNELS or workload.head_dim > MOST_CHANNELS:
            return f"head_dim must be a multiple of {VECTOR_CHANNELS} up to {MOST_CHANNELS}, not {workload.head_dim}"
        if device.compute_capability < OLDEST_ARCH:
            return f"asynchronous copies need sm_{OLDEST_ARCH} or later, not {device.arch}"
        return no_place(workload, run)

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
        entry = f"gather_attention_{run.first}_{run.last}"
        scratch, grid = _scratch(workload, values, plan), _grid(workload, values, plan)
        source = render(
            "gather.cu.j2",
            entry=entry,
            grid=grid,
            has_scratch=bool(scratch),
            element=ELEMENT_TYPES[workload.element],
            batch=workload.batch,
            seq_len=workload.seq_len,
            heads=workload.heads,
            head_dim=workload.head_dim,
            mask_batches=len(plan.headers),
            items=plan.items,
            partial_items=plan.partial_items,
            shelved=plan.shelved,
            formula=plan.formula,
            padded=workload.padded,
            packed=workload.packed,
            chunks=plan.chunks,
            passes=plan.passes,
            fragment_columns=_fragment_columns(values, plan),
            has_orders=ORDERS in _plan_names(workload, plan),
            has_columns=COLUMNS in _plan_names(workload, plan),
            group_heads=_group_heads(workload, values, plan),
            in_turn=_in_turn(workload, values, plan),
            registers=shifted_registers(values),
            copy_registers=COPY_REGISTERS,
            shared_bytes=shared_bytes(workload, values, plan),
            add_bias="true" if QKV_BIAS_OPERATOR in run else "false",
            merged="true" if MERGE_OPERATOR in run else "false",
            scale_log2=repr(float(np.float32(log2(e) / sqrt(workload.head_dim)))),
            **{name: values[name] for name in RENDERED},
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=HEADERS,
            grid=(grid, 1, 1),
            block=(_threads(values), 1, 1),
            shared_bytes=shared_bytes(workload, values, plan),
            arguments=(
                *run_inputs(workload, run),
                *run_weights(run),
                *_plan_names(workload, plan),
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
        row_bytes = w.width * w.element.itemsize
        tensors = layer_tensors(w)
        rows_read = round((np.count_nonzero(plan.rows >= 0) + 2 * plan.gathered) * valid_share(w))
        weight_bytes = sum(tensors[name].size_bytes for name in run_weights(choice.run))
        partial_bytes = sum(size_bytes for _, size_bytes in _scratch(w, dict(choice.parameters), plan))
        return Work(
            bytes_read=rows_read * row_bytes * repeats + weight_bytes + plan_bytes(w, plan) + partial_bytes,
            bytes_written=stored_bytes(w, choice.run) + partial_bytes,
            flops=round(4 * plan.products * w.width * repeats * _pair_share(w)),
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Tiles and blocks of `choice`."""
        return Geometry(
            tile_rows=choice["tile_rows"],
            tile_columns=choice["chunk"],
            blocks=_grid(workload, dict(choice.parameters), _plan(workload, dict(choice.parameters))),
            threads=_threads(dict(choice.parameters)),
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
    if min(values[name] for name in ("slots", "blocks", "pieces")) < 1:
        return "slots, blocks and pieces must be at least 1"
    return None


def _bad_chunk(workload: Workload, values: Mapping[str, int]) -> str | None:
    if (size_bytes := values["chunk"] * _row_bytes(workload)) > MOST_CHUNK_BYTES:
        return f"a chunk's keys take {size_bytes} bytes, 16-bit offsets name {MOST_CHUNK_BYTES}"
    return None


def _too_few_registers(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    shifted = shifted_registers(values) if device.compute_capability == SHIFTING_CAPABILITY else 0
    needed, most = needed_registers(workload, values), shifted or thread_registers(values)
    return f"a thread needs {needed} registers, it has {most}" if needed > most else None


def _bad_plan(workload: Workload, values: Mapping[str, int]) -> str | None:
    if values["order"] not in list(Order):
        return f"order must be one of {', '.join(str(int(order)) for order in Order)}"
    if values["order"] not in TWO_PARTS:
        return None
    if not _splits(workload.mask_spec, workload.seq_len):
        return "the mask has no part near its diagonal to split off"
    if values["order"] == Order.SPLIT:
        return None
    if values["warps"] != values["tile_rows"] // FRAGMENT_ROWS or values["pieces"] > 1:
        return "two passes need one warp for each 16 rows, and tiles in one piece"
    if (kept := _outline(workload, values).kept) > values["slots"]:
        return f"the second pass needs {kept} chunks in shared memory, there are {values['slots']} slots"
    return None


@lru_cache(maxsize=32)
def _splits(mask: Mask, seq_len: int) -> bool:
    return all(splits(keep) for keep in mask.keep(seq_len))


def _too_large(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    plan = _outline(workload, values)
    needed = shared_bytes(workload, values, plan)
    if needed > device.shared_bytes_per_block:
        return f"{needed} bytes of shared memory are needed, a block has {device.shared_bytes_per_block}"
    if values["blocks"] * (needed + BLOCK_SHARED_BYTES) > device.shared_bytes_per_multiprocessor:
        return f"{values['blocks']} blocks of {needed} bytes of shared memory are more than a multiprocessor has"
    partial_sums = plan.shelves * len(plan.shelved) * workload.batch * workload.heads * channels(workload)
    if partial_sums > MAX_INDEX:
        return f"partial results would have {partial_sums:,} elements, and 31 bits index {MAX_INDEX + 1:,} at most"
    return None


def _threads(values: Mapping[str, int]) -> int:
    return (values["warps"] + values["copy_warps"]) * WARP_SIZE


def channels(workload: Workload) -> int:
    """Channels of a row in shared memory: a power of two."""
    return next(size for size in (32, 64, MOST_CHANNELS) if workload.head_dim <= size)


def _row_bytes(workload: Workload) -> int:
    return channels(workload) * workload.element.itemsize


def _weight_bytes(workload: Workload) -> int:
    """Of a row's partial result: see `Weight` of gather_layout.cuh."""
    return 8 if workload.element is DType.FLOAT32 else 4


def shared_bytes(workload: Workload, values: Mapping[str, int], plan: GatherPlan | GatherOutline) -> int:
    """Dynamic shared memory of a block: see `Tiling` of gather_layout.cuh, which checks it."""
    row_bytes, tile_rows = _row_bytes(workload), values["tile_rows"]
    fragments, two = tile_rows // FRAGMENT_ROWS, plan.passes > 1
    step_words = plan.passes * fragments * plan.blocks * (BLOCK_COLUMNS // 2 + WARP_SIZE)
    slot = _aligned(2 * values["chunk"] * row_bytes + 4 * step_words + 4 * values["chunk"] * workload.padded)
    numbers = tile_rows * (1 + plan.passes * two)
    item = _aligned((tile_rows + 2) * row_bytes + 4 * numbers + 4 * HEADER_WORDS + VECTOR_BYTES)
    shelves = plan.shelves > 0
    results = tile_rows * (row_bytes * shelves + _weight_bytes(workload) * (two or shelves))
    of_warps = 4 * (values["warps"] - fragments) * (channels(workload) // 2 + 4) * WARP_SIZE
    barriers = 8 * (2 * (values["slots"] + values["buffers"] + shelves) + 1)
    return values["slots"] * slot + values["buffers"] * item + results + of_warps + barriers


def _fragment_columns(values: Mapping[str, int], plan: GatherPlan) -> int:
    """Columns of a chunk that a fragment multiplies at most, in whole steps."""
    return min(values["chunk"], plan.blocks * BLOCK_COLUMNS)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def thread_registers(values: Mapping[str, int]) -> int:
    """Registers that a thread may have: those of one scheduler, shared by the resident warps that are dealt to it."""
    warps = -(-values["blocks"] * (values["warps"] + values["copy_warps"]) // SCHEDULERS)
    return min(MOST_REGISTERS, SCHEDULER_REGISTERS // (WARP_SIZE * warps) // REGISTER_STEP * REGISTER_STEP)


def shifted_registers(values: Mapping[str, int]) -> int:
    """Of a thread that multiplies, with what those that copy give up; 0 where its even share is plenty, or none can."""
    share = thread_registers(values)
    if share >= PLENTY_REGISTERS or values["warps"] % WARPGROUP or values["copy_warps"] % WARPGROUP:
        return 0
    given = (share - COPY_REGISTERS) * values["copy_warps"]
    return share + given // values["warps"] // REGISTER_STEP * REGISTER_STEP


def needed_registers(workload: Workload, values: Mapping[str, int]) -> int:
    """Registers of a multiplying thread, which keeps fragments across a chunk; one that copies needs fewer."""
    row_bytes = _row_bytes(workload)
    exact = workload.element is DType.FLOAT32
    offsets = (5 if exact else 2) * -(-values["step"] // 32)  # see `Step` of gather_products.cuh
    split = SPLIT_REGISTERS if exact else 0
    return channels(workload) // 2 + values["step"] // 2 + row_bytes // 8 + offsets + split + OTHER_REGISTERS


def _plan(workload: Workload, values: Mapping[str, int]) -> GatherPlan:
    return gather_plan(*_tiling(workload, values))


def _outline(workload: Workload, values: Mapping[str, int]) -> GatherOutline:
    return gather_outline(*_tiling(workload, values))


def _tiling(workload: Workload, values: Mapping[str, int]) -> tuple[Mask, int, int, int, Order, int]:
    order = Order(values["order"])
    return workload.mask_spec, workload.seq_len, values["tile_rows"], values["chunk"], order, values["pieces"]


def _in_turn(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> bool:
    """Whether an item of each head of a group is taken before the next of any: `head_item_of`, gather_layout.cuh."""
    return not plan.most_merge and plan.items * workload.batch * workload.heads > _grid(workload, values, plan)


def _group_heads(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> int:
    """Heads whose items are taken together, a divisor of all heads.

    Where most final items merge, enough that their partial items keep the card busy. Else, where there are partial
    ones, two items for each block that it executes at a time; where there are none, one for every other block.
    """
    heads, blocks = workload.batch * workload.heads, values["blocks"] * MULTIPROCESSORS
    items, wanted = plan.items, 2 * blocks if plan.partial_items else blocks // 2
    if plan.most_merge:
        items, wanted = plan.partial_items, PARTIAL_ITEMS_AT_ONCE
    enough = -(-wanted // items)
    return next(size for size in range(min(enough, heads), heads + 1) if heads % size == 0)


def _plan_arrays(workload: Workload, values: Mapping[str, int]) -> dict[str, PlanArray]:
    plan = _plan(workload, values)
    arrays: dict[str, PlanArray] = {ITEMS: plan.headers, ROWS: plan.rows, ORDERS: plan.orders, COLUMNS: plan.columns}
    arrays[STEPS_OF_ITEMS] = _steps(plan, _row_bytes(workload))
    if workload.padded:
        arrays[LIMITS] = _limits(plan)
    return {name: arrays[name] for name in _plan_names(workload, plan)}


def _plan_names(workload: Workload, plan: GatherPlan) -> tuple[str, ...]:
    """The arrays of the plan that the kernel reads, in the order of its parameters."""
    unread = {
        ORDERS: plan.passes == 1,
        COLUMNS: plan.formula is not None and not workload.padded,
        LIMITS: not workload.padded,
    }
    return tuple(name for name in (ITEMS, ROWS, ORDERS, COLUMNS, STEPS_OF_ITEMS, LIMITS) if not unread.get(name))


def plan_bytes(workload: Workload, plan: GatherPlan) -> int:
    """Of what `_plan_arrays` gives, where a place takes two bytes."""
    sizes = {ITEMS: plan.headers.nbytes, ROWS: plan.rows.nbytes, ORDERS: plan.orders.nbytes}
    sizes |= {COLUMNS: plan.columns.nbytes, STEPS_OF_ITEMS: plan.words.nbytes + 2 * plan.places.size}
    sizes |= {LIMITS: plan.headers[..., 0].size * (1 + plan.chunks) * 4}
    return sum(sizes[name] for name in _plan_names(workload, plan))


def _limits(plan: GatherPlan) -> NDArray[np.int32]:
    """(masks, items, 1 + chunks): an item's lowest row, and the lowest column of each chunk and those after it."""
    beyond = np.iinfo(np.int32).max
    rows = np.where(plan.rows < 0, beyond, plan.rows).min(axis=-1, keepdims=True)
    columns = np.where(plan.columns < 0, beyond, plan.columns).min(axis=-1)
    from_here = np.minimum.accumulate(columns[..., ::-1], axis=-1)[..., ::-1]
    return np.concatenate([rows, from_here], axis=-1).astype(np.int32)


def _pair_share(workload: Workload) -> float:
    """Pairs that the mask keeps within the sequences' lengths over all that it keeps, on average."""
    whole = kept_pairs(replace(workload, lengths=FULL, packed=False))
    return kept_pairs(workload) / whole if whole else 1.0


def _steps(plan: GatherPlan, row_bytes: int) -> NDArray[np.uint32]:
    """For each block of 64 columns: a 16-bit offset of each in shared memory, then the bits of its rows.

    Two words for each of 16 columns hold the offsets of that column and the ones 16, 32 and 48 further. An offset names
    the first vector of a row; see `swizzled` of gather_layout.cuh for how vectors lie.
    """
    rows = plan.places.astype(np.uint32)
    vectors = row_bytes // VECTOR_BYTES
    keys = min(vectors, BANK_VECTORS)
    line = rows // (BANK_VECTORS // keys)
    key = (line + line // 8 + line // 16 + line // 32) % keys
    offsets = ((rows * vectors + key) * VECTOR_BYTES).astype(np.uint16)
    by_column = offsets.reshape(*offsets.shape[:-1], -1, GROUP_COLUMNS).swapaxes(-1, -2)
    packed = np.ascontiguousarray(by_column).view("<u4").reshape(*offsets.shape[:-1], -1)
    return np.concatenate([packed, plan.words], axis=-1)


def _grid(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> int:
    """Blocks: no more than a card executes at a time."""
    return min(plan.items * workload.heads * workload.batch, values["blocks"] * MULTIPROCESSORS)


def _scratch(workload: Workload, values: Mapping[str, int], plan: GatherPlan) -> tuple[tuple[str, int], ...]:
    """Room for partial results and counts: see `Plan` of gather_layout.cuh."""
    heads = workload.batch * workload.heads
    if not plan.partial_items and _grid(workload, values, plan) == plan.items * heads:
        return ()
    rows = max(1, plan.shelves * heads * len(plan.shelved))
    sizes = (rows * _row_bytes(workload), rows * _weight_bytes(workload), (2 + heads) * 4)
    return tuple(zip(SCRATCH_NAMES, sizes, strict=True))


TEMPLATE = GatherTemplate()
