"""Memory-bound operators in one pass: bias, mask, softmax, head merge, residual, LayerNorm, activation."""

from collections.abc import Mapping

from atoffer_rl.device import DeviceSpec
from atoffer_rl.kernels.program import KernelProgram, PlanArray
from atoffer_rl.kernels.render import render
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.kernels.templates.elements import ELEMENT_TYPES, activation_type, tensor_parameter
from atoffer_rl.kernels.templates.limits import WARP_SIZE
from atoffer_rl.mask_plan import bit_plan
from atoffer_rl.operators import (
    ACTIVATION_OPERATOR,
    MASK_OPERATOR,
    MERGE_OPERATOR,
    SOFTMAX_OPERATOR,
    reads_mask,
    run_activations,
    run_operators,
    run_results,
    run_weights,
)
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import LENGTHS, layer_tensors, no_place, reads_lengths, run_inputs
from atoffer_rl.workload import Workload

RUNS = frozenset(
    Run(first, last)
    for first, last in [
        *((operator, operator) for operator in (1, 3, 4, 6, 8, 9, 11, 13, 14)),
        *((operator, operator + 1) for operator in (3, 8, 13)),
    ]
)
NORM_OPERATORS = (9, 14)
ACCESS_BYTES = 16
MASK_WORDS = "mask_words"
OPERATOR_FLOPS = {1: 1, 3: 1, 4: 5, 6: 0, 8: 2, 9: 8, 11: 10, 13: 2, 14: 8}


