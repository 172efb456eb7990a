"""Block attention: whole column blocks on warpgroup products, from `qkv` or `qkv_raw` to `context` or `merged`."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from atoffer_rl.block_plan import BlockPlan, Reach, block_plan
from atoffer_rl.device import DeviceSpec
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.attention import RUNS, not_plain, shape_arguments
from atoffer_rl.kernels.templates.limits import REGISTER_STEP, too_many_residents, too_much_shared
from atoffer_rl.operators import run_activations, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

HEAD_DIMS = (64, 128)
BLOCK_COLUMNS = (64, 128)
ARCH = "sm_90a"
GROUP_ROWS, GROUP_THREADS = 64, 128
MAX_GROUPS = 3
SPLITS = (1, 2, 4)
HEADERS = (
    "common.cuh",
    "barriers.cuh",
    "registers.cuh",
    "ring.cuh",
    "pairs.cuh",
    "panels.cuh",
    "wgmma.cuh",
    "cluster.cuh",
    "block_layout.cuh",
    "block_copy.cuh",
    "block_warpgroup.cuh",
    "block.cuh",
)
PLAN_NAMES = ("block_lists", "block_bitmaps")

REGISTERS, MAX_REGISTERS = 65_536, 240
LOADER_REGISTERS = (40, 40, 32)
"""Of a thread that only copies, beside one, two or three warpgroups that compute."""
WORKING_REGISTERS = 24
"""What a computing thread needs besides what it keeps: addresses, the softmax of a few scores."""
PANEL_ALIGNMENT, BARRIER_BYTES, PARTIAL_BARRIER_BYTES, VECTOR_BYTES = 1024, 24, 8, 16
ROW_FLOATS = 4
"""Beside its sums, what a thread gives to the rank that finishes its rows: two maxima, two totals."""
CACHED_BYTES = 24 * 2**20
"""Keys and values that are read at the same time: half of the L2 cache, which holds queries and results besides."""


class BlockTemplate:
    """One thread block for each (row tile, head, sequence); see block.cuh for the data flow."""

    name = "block"
    runs = RUNS
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why this template cannot implement `run` of `workload` at all; None if it can."""
        if reason := not_plain(workload, HEAD_DIMS):
            return reason
        if device.arch != ARCH:
            return f"warpgroup products are instructions of {ARCH} alone, not of {device.arch}"
        return None

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule `values` break; None if none."""
        return _bad_blocking(values) or _too_large(workload, values, device)

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The rendered kernel of `choice`."""
        values, run = dict(choice.parameters), choice.run
        entry = f"block_attention_{run.first}_{run.last}"
        source = render(
            "block.cu.j2",
            entry=entry,
            **shape_arguments(workload, run),
            pairs_at_once=pairs_at_once(workload),
            reach=int(_plan(workload, values["tile_rows"], values["columns"]).reach),
            registers=registers(values),
            loader_registers=loader_registers(values),
            threads=threads(values),
            shared_bytes=shared_bytes(workload, values),
            **values,
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=HEADERS,
            grid=(self.geometry(workload, choice).blocks, 1, 1),
            block=(threads(values), 1, 1),
            shared_bytes=shared_bytes(workload, values),
            arguments=(*run_activations(run), *run_weights(run), *PLAN_NAMES, *run_results(run)),
            plan=partial(_plan_arrays, workload, values["tile_rows"], values["columns"]),
            overlaps=True,
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes and flops of `choice`: each tile reads the columns it needs; its warpgroups multiply whole blocks."""
        w, plan = workload, _plan(workload, choice["tile_rows"], choice["columns"])
        repeats = w.batch // w.mask_spec.batches(w.seq_len)
        row_bytes = w.width * w.element.itemsize
        tensors = layer_tensors(w)
        plan_bytes = plan.lists.nbytes + plan.bitmaps.nbytes
        weight_bytes = sum(tensors[name].size_bytes for name in run_weights(choice.run))
        return Work(
            bytes_read=(w.rows + 2 * plan.columns_read * repeats) * row_bytes + weight_bytes + plan_bytes,
            bytes_written=sum(tensors[name].size_bytes for name in run_results(choice.run)),
            flops=4 * _group_blocks(plan, w.seq_len, choice) * GROUP_ROWS * plan.columns * w.width * repeats,
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Tiles and blocks of `choice`."""
        tiles = -(-workload.seq_len // choice["tile_rows"])
        return Geometry(
            tile_rows=choice["tile_rows"],
            tile_columns=choice["columns"],
            blocks=tiles * workload.heads * workload.batch * choice["splits"],
            threads=threads(choice),
        )


def _group_blocks(plan: BlockPlan, seq_len: int, choice: Choice) -> int:
    """Column blocks that all warpgroups multiply: see `count_of` of block_layout.cuh."""
    groups = plan.tile_rows // GROUP_ROWS
    if plan.reach is not Reach.DIAGONAL or choice["loader"]:
        return plan.blocks * groups
    ends = np.arange(-(-seq_len // plan.tile_rows) * groups) * GROUP_ROWS + GROUP_ROWS
    return len(plan.lists) * int((-(-np.minimum(ends, seq_len) // plan.columns)).sum())


def _bad_blocking(values: Mapping[str, int]) -> str | None:
    groups, ragged = divmod(values["tile_rows"], GROUP_ROWS)
    if ragged or groups not in range(1, MAX_GROUPS + 1):
        return "tile_rows must be 64, 128 or 192"
    if values["columns"] not in BLOCK_COLUMNS:
        return "columns must be 64 or 128"
    # Besides, where copies are everybody's, a warpgroup that ends at its diagonal must have begun all that the others
    # wait for: block_layout.cuh asserts it.
    if not values["loader"] and groups == MAX_GROUPS:
        return "192 rows need a loader: their threads do not share out the columns evenly"
    if values["splits"] not in SPLITS:
        return "splits must be 1, 2 or 4"
    if values["splits"] > 1 and (groups > 1 or values["loader"]):
        return "blocks share 64 rows, and have no loader"
    if values["stages"] < (2 if values["loader"] else 3):
        return "a loader needs 2 stages, threads that compute and copy need 3"
    return None


def _too_large(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    needed = shared_bytes(workload, values)
    if reason := too_much_shared(needed, device) or too_many_residents(values["residents"], needed, device):
        return reason
    kept, held = kept_values(workload, values), registers(values) - WORKING_REGISTERS
    if kept > held:
        return f"a thread would keep {kept} values from block to block, its registers hold {held}"
    return None


def threads(values: Mapping[str, int] | Choice) -> int:
    """Threads of a block: a warpgroup for each 64 rows, and one that copies if there is a loader."""
    return (values["tile_rows"] // GROUP_ROWS + values["loader"]) * GROUP_THREADS


def loader_registers(values: Mapping[str, int]) -> int:
    """Registers of a thread that only copies."""
    return LOADER_REGISTERS[values["tile_rows"] // GROUP_ROWS - 1]


def registers(values: Mapping[str, int]) -> int:
    """Registers of a thread that computes: an even share, and what the loader's threads give up of theirs."""
    share = REGISTERS // (values["residents"] * threads(values)) // REGISTER_STEP * REGISTER_STEP
    if values["loader"]:
        groups = values["tile_rows"] // GROUP_ROWS
        given = share - loader_registers(values)
        share = (share * groups + given) // groups // REGISTER_STEP * REGISTER_STEP
    return min(share, MAX_REGISTERS)


def kept_values(workload: Workload, values: Mapping[str, int]) -> int:
    """Registers' worth of values that a thread keeps: sums, scores, probabilities, words of a bitmap, queries."""
    head_dim, columns = workload.head_dim, values["columns"]
    queries = 0 if values["shared_queries"] else head_dim // 4
    return head_dim // 2 + columns // 2 + columns // 4 + columns // 16 + queries


def shared_bytes(workload: Workload, values: Mapping[str, int]) -> int:
    """Dynamic shared memory of a block: queries, stages of keys and values, barriers, partial results, alignment."""
    row_bytes = workload.head_dim * workload.element.itemsize
    queries = values["tile_rows"] * row_bytes if values["shared_queries"] else 0
    stages = values["stages"] * (2 * values["columns"] * row_bytes + BARRIER_BYTES)
    needed = PANEL_ALIGNMENT + queries + stages
    if values["splits"] == 1:
        return needed
    finished_threads = GROUP_THREADS // values["splits"]
    partials = (values["splits"] - 1) * finished_threads * (workload.head_dim // 2 + ROW_FLOATS) * 4
    return -(-(needed + PARTIAL_BARRIER_BYTES) // VECTOR_BYTES) * VECTOR_BYTES + partials


def pairs_at_once(workload: Workload) -> int:
    """(sequence, head) pairs whose keys and values are read at the same time."""
    pair_bytes = 2 * workload.seq_len * workload.head_dim * workload.element.itemsize
    return min(max(CACHED_BYTES // pair_bytes, 1), workload.batch * workload.heads)


def _plan(workload: Workload, tile_rows: int, columns: int) -> BlockPlan:
    return block_plan(workload.mask_spec, workload.seq_len, tile_rows, columns)


def _plan_arrays(workload: Workload, tile_rows: int, columns: int) -> dict[str, PlanArray]:
    plan = _plan(workload, tile_rows, columns)
    return dict(zip(PLAN_NAMES, (plan.lists, plan.bitmaps), strict=True))


TEMPLATE = BlockTemplate()
