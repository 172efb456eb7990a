"""What a choice becomes before it is loaded: a generated kernel to launch, or a library call to make.

Programs are plain values: they are made, compared, hashed and exported without a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray

PlanArray: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class KernelProgram:
    """A rendered kernel, launched once.

    Attributes:
        entry: Name of the `extern "C"` entry point.
        source: Complete CUDA source; it includes `headers` by name.
        headers: Names of the `.cuh` files of `kernels/templates` that it needs, directly or not.
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block.
        arguments: The entry point's pointer parameters, in order: names of tensors (`tensors.py`), of
            `plan`, or of `scratch`. Every other number is a constant in `source`.
        plan: Arrays that the kernel reads besides tensors (mask plans), made when they are first needed.
        scratch: Device memory that the kernel needs for itself: (name, bytes), zeros before the first launch. One
            loaded program has one copy, so its launches must follow one another.
        overlaps: Whether all its threads call `wait_for_inputs` before they touch anything but `plan`, so that it may
            take its place while the kernel before it ends.
    """

    entry: str
    source: str
    headers: tuple[str, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str, ...]
    plan: Callable[[], dict[str, PlanArray]] = field(default=dict, compare=False, repr=False)
    scratch: tuple[tuple[str, int], ...] = ()
    overlaps: bool = False


@dataclass(frozen=True)
class MatmulOperand:
    """A matrix, or a batch of matrices, as a library sees it: row-major, with explicit strides.

    Attributes:
        tensor: Tensor name.
        rows: Rows of the stored matrix.
        columns: Columns of the stored matrix.
        leading: Elements from one row to the next.
        transposed: Whether the product uses the transpose.
        offset: Elements from the tensor's start to the first matrix.
        outer_stride: Elements from one batch entry to the next (0 where there is one matrix).
        inner_stride: Elements from one head to the next (0 where there is one matrix).
    """

    tensor: str
    rows: int
    columns: int
    leading: int
    transposed: bool = False
    offset: int = 0
    outer_stride: int = 0
    inner_stride: int = 0


@dataclass(frozen=True)
class MatmulProgram:
    """One product by cuBLASLt, or, of a batch, by cuBLAS: result = epilogue(scale * a @ b + addend).

    Attributes:
        a: Left operand.
        b: Right operand.
        result: Where the product lands.
        addend: Matrix added before the epilogue through C with beta = 1; None adds nothing.
        bias: Tensor whose elements are added along each row; None adds nothing.
        epilogue: `none`, `bias`, `relu_bias` or `gelu_bias` (tanh).
        scale: Factor alpha.
        batch: Outer and inner number of matrices, (1, 1) for one product.
        dtype: Format of the operands.
        result_dtype: Format of the result.
        algorithm: Which of the library's heuristic proposals to take, best first.
    """

    a: MatmulOperand
    b: MatmulOperand
    result: MatmulOperand
    addend: MatmulOperand | None
    bias: str | None
    epilogue: str
    scale: float
    batch: tuple[int, int]
    dtype: str
    result_dtype: str
    algorithm: int


Program: TypeAlias = KernelProgram | MatmulProgram
