"""Attention of tiles that keep few columns, all of them at once, from `qkv` or `qkv_raw` to `context` or `merged`."""

from collections.abc import Mapping
from functools import partial

from atoffer_rl.device import DeviceSpec
from atoffer_rl.gather_items import GROUP_COLUMNS
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.attention import RUNS, not_plain, shape_arguments
from atoffer_rl.kernels.templates.limits import WARP_SIZE, no_clusters, too_much_shared, too_old
from atoffer_rl.operators import run_activations, run_results, run_weights
from atoffer_rl.row_order import FRAGMENT_ROWS
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.single_plan import SingleOutline, single_outline, single_plan
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

HEAD_DIMS = (32, 64, 128)
MAX_WARPS = 16
COLUMN_WARPS = (1, 2, 4)
SPLITS = (1, 2, 4, 8)
MOST_WARP_STEPS = 8
"""Steps of 16 columns whose scores a warp has room for."""
ALIGNMENT_BYTES = 256
SUM_PADDING = 8
BARRIER_BYTES = 16
HEADERS = (
    "common.cuh",
    "barriers.cuh",
    "cluster.cuh",
    "swizzle.cuh",
    "pairs.cuh",
    "single_layout.cuh",
    "single_copy.cuh",
    "single_warp.cuh",
    "single_result.cuh",
    "single.cuh",
)
PLAN_NAMES = ("single_tiles", "single_counts", "single_columns", "single_words")


class SingleTemplate:
    """One thread block for each (item of the plan, head, sequence); see single.cuh for the data flow."""

    name = "single"
    runs = RUNS
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why this template cannot implement `run` of `workload` at all; None if it can."""
        return not_plain(workload, HEAD_DIMS) or too_old(device)

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule `values` break; None if none."""
        return _bad_tiling(values) or _bad_splits(workload, values, device) or _too_large(workload, values, device)

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The rendered kernel of `choice`."""
        values, run = dict(choice.parameters), choice.run
        entry = f"single_attention_{run.first}_{run.last}"
        outline = _outline(workload, values)
        source = render(
            "single.cu.j2",
            entry=entry,
            **shape_arguments(workload, run),
            columns=outline.room,
            items=outline.items,
            shared_items=outline.shared,
            threads=_threads(values),
            shared_bytes=shared_bytes(workload, values),
            **values,
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=HEADERS,
            grid=(self.geometry(workload, choice).blocks, 1, 1),
            block=(_threads(values), 1, 1),
            shared_bytes=shared_bytes(workload, values),
            arguments=(*run_activations(run), *run_weights(run), *PLAN_NAMES, *run_results(run)),
            plan=partial(_plan_arrays, workload, values["tile_rows"], values["splits"]),
            overlaps=True,
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes and flops of `choice`: an item reads rows and columns once, a fragment multiplies steps it keeps."""
        w, plan = workload, single_plan(workload.mask_spec, workload.seq_len, choice["tile_rows"], choice["splits"])
        repeats = w.batch // len(plan.counts)
        row_bytes = w.width * w.element.itemsize
        tensors = layer_tensors(w)
        rows_read = (plan.rows_read(w.seq_len) + 2 * int(plan.counts.sum())) * repeats
        plan_bytes = plan.tiles.nbytes + plan.counts.nbytes + plan.columns.nbytes + plan.words.nbytes
        weight_bytes = sum(tensors[name].size_bytes for name in run_weights(choice.run))
        return Work(
            bytes_read=rows_read * row_bytes + weight_bytes + plan_bytes,
            bytes_written=sum(tensors[name].size_bytes for name in run_results(choice.run)),
            flops=4 * plan.steps * FRAGMENT_ROWS * GROUP_COLUMNS * w.width * repeats,
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Tiles and blocks of `choice`."""
        outline = _outline(workload, dict(choice.parameters))
        return Geometry(
            tile_rows=choice["tile_rows"],
            tile_columns=outline.room,
            blocks=outline.items * workload.heads * workload.batch,
            threads=_threads(dict(choice.parameters)),
        )


def _bad_tiling(values: Mapping[str, int]) -> str | None:
    fragments, ragged_rows = divmod(values["tile_rows"], FRAGMENT_ROWS)
    if ragged_rows or fragments < 1:
        return f"tile_rows must be a multiple of {FRAGMENT_ROWS}"
    if values["column_warps"] not in COLUMN_WARPS:
        return "column_warps must be 1, 2 or 4"
    if fragments * values["column_warps"] > MAX_WARPS:
        return f"a block has {MAX_WARPS} warps at most"
    # Then so many rows are copied at a time, too, as the swizzle wants: see kCopyRows of single_layout.cuh.
    if fragments & (fragments - 1):
        return f"tile_rows / {FRAGMENT_ROWS} must be a power of two"
    return None


def _bad_splits(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    if values["splits"] not in SPLITS:
        return "splits must be 1, 2, 4 or 8"
    if values["splits"] == 1:
        return None
    if reason := no_clusters("splits", device):
        return reason
    if not _outline(workload, values).shared:
        return f"{values['splits']} pieces save no room: no few tiles keep far more columns than the others"
    return None


def _too_large(workload: Workload, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    steps = _outline(workload, values).room // GROUP_COLUMNS
    if -(-steps // values["column_warps"]) > MOST_WARP_STEPS:
        return f"an item has {steps * GROUP_COLUMNS} columns: a warp has room for scores of {MOST_WARP_STEPS} steps"
    return too_much_shared(shared_bytes(workload, values), device)


def _threads(values: Mapping[str, int]) -> int:
    return values["tile_rows"] // FRAGMENT_ROWS * values["column_warps"] * WARP_SIZE


def _outline(workload: Workload, values: Mapping[str, int]) -> SingleOutline:
    return single_outline(workload.mask_spec, workload.seq_len, values["tile_rows"], values["splits"])


def shared_bytes(workload: Workload, values: Mapping[str, int]) -> int:
    """Dynamic shared memory of a block: see `Tiling` of single_layout.cuh, which checks it."""
    row_bytes = workload.head_dim * workload.element.itemsize
    matrix = _outline(workload, values).room * row_bytes
    found = _threads(values) // WARP_SIZE * FRAGMENT_ROWS * (workload.head_dim + SUM_PADDING + 2) * 4
    before_values = max(values["tile_rows"] * row_bytes + matrix, found)
    alone = -(-before_values // ALIGNMENT_BYTES) * ALIGNMENT_BYTES + matrix
    if values["splits"] == 1:
        return alone
    part = workload.head_dim * 4 + row_bytes  # of a row, each vector's sums, its highest score and total
    return alone + values["tile_rows"] * part + BARRIER_BYTES


def _plan_arrays(workload: Workload, tile_rows: int, splits: int) -> dict[str, PlanArray]:
    plan = single_plan(workload.mask_spec, workload.seq_len, tile_rows, splits)
    return dict(zip(PLAN_NAMES, (plan.tiles, plan.counts, plan.columns, plan.words), strict=True))


TEMPLATE = SingleTemplate()
