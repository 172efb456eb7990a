"""What blocks of gathering attention take of a multiprocessor: threads, shared memory, registers."""

from collections.abc import Mapping

from atoffer_rl.dtype import DType
from atoffer_rl.gather_items import BLOCK_COLUMNS, GatherOutline
from atoffer_rl.gather_plan import HEADER_WORDS
from atoffer_rl.kernels.templates.limits import MAX_THREAD_REGISTERS, REGISTER_STEP, WARP_SIZE
from atoffer_rl.row_order import FRAGMENT_ROWS
from atoffer_rl.workload import Workload

MOST_CHANNELS = 128
VECTOR_BYTES = 16
SHARED_ALIGNMENT = 256
SCHEDULERS = 4
"""Of a multiprocessor, over which warps are dealt out."""
SCHEDULER_REGISTERS = 16384
OTHER_REGISTERS = 38
"""What addresses, conversions and the loop take of a multiplying thread's registers."""
SPLIT_REGISTERS = 12
"""What float32's split operands take besides."""
COPY_REGISTERS, PLENTY_REGISTERS = 64, 128
"""What a copying thread keeps, and a share with which a multiplying one needs no more."""
WARPGROUP = 4
"""Warps that give registers back, or take them, together."""


def threads(values: Mapping[str, int]) -> int:
    """Threads of a block: those that multiply, and those that copy."""
    return (values["warps"] + values["copy_warps"]) * WARP_SIZE


def channels(workload: Workload) -> int:
    """Channels of a row in shared memory: a power of two."""
    return next(size for size in (32, 64, MOST_CHANNELS) if workload.head_dim <= size)


def row_bytes(workload: Workload) -> int:
    """Of a row of one head in shared memory."""
    return channels(workload) * workload.element.itemsize


def weight_bytes(workload: Workload) -> int:
    """Of a row's partial result: see `Weight` of gather_layout.cuh."""
    return 8 if workload.element is DType.FLOAT32 else 4


def shared_bytes(workload: Workload, values: Mapping[str, int], outline: GatherOutline) -> int:
    """Dynamic shared memory of a block: see `Tiling` of gather_layout.cuh, which checks it."""
    of_row, tile_rows = row_bytes(workload), values["tile_rows"]
    fragments, two = tile_rows // FRAGMENT_ROWS, outline.passes > 1
    step_words = outline.passes * fragments * outline.blocks * (BLOCK_COLUMNS // 2 + WARP_SIZE)
    stage = _aligned(2 * values["chunk"] * of_row + 4 * step_words + 4 * values["chunk"] * workload.padded)
    numbers = tile_rows * (1 + outline.passes * two)
    shares = tile_rows * weight_bytes(workload) * outline.wide
    item = _aligned((tile_rows + 2) * of_row + 4 * numbers + 4 * HEADER_WORDS + shares + VECTOR_BYTES)
    shelves = outline.shelves > 0
    results = tile_rows * (of_row * shelves + weight_bytes(workload) * (two or shelves))
    of_warps = 4 * (values["warps"] - fragments) * (channels(workload) // 2 + 4) * WARP_SIZE
    barriers = 8 * (2 * (values["stages"] + values["buffers"] + shelves) + 1)
    return values["stages"] * stage + values["buffers"] * item + results + of_warps + barriers


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def thread_registers(values: Mapping[str, int]) -> int:
    """Registers that a thread may have: those of one scheduler, shared by the resident warps that are dealt to it."""
    warps = -(-values["residents"] * (values["warps"] + values["copy_warps"]) // SCHEDULERS)
    return min(MAX_THREAD_REGISTERS, SCHEDULER_REGISTERS // (WARP_SIZE * warps) // REGISTER_STEP * REGISTER_STEP)


def shifted_registers(values: Mapping[str, int]) -> int:
    """Of a thread that multiplies, with what those that copy give up; 0 where its even share is plenty, or none can."""
    share = thread_registers(values)
    if share >= PLENTY_REGISTERS or values["warps"] % WARPGROUP or values["copy_warps"] % WARPGROUP:
        return 0
    given = (share - COPY_REGISTERS) * values["copy_warps"]
    return share + given // values["warps"] // REGISTER_STEP * REGISTER_STEP


def needed_registers(workload: Workload, values: Mapping[str, int]) -> int:
    """Registers of a multiplying thread, which keeps fragments across a chunk; one that copies needs fewer."""
    exact = workload.element is DType.FLOAT32
    offsets = (5 if exact else 2) * -(-values["step"] // 32)  # see `Step` of gather_products.cuh
    split = SPLIT_REGISTERS if exact else 0
    return channels(workload) // 2 + values["step"] // 2 + row_bytes(workload) // 8 + offsets + split + OTHER_REGISTERS
