"""Attention on CUDA cores, one query row a warp, that visits only the columns its mask keeps."""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from atoffer_rl.device import DeviceSpec
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.elements import ELEMENT_TYPES, tensor_parameter
from atoffer_rl.kernels.templates.limits import WARP_SIZE, too_much_shared
from atoffer_rl.mask_plan import row_plan
from atoffer_rl.masks import Mask
from atoffer_rl.operators import (
    PV_OPERATOR,
    QK_OPERATOR,
    QKV_BIAS_OPERATOR,
    SOFTMAX_OPERATOR,
    reads_mask,
    run_activations,
    run_results,
    run_weights,
)
from atoffer_rl.roofline import kept_pairs, stored_bytes, valid_share
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors, no_place, reads_lengths, run_inputs
from atoffer_rl.workload import Workload

RUNS = frozenset(
    Run(first, last)
    for first, lasts in {1: range(2, 7), 2: range(2, 7), 3: (5, 6), 4: (5, 6), 5: (5, 6)}.items()
    for last in lasts
)
ACCESS_BYTES = 16
MOST_HEAD_DIM = 1024
# As in rowwise.cuh: elements of head_dim a lane holds of one column, and of all its columns in flight.
MOST_SLICED = 32
MOST_IN_FLIGHT = 64
# Teams up to this size are offered for any head_dim, however small.
ALWAYS_LANES = 8
SOFTMAX_FLOPS = 5
MASK_STARTS, MASK_COLUMNS = "mask_starts", "mask_columns"