class ChainTemplate:
    """One pass over the rows of a run; parameters are elements an access, threads a row, threads a block."""

    name = "chain"
    runs = RUNS
    generated = True

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why `run` of `workload` cannot be implemented at all; None if it can."""
        return no_place(workload, run)

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule (divisibility, size of an access, idle warps) `values` break; None if none."""
        vector, team, threads = values["vector"], values["team"], values["threads"]
        columns = row_shape(workload, run)[1]
        unit = workload.head_dim if run.first == MERGE_OPERATOR else columns
        if unit % vector:
            return f"accesses of {vector} elements do not divide {unit}"
        if vector * narrowest(workload, run) > ACCESS_BYTES:
            return f"accesses of {vector} elements are larger than {ACCESS_BYTES} bytes"
        if team > threads:
            return f"a team of {team} threads does not fit into a block of {threads}"
        if team > WARP_SIZE and (team - WARP_SIZE) * vector >= columns:
            return f"a team of {team} threads has whole warps without work in rows of {columns}"
        return None

    def program(self, workload: Workload, choice: Choice) -> KernelProgram:
        """The kernel of `choice`."""
        run = choice.run
        arguments = kernel_arguments(workload, run)
        entry = f"chain_{run.first}_{run.last}"
        rows, columns = row_shape(workload, run)
        source = render(
            "chain.cu.j2",
            run=run,
            entry=entry,
            element=ELEMENT_TYPES[workload.element],
            config={"rows": rows, "columns": columns, **dict(choice.parameters)},
            parameters=[parameter(workload, run, name) for name in arguments],
            result=result_name(run),
            finish=finish(workload, run),
            steps=steps(workload, run),
        )
        return KernelProgram(
            entry=entry,
            source=source,
            headers=("chain.cuh", "common.cuh"),
            grid=(self.geometry(workload, choice).blocks, 1, 1),
            block=(choice["threads"], 1, 1),
            shared_bytes=0,
            arguments=arguments,
            plan=lambda: mask_words(workload, run),
            overlaps=True,
        )

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Every tensor once, and the mask's bits where they are read."""
        run = choice.run
        tensors = layer_tensors(workload)
        rows, columns = row_shape(workload, run)
        plan_bytes = sum(array.nbytes for array in mask_words(workload, run).values())
        return Work(
            bytes_read=sum(tensors[name].size_bytes for name in run_activations(run) + run_weights(run)) + plan_bytes,
            bytes_written=tensors[result_name(run)].size_bytes,
            flops=rows * columns * sum(OPERATOR_FLOPS[op.index] for op in run_operators(run)),
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """Whole rows in every block."""
        rows, columns = row_shape(workload, choice.run)
        rows_per_block = choice["threads"] // choice["team"]
        return Geometry(rows_per_block, columns, -(-rows // rows_per_block), choice["threads"])


def result_name(run: Run) -> str:
    """The one tensor that `run` stores."""
    (name,) = run_results(run)
    return name


def row_shape(workload: Workload, run: Run) -> tuple[int, int]:
    """Rows and columns of the result as a matrix; reductions run over the columns."""
    tensor = layer_tensors(workload)[result_name(run)]
    return tensor.size // tensor.shape[-1], tensor.shape[-1]


def narrowest(workload: Workload, run: Run) -> int:
    """Bytes an element of the narrowest tensor that `run` reads or writes in rows."""
    tensors = layer_tensors(workload)
    return min(tensors[name].dtype.itemsize for name in (*run_activations(run), *run_results(run)))


def kernel_arguments(workload: Workload, run: Run) -> tuple[str, ...]:
    """The entry point's pointers: what is read, the mask, what is stored."""
    plan = (MASK_WORDS,) if reads_mask(run) else ()
    return run_inputs(workload, run) + run_weights(run) + plan + run_results(run)


def parameter(workload: Workload, run: Run, name: str) -> str:
    """The declaration of pointer `name`."""
    if name == MASK_WORDS:
        return f"const unsigned* __restrict__ {name}"
    return tensor_parameter(workload, run, name)


def mask_words(workload: Workload, run: Run) -> dict[str, PlanArray]:
    """The mask as bits, where `run` reads it."""
    return {MASK_WORDS: bit_plan(workload.mask_spec, workload.seq_len).words} if reads_mask(run) else {}


def steps(workload: Workload, run: Run) -> list[str]:
    """The source and the stages of `run`, as device expressions."""
    first = run_activations(run)[0]
    element = ELEMENT_TYPES[layer_tensors(workload)[first].dtype]
    seq, heads, head = workload.seq_len, workload.heads, workload.head_dim
    if run.first == MERGE_OPERATOR:
        return [f"MergeHeads<{element}, {seq}, {heads}, {head}>{{{first}}}"]
    stages = [f"Load<{element}, Config::columns>{{{first}}}"]
    for op in run_operators(run):
        stages += operator_stages(workload, op.index)
    return stages


def operator_stages(workload: Workload, operator: int) -> list[str]:
    """The elementwise stages of one operator; reductions have none."""
    run = Run(operator, operator)
    if operator == MASK_OPERATOR:
        masks = workload.mask_spec.batches(workload.seq_len)
        dropped = [f"DropMasked<{workload.seq_len}, {workload.heads}, {masks}>{{{MASK_WORDS}}}"]
        if reads_lengths(workload, run):
            dropped.append(f"DropBeyond<{workload.seq_len}, {workload.heads}>{{{LENGTHS}}}")
        return dropped
    if operator in (SOFTMAX_OPERATOR, *NORM_OPERATORS):
        return []
    stages = [f"AddBias<Element>{{{name}}}" for name in run_weights(run)]
    stages += [f"AddResidual<Element, Config::columns>{{{name}}}" for name in run_activations(run)[1:]]
    if operator == ACTIVATION_OPERATOR:
        stages.append(f"Activate<{activation_type(workload.activation, workload.element)}>{{}}")
    return stages


def finish(workload: Workload, run: Run) -> str:
    """What ends `run`, as a device expression."""
    if run.last == SOFTMAX_OPERATOR:
        return "Softmax{}"
    if run.last in NORM_OPERATORS:
        gamma, beta = run_weights(Run(run.last, run.last))
        return f"LayerNorm<Element>{{{gamma}, {beta}, {float_literal(workload.epsilon)}}}"
    return "Store{}"


def float_literal(value: float) -> str:
    """`value` as a float32 literal of device code."""
    return f"{value!r}f"


TEMPLATE = ChainTemplate()
