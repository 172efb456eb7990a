"""Generated GEMM: a dense operator with the operators around it as prologue and epilogue.

Tensor cores through `mma.sync` for float16 and bfloat16, CUDA cores for float32; sm_80 and later. The device
code and a drawing of the data flow are in `gemm.cuh`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.elements import ELEMENT_TYPES, activation_type
from atoffer_rl.kernels.templates.limits import MAX_THREAD_REGISTERS, WARP_SIZE, no_clusters, too_much_shared, too_old
from atoffer_rl.operators import MERGE_OPERATOR, OPERATORS, Kind, run_activations, run_operators, run_results
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors, no_place
from atoffer_rl.workload import Workload

PARAMETERS = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "warps_k", "stages", "split_k")
MAX_CLUSTER = 8
MAX_THREADS = 512
PRODUCT_STEP = 16
"""Rows, columns and inner columns that a warp handles at a time; its share of a tile is a multiple of it."""
STRIP_ROWS, SCRATCH_PADDING = 16, 8
"""The epilogue's strips and the floats between their rows: `gemm.cuh` checks what they come to."""
MAX_SUMS = {DType.FLOAT32: 64, DType.FLOAT16: 128, DType.BFLOAT16: 128}
"""Sums a thread can hold besides its operands without spilling."""
REGISTERS_BESIDES_SUMS = 72
EPILOGUES: dict[int, tuple[str, ...]] = {
    1: ("bias",),
    8: ("bias", "residual"),
    11: ("bias", "activation"),
    13: ("bias", "residual"),
}
"""What the epilogue does for each operator that may follow a product, in order."""
RUNS = frozenset(
    Run(first, last)
    for first, last in (
        (0, 0), (0, 1), (7, 7), (7, 8), (6, 7), (6, 8), (10, 10), (10, 11), (12, 12), (12, 13), (11, 12), (11, 13),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A run as one product: result (rows, columns) = a (rows, inner) times weight (columns, inner) transposed.

    Attributes:
        rows: Token rows.
        columns: Output features.
        inner: Input features.
        a: Left operand, before the prologue.
        weight: Right operand.
        prologue_bias: Bias of an activation applied to `a`; None where there is none.
        epilogue: Parts of the epilogue, in order.
        operands: Tensor of each part of the epilogue that reads one.
        result: Where it is stored.
        merges_heads: Whether `a` is (batch, heads, seq_len, head_dim) and merged while it is loaded.
    """

    rows: int
    columns: int
    inner: int
    a: str
    weight: str
    prologue_bias: str | None
    epilogue: tuple[str, ...]
    operands: tuple[str, ...]
    result: str
    merges_heads: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensors it reads, in the entry point's order."""
        prologue = (self.prologue_bias,) if self.prologue_bias else ()
        return (self.a, *prologue, self.weight, *self.operands)


def problem_of(workload: Workload, run: Run) -> Problem:
    """The product that `run` of `workload` is."""
    product = next(op for op in run_operators(run) if op.kind is Kind.DENSE)
    columns, inner = layer_tensors(workload)[product.weights[0]].shape
    before = OPERATORS[run.first] if run.first < product.index else None
    after = OPERATORS[run.last] if run.last > product.index else None
    epilogue = EPILOGUES[after.index] if after else ()
    sources = {"bias": after.weights[0], "residual": after.activations[-1]} if after else {}
    return Problem(
        rows=workload.rows,
        columns=columns,
        inner=inner,
        a=run_activations(run)[0],
        weight=product.weights[0],
        prologue_bias=before.weights[0] if before and before.weights else None,
        epilogue=epilogue,
        operands=tuple(sources[part] for part in epilogue if part in sources),
        result=run_results(run)[0],
        merges_heads=before is not None and before.index == MERGE_OPERATOR,
    )


def shared_bytes(values: Mapping[str, int], itemsize: int) -> int:
    """Dynamic shared memory: the ring of stages, which the epilogue's scratch then reuses."""
    ring = values["stages"] * (values["tile_m"] + values["tile_n"]) * values["tile_k"] * itemsize
    warps = values["warps_m"] * values["warps_n"] * values["warps_k"]
    scratch_rows = STRIP_ROWS if values["split_k"] == 1 else values["tile_m"] // values["warps_m"]
    scratch = warps * scratch_rows * (values["tile_n"] // values["warps_n"] + SCRATCH_PADDING) * 4
    return max(ring, scratch)


def threads(values: Mapping[str, int]) -> int:
    """Threads of a block."""
    return WARP_SIZE * values["warps_m"] * values["warps_n"] * values["warps_k"]


def tiles(problem: Problem, values: Mapping[str, int]) -> int:
    """Tiles of the result."""
    return -(-problem.rows // values["tile_m"]) * -(-problem.columns // values["tile_n"])


def _broken_shape(values: Mapping[str, int]) -> str | None:
    """Which rule of the device code's structure `values` break."""
    for tile, warps in (("tile_m", "warps_m"), ("tile_n", "warps_n"), ("tile_k", "warps_k")):
        if values[tile] % (PRODUCT_STEP * values[warps]):
            return f"{warps} must divide {tile} into multiples of {PRODUCT_STEP}"
    if values["tile_k"] & (values["tile_k"] - 1):
        return "tile_k must be a power of two"
    if values["stages"] < 2:
        return "copies overlap products only with two stages or more"
    return None


def _broken_limit(element: DType, values: Mapping[str, int], device: DeviceSpec) -> str | None:
    """Which limit of `device` `values` exceed."""
    if values["split_k"] > 1 and (reason := no_clusters("split_k", device)):
        return reason
    if values["split_k"] > MAX_CLUSTER:
        return f"a cluster has at most {MAX_CLUSTER} blocks"
    if threads(values) > MAX_THREADS:
        return f"{threads(values)} threads a block are more than {MAX_THREADS}"
    sums = values["tile_m"] * values["tile_n"] * values["warps_k"] // threads(values)
    registers = min(MAX_THREAD_REGISTERS, device.registers_per_multiprocessor // threads(values))
    if sums > min(MAX_SUMS[element], registers - REGISTERS_BESIDES_SUMS):
        return f"{sums} sums a thread do not fit its registers"
    return too_much_shared(shared_bytes(values, element.itemsize), device)


class GemmTemplate:
    """Template `gemm`; its parameters are the tile, the grid of warps that shares it, and the stages of the ring."""

    name = "gemm"
    runs = RUNS
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why `run` cannot be a generated GEMM; None if it can."""
        return too_old(device) or no_place(workload, run)

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule `values` break; None if none."""
        return _broken_shape(values) or _broken_limit(workload.element, values, device)

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The kernel of `choice`."""
        problem, values = problem_of(workload, choice.run), dict(choice.parameters)
        geometry = self.geometry(workload, choice)
        return KernelProgram(
            entry=self._entry(choice.run),
            source=self._source(workload, choice.run, problem, values),
            headers=("cluster.cuh", "common.cuh", "gemm.cuh"),
            grid=(geometry.blocks, 1, 1),
            block=(geometry.threads, 1, 1),
            shared_bytes=shared_bytes(values, workload.element.itemsize),
            arguments=(*problem.inputs, problem.result),
            overlaps=True,
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes of the operands and the result, each once, and the flops of whole tiles."""
        problem, values = problem_of(workload, choice.run), dict(choice.parameters)
        tensors = layer_tensors(workload)
        inner = -(-problem.inner // values["tile_k"]) * values["tile_k"]
        tile = values["tile_m"] * values["tile_n"]
        return Work(
            bytes_read=sum(tensors[name].size_bytes for name in problem.inputs),
            bytes_written=tensors[problem.result].size_bytes,
            flops=2 * tiles(problem, values) * tile * inner,
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """`split_k` blocks a tile of the result."""
        values = dict(choice.parameters)
        blocks = tiles(problem_of(workload, choice.run), values) * values["split_k"]
        return Geometry(values["tile_m"], values["tile_n"], blocks, threads(values))

    def _entry(self, run: Run) -> str:
        return f"gemm_{run.first}_{run.last}"

    def _source(self, workload: Workload, run: Run, problem: Problem, values: Mapping[str, int]) -> str:
        w = workload
        heads = f"gemm::MergedHeads<Element, {w.batch}, {w.heads}, {w.seq_len}, {w.head_dim}>"
        rows = f"gemm::RowMajor<Element, {problem.rows}, {problem.inner}>"
        return render(
            "gemm.cu.j2",
            title=", ".join(operator.name for operator in run_operators(run)),
            element=ELEMENT_TYPES[w.element],
            activation=activation_type(w.activation, w.element),
            tiling=[values[name] for name in PARAMETERS],
            shared_bytes=shared_bytes(values, w.element.itemsize),
            split_k=values["split_k"],
            columns=problem.columns,
            inner=problem.inner,
            source_a=heads if problem.merges_heads else rows,
            source=problem.a,
            weight=problem.weight,
            prologue=problem.prologue_bias,
            epilogue=problem.epilogue,
            epilogue_arguments=problem.operands,
            entry=self._entry(run),
            inputs=problem.inputs,
            result=problem.result,
        )


TEMPLATE = GemmTemplate()