class RowwiseTemplate:
    """One query row a warp; parameters are warps a block, lanes a column, columns in flight a team of lanes."""

    name = "rowwise"
    runs = RUNS
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why `run` of `workload` cannot be implemented at all; None if it can."""
        if workload.head_dim > MOST_HEAD_DIM:
            return f"a warp holds heads of up to {MOST_HEAD_DIM} channels, not {workload.head_dim}"
        return no_place(workload, run)

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule (registers, shared memory, idle lanes) `values` break; None if none."""
        lanes, unroll = values["lanes"], values["unroll"]
        vector = access_elements(workload)
        sliced = vector * -(-workload.head_dim // (lanes * vector))
        if lanes > ALWAYS_LANES and lanes // 2 * vector >= workload.head_dim:
            return f"half of {lanes} lanes have no work in heads of {workload.head_dim}"
        if sliced > MOST_SLICED or unroll * sliced > MOST_IN_FLIGHT:
            return f"{unroll} columns of {sliced} elements a lane do not fit in registers"
        return too_much_shared(shared_bytes(workload, run, values["warps"]), device)

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The kernel of `choice`."""
        run = choice.run
        plan = (MASK_STARTS, MASK_COLUMNS) if reads_mask(run) else ()
        inputs = run_inputs(workload, run) + run_weights(run) + plan
        outputs = run_results(run)
        entry = f"rowwise_{run.first}_{run.last}"
        threads = WARP_SIZE * choice["warps"]
        source = render(
            "rowwise.cu.j2",
            run=run,
            entry=entry,
            element=ELEMENT_TYPES[workload.element],
            config=config(workload, choice),
            scale=f"{workload.head_dim**-0.5!r}f",
            threads=threads,
            padded=reads_lengths(workload, run),
            packed=workload.packed,
            parameters=[parameter(workload, run, name) for name in inputs + outputs],
            inputs=inputs,
            outputs=outputs,
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=("common.cuh", "rowwise.cuh"),
            grid=(self.geometry(workload, choice).blocks, 1, 1),
            block=(threads, 1, 1),
            shared_bytes=shared_bytes(workload, run, choice["warps"]),
            arguments=inputs + outputs,
            plan=lambda: mask_lists(workload, run),
            overlaps=True,
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Every tensor once (of q, k, v what is used), the mask's lists, and the products of visited columns.

        Within sequence lengths, on average, where they are read.
        """
        run = choice.run
        tensors = layer_tensors(workload)
        pairs = visited_pairs(workload, run)
        share = valid_share(workload) if reads_lengths(workload, run) else 1.0
        read = sum(array.nbytes for array in mask_lists(workload, run).values())
        for name in run_activations(run) + run_weights(run):
            if name in ("qkv", "qkv_raw"):
                read += int(tensors[name].size_bytes * used_parts(run) // 3 * share)
            else:
                read += pairs * tensors[name].dtype.itemsize if name == "scores" else tensors[name].size_bytes
        products = (QK_OPERATOR in run) + (PV_OPERATOR in run)
        return Work(
            bytes_read=read,
            bytes_written=stored_bytes(workload, run),
            flops=pairs * (2 * workload.head_dim * products + SOFTMAX_FLOPS * (SOFTMAX_OPERATOR in run)),
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """A block computes a query row a warp, some columns at a time."""
        columns = WARP_SIZE // choice["lanes"] * choice["unroll"]
        tiles = -(-workload.seq_len // choice["warps"])
        blocks = tiles * workload.heads * workload.batch
        return Geometry(choice["warps"], columns, blocks, WARP_SIZE * choice["warps"])


def access_elements(workload: Workload) -> int:
    """Elements of the widest access that divides a head."""
    vector = ACCESS_BYTES // workload.element.itemsize
    while workload.head_dim % vector:
        vector //= 2
    return vector


def staged_floats(workload: Workload, run: Run) -> int:
    """Scores that a warp stages: the longest list of the mask, or all columns where rows are dense or stored."""
    if reads_mask(run) and PV_OPERATOR in run:
        return max(1, longest_list(workload.mask_spec, workload.seq_len))
    return workload.seq_len


def shared_bytes(workload: Workload, run: Run, warps: int) -> int:
    """Shared memory of a block."""
    return 4 * warps * staged_floats(workload, run)


@lru_cache(maxsize=64)
def longest_list(mask: Mask, seq_len: int) -> int:
    """The most columns that a row of `mask` keeps."""
    return int(np.diff(row_plan(mask, seq_len).starts, axis=1).max())


def mask_lists(workload: Workload, run: Run) -> dict[str, PlanArray]:
    """The kept columns of every row, where `run` reads the mask."""
    if not reads_mask(run):
        return {}
    plan = row_plan(workload.mask_spec, workload.seq_len)
    # A device array of no elements has no address.
    columns = plan.columns if plan.columns.size else np.zeros(1, np.int32)
    return {MASK_STARTS: plan.starts, MASK_COLUMNS: columns}


def visited_pairs(workload: Workload, run: Run) -> int:
    """(query, key) pairs that `run` visits over all heads and sequences, on average."""
    if not reads_mask(run):
        return workload.score_count
    if workload.padded:
        return kept_pairs(workload)
    kept = int(row_plan(workload.mask_spec, workload.seq_len).columns.size)
    return kept * workload.heads * workload.batch // workload.mask_spec.batches(workload.seq_len)


def used_parts(run: Run) -> int:
    """How many of q, k and v `run` reads."""
    if QKV_BIAS_OPERATOR in run and PV_OPERATOR not in run:
        return 3
    return 2 * (QK_OPERATOR in run) + (PV_OPERATOR in run)


def config(workload: Workload, choice: Choice) -> dict[str, int]:
    """The numbers of rowwise.cuh's Config."""
    return {
        "first": choice.run.first,
        "last": choice.run.last,
        "seq": workload.seq_len,
        "heads": workload.heads,
        "head_dim": workload.head_dim,
        "masks": workload.mask_spec.batches(workload.seq_len) if reads_mask(choice.run) else 1,
        "vector": access_elements(workload),
        "staged": staged_floats(workload, choice.run),
        **dict(choice.parameters),
    }


def parameter(workload: Workload, run: Run, name: str) -> str:
    """The declaration of pointer `name`."""
    if name in (MASK_STARTS, MASK_COLUMNS):
        return f"const int* __restrict__ {name}"
    return tensor_parameter(workload, run, name)


TEMPLATE = RowwiseTemplate()
