"""Tile attention: a row tile's gathered columns on tensor cores, from `qkv` or `qkv_raw` to `context` or `merged`."""

from collections.abc import Mapping
from functools import partial
from math import e, log2, sqrt

import numpy as np

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.elements import ELEMENT_TYPES
from atoffer_rl.mask_plan import TilePlan, tile_plan
from atoffer_rl.operators import run_activations, run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

HEAD_DIMS = (32, 64, 128)
WARP_COLUMNS = (16, 32, 64, 128)
OLDEST_ARCH = 80
BIAS_OPERATOR = 1
MERGE_OPERATOR = 6
FRAGMENT_ROWS = 16
WARP_SIZE = 32
MAX_WARPS = 8
VECTOR_BYTES = 16
PLAN_NAMES = ("tile_starts", "tile_columns", "tile_words")
MAX_KEPT_VALUES = 168
"""What a thread keeps across a chunk, at most, without spilling: the rest of its 255 registers address and convert."""


class TileTemplate:
    """One block for each (row tile, head, batch); see tile.cuh for the data flow."""

    name = "tile"
    runs = frozenset({Run(1, 5), Run(1, 6), Run(2, 5), Run(2, 6)})
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why this template cannot implement `run` of `workload` at all; None if it can."""
        if workload.padded:
            return "it reads no sequence lengths: use gather or rowwise"
        if workload.element is DType.FLOAT32:
            return "tensor cores have no exact product of float32: use float16 or bfloat16"
        if workload.head_dim not in HEAD_DIMS:
            return f"head_dim must be 32, 64 or 128, not {workload.head_dim}"
        if device.compute_capability < OLDEST_ARCH:
            return f"asynchronous copies need sm_{OLDEST_ARCH} or later, not {device.arch}"
        return None

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule `values` break; None if none."""
        return _bad_tiling(values) or _too_large(workload, values, device)

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The rendered kernel of `choice`."""
        values, run = dict(choice.parameters), choice.run
        entry = f"tile_attention_{run.first}_{run.last}"
        source = render(
            "tile.cu.j2",
            entry=entry,
            element=ELEMENT_TYPES[workload.element],
            seq_len=workload.seq_len,
            heads=workload.heads,
            head_dim=workload.head_dim,
            mask_batches=workload.mask_spec.batches(workload.seq_len),
            add_bias="true" if BIAS_OPERATOR in run else "false",
            merged="true" if MERGE_OPERATOR in run else "false",
            scale_log2=repr(float(np.float32(log2(e) / sqrt(workload.head_dim)))),
            **values,
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=("common.cuh", "tile.cuh"),
            grid=(self.geometry(workload, choice).blocks, 1, 1),
            block=(values["warps"] * WARP_SIZE, 1, 1),
            shared_bytes=shared_bytes(workload, values),
            arguments=(*run_activations(run), *run_weights(run), *PLAN_NAMES, *run_results(run)),
            plan=partial(_plan_arrays, workload, values["tile_rows"], values["chunk"]),
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes and flops of `choice`: each tile reads the columns it gathers, and multiplies whole chunks."""
        w, plan = workload, _plan(workload, choice["tile_rows"], choice["chunk"])
        repeats = w.batch // w.mask_spec.batches(w.seq_len)
        row_bytes = w.width * w.element.itemsize
        tensors = layer_tensors(w)
        plan_bytes = sum(array.nbytes for array in (plan.starts, plan.columns, plan.words))
        gathered_bytes = 2 * plan.gathered * row_bytes * repeats
        weight_bytes = sum(tensors[name].size_bytes for name in run_weights(choice.run))
        products = plan.columns.size * plan.tile_rows * w.width * repeats
        return Work(
            bytes_read=w.rows * row_bytes + gathered_bytes + weight_bytes + plan_bytes,
            bytes_written=sum(tensors[name].size_bytes for name in run_results(choice.run)),
            flops=4 * products,
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Tiles and blocks of `choice`."""
        tiles = -(-workload.seq_len // choice["tile_rows"])
        return Geometry(
            tile_rows=choice["tile_rows"],
            tile_columns=choice["chunk"],
            blocks=tiles * workload.heads * workload.batch,
            threads=choice["warps"] * WARP_SIZE,
        )


def _bad_tiling(values: Mapping[str, int]) -> str | None:
    row_warps, ragged_rows = divmod(values["tile_rows"], FRAGMENT_ROWS)
    if ragged_rows or not row_warps:
        return "tile_rows must be a multiple of 16"
    if values["warps"] not in range(row_warps, MAX_WARPS + 1, row_warps):
        return f"warps must be a multiple of tile_rows / 16 up to {MAX_WARPS}"
    if values["chunk"] not in [columns * values["warps"] // row_warps for columns in WARP_COLUMNS]:
        return "each warp must take 16, 32, 64 or 128 columns of a chunk"
    if values["stages"] < 1:
        return "at least one stage is needed"
    return None


def _too_large(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    needed, kept = shared_bytes(workload, values), kept_values(workload, values)
    if needed > device.shared_bytes_per_block:
        return f"{needed} bytes of shared memory are needed, a block has {device.shared_bytes_per_block}"
    if kept > MAX_KEPT_VALUES:
        return f"a thread would keep {kept} values across a chunk, its registers hold {MAX_KEPT_VALUES}"
    return None


def shared_bytes(workload: Workload, values: Mapping[str, int]) -> int:
    """Dynamic shared memory of a block: the stages, reused at the end for the result and the column warps' sums."""
    row_bytes = workload.head_dim * workload.element.itemsize
    stages = values["stages"] * 2 * values["chunk"] * row_bytes
    row_warps = values["tile_rows"] // FRAGMENT_ROWS
    partial_bytes = 4 * (workload.head_dim // 2 + 4) * WARP_SIZE
    return max(stages, values["tile_rows"] * row_bytes + (values["warps"] - row_warps) * partial_bytes)


def kept_values(workload: Workload, values: Mapping[str, int]) -> int:
    """Registers' worth of values that a thread keeps across a chunk: fragments, columns to copy."""
    head_dim, chunk, threads = workload.head_dim, values["chunk"], values["warps"] * WARP_SIZE
    warp_columns = chunk * (values["tile_rows"] // FRAGMENT_ROWS) // values["warps"]
    sums, scores, queries = head_dim // 2, warp_columns // 2, head_dim // 4
    copies = -(-chunk * head_dim * workload.element.itemsize // (VECTOR_BYTES * threads))
    return sums + scores + queries + copies


def _plan(workload: Workload, tile_rows: int, chunk: int) -> TilePlan:
    return tile_plan(workload.mask_spec, workload.seq_len, tile_rows, chunk)


def _plan_arrays(workload: Workload, tile_rows: int, chunk: int) -> dict[str, PlanArray]:
    plan = _plan(workload, tile_rows, chunk)
    return dict(zip(PLAN_NAMES, (plan.starts, plan.columns, plan.words), strict=True))


TEMPLATE = TileTemplate()
