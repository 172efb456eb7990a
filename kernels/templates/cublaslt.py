"""Library products: cuBLASLt with the epilogues it computes exactly, and batched products for operators 2 and 5.

Bias, ReLU and tanh GELU are epilogues; bias + residual is the bias epilogue with the residual as C and beta = 1.
"""

from collections.abc import Mapping
from math import sqrt

from atoffer_rl.device import DeviceSpec
from atoffer_rl.dtype import DType
from atoffer_rl.kernels.program import MatmulOperand, MatmulProgram
from atoffer_rl.kernels.template import Geometry, Work
from atoffer_rl.operators import ACTIVATION_OPERATOR, OPERATORS, run_results
from atoffer_rl.run import Run
from atoffer_rl.scheme import Choice
from atoffer_rl.tensors import layer_tensors, no_place
from atoffer_rl.workload import Workload

SCORES, CONTEXT = Run(2, 2), Run(5, 5)
BATCHED_RUNS = frozenset((SCORES, CONTEXT))
DENSE_RUNS = frozenset(
    Run(first, last)
    for first, last in ((0, 0), (0, 1), (7, 7), (7, 8), (10, 10), (10, 11), (12, 12), (12, 13))
)  # fmt: skip
ACTIVATION_EPILOGUES = {"relu": "relu_bias", "gelu_tanh": "gelu_bias"}
LIKELY_TILE = 128
LIKELY_THREADS = 256


class CublasltTemplate:
    """Template `cublaslt`; its parameter `algorithm` counts the heuristic's proposals."""

    name = "cublaslt"
    runs = DENSE_RUNS | BATCHED_RUNS
    generated = False

    def why_not(self, workload: Workload, run: Run, device: DeviceSpec) -> str | None:
        """Why the library cannot compute `run` exactly; None if it can."""
        if ACTIVATION_OPERATOR in run and workload.activation not in ACTIVATION_EPILOGUES:
            return "the library's GELU is the tanh form, and the workload asks for the exact one"
        if ACTIVATION_OPERATOR in run and workload.activation == "gelu_tanh" and workload.element is DType.FLOAT32:
            return "the library's GELU misses float32's error budget"
        return no_place(workload, run)

    def impossible(self, workload: Workload, run: Run, values: Mapping[str, int], device: DeviceSpec) -> str | None:
        """Which hard rule `values` break; None if none."""
        if run in BATCHED_RUNS and values["algorithm"]:
            return "the library has one algorithm for batches with two strides"
        return None

    def program(self, workload: Workload, choice: Choice) -> MatmulProgram:
        """The library call of `choice`."""
        if choice.run == SCORES:
            return _scores(workload, choice["algorithm"])
        if choice.run == CONTEXT:
            return _context(workload, choice["algorithm"])
        return _dense(workload, choice)

    def work(self, workload: Workload, choice: Choice) -> Work:
        """Bytes and flops of `choice`."""
        program, stored = self.program(workload, choice), layer_tensors(workload)
        matrices = program.batch[0] * program.batch[1]
        operands = [program.a, program.b, *([program.addend] if program.addend else [])]
        read = sum(item.rows * item.columns * matrices * stored[item.tensor].dtype.itemsize for item in operands)
        if program.bias is not None:
            read += stored[program.bias].size_bytes
        inner = program.a.columns
        return Work(
            bytes_read=read,
            bytes_written=stored[program.result.tensor].size_bytes,
            flops=2 * program.result.rows * program.result.columns * inner * matrices,
        )

    def geometry(self, workload: Workload, choice: Choice) -> Geometry:
        """The library does not say how it tiles: a tile that it likes, cut to the result's size."""
        program = self.program(workload, choice)
        rows, columns = min(LIKELY_TILE, program.result.rows), min(LIKELY_TILE, program.result.columns)
        tiles = -(-program.result.rows // rows) * -(-program.result.columns // columns)
        return Geometry(rows, columns, tiles * program.batch[0] * program.batch[1], LIKELY_THREADS)


def _dense(workload: Workload, choice: Choice) -> MatmulProgram:
    """A product of all token rows with a weight, and the operator after it as epilogue."""
    first = OPERATORS[choice.run.first]
    after = OPERATORS[choice.run.last] if choice.run.last > choice.run.first else None
    columns, inner = layer_tensors(workload)[first.weights[0]].shape
    rows = workload.rows
    residual = after.activations[1] if after and len(after.activations) > 1 else None
    epilogue = "none"
    if after is not None:
        activates = after.index == ACTIVATION_OPERATOR
        epilogue = ACTIVATION_EPILOGUES[workload.activation] if activates else "bias"
    return MatmulProgram(
        a=MatmulOperand(first.activations[0], rows, inner, inner),
        b=MatmulOperand(first.weights[0], columns, inner, inner, transposed=True),
        result=MatmulOperand(run_results(choice.run)[0], rows, columns, columns),
        addend=MatmulOperand(residual, rows, columns, columns) if residual else None,
        bias=after.weights[0] if after else None,
        epilogue=epilogue,
        scale=1.0,
        batch=(1, 1),
        dtype=workload.dtype,
        result_dtype=workload.dtype,
        algorithm=choice["algorithm"],
    )


def _head_of_qkv(workload: Workload, part: int, transposed: bool = False) -> MatmulOperand:
    """One head of q (part 0), k (1) or v (2): a strided view of the stored rows."""
    w = workload
    return MatmulOperand(
        "qkv",
        w.seq_len,
        w.head_dim,
        3 * w.width,
        transposed,
        offset=part * w.width,
        outer_stride=w.seq_len * 3 * w.width,
        inner_stride=w.head_dim,
    )


def _dense_head(workload: Workload, tensor: str, columns: int) -> MatmulOperand:
    """One head of a tensor (batch, heads, seq_len, columns)."""
    size = workload.seq_len * columns
    return MatmulOperand(
        tensor, workload.seq_len, columns, columns, outer_stride=workload.heads * size, inner_stride=size
    )


def _scores(workload: Workload, algorithm: int) -> MatmulProgram:
    return MatmulProgram(
        a=_head_of_qkv(workload, 0),
        b=_head_of_qkv(workload, 1, transposed=True),
        result=_dense_head(workload, "scores", workload.seq_len),
        addend=None,
        bias=None,
        epilogue="none",
        scale=1 / sqrt(workload.head_dim),
        batch=(workload.batch, workload.heads),
        dtype=workload.dtype,
        result_dtype="float32",
        algorithm=algorithm,
    )


def _context(workload: Workload, algorithm: int) -> MatmulProgram:
    return MatmulProgram(
        a=_dense_head(workload, "probs", workload.seq_len),
        b=_head_of_qkv(workload, 2),
        result=_dense_head(workload, "context", workload.head_dim),
        addend=None,
        bias=None,
        epilogue="none",
        scale=1.0,
        batch=(workload.batch, workload.heads),
        dtype=workload.dtype,
        result_dtype=workload.dtype,
        algorithm=algorithm,
    )


TEMPLATE = CublasltTemplate()
