"""Library products: cuBLASLt, and cuBLAS for batches with two strides, through nvmath-python's low-level bindings.

Both libraries are column-major. A row-major matrix read column by column is its transpose, so the call that gives
result = a @ b computes result^T = b^T @ a^T with the operands swapped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import finalize

import numpy as np

from atoffer_rl.errors import LaunchError
from atoffer_rl.kernels.device_array import DeviceArray, upload
from atoffer_rl.kernels.program import MatmulOperand, MatmulProgram

WORKSPACE_BYTES = 32 * 2**20
"""Owned by the library's handle and shared by all its calls, which therefore belong on one stream at a time."""
PROPOSALS = 8
ALIGNMENT_BYTES = 16
CUDA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
FLOAT32 = CUDA_TYPES["float32"]
EPILOGUES = {"none": "DEFAULT", "bias": "BIAS", "relu_bias": "RELU_BIAS", "gelu_bias": "GELU_BIAS"}


@dataclass(frozen=True)
class ColumnMajor:
    """A row-major product as a column-major library sees it: result (rows, columns) = left @ right.

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result.
        inner: Summed products.
        left: Stored matrix that the library takes first.
        right: Stored matrix that it takes second.
    """

    rows: int
    columns: int
    inner: int
    left: MatmulOperand
    right: MatmulOperand

    @classmethod
    def of(cls, program: MatmulProgram) -> "ColumnMajor":
        """How the library sees `program`."""
        inner = program.b.columns if program.b.transposed else program.b.rows
        return cls(program.result.columns, program.result.rows, inner, program.b, program.a)


@dataclass(frozen=True)
class Library:
    """A device's library handles and workspace.

    Attributes:
        light: cuBLASLt handle.
        full: cuBLAS handle.
        workspace: Device memory that calls may scribble on.
        name: The library and its version.
    """

    light: int
    full: int
    workspace: Any
    name: str

    @property
    def workspace_pointer(self) -> int:
        """Address of the workspace."""
        return int(self.workspace.data.ptr)


@cache
def _library_of(device: int) -> Library:
    import cupy
    from nvmath.bindings import cublas, cublasLt

    workspace = cupy.empty(WORKSPACE_BYTES, cupy.uint8)
    return Library(cublasLt.create(), cublas.create(), workspace, f"cublasLt {cublasLt.get_version()}")


def library() -> Library:
    """The library on the current device.

    Raises:
        LaunchError: If nvmath-python or the library is missing.
    """
    import cupy

    try:
        return _library_of(int(cupy.cuda.runtime.getDevice()))
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LaunchError(
            f"library products need nvmath-python (pip install 'nvmath-python[cu13]'): {reason}"
        ) from error


class MatmulLaunch:
    """One cuBLASLt product, with its epilogue.

    Args:
        program: What to compute.
        descriptor: An algorithm that `descriptor` named before; used if the library's version is the same and it
            still accepts it, else the heuristic's first proposal is. None takes the proposal that the program
            asks for.

    Raises:
        LaunchError: If the library cannot compute it, or has fewer proposals than that.
    """

    def __init__(self, program: MatmulProgram, descriptor: Mapping[str, str] | None = None) -> None:
        from nvmath.bindings import cublasLt

        self._binding = cublasLt
        self._program = program
        self._library = library()
        self._alpha = np.array([program.scale], np.float32)
        self._beta = np.array([0.0 if program.addend is None else 1.0], np.float32)
        # Planning wants an address; the first launch sets the real one.
        self._bias_pointer = self._library.workspace_pointer
        try:
            self._describe()
            self._algorithm = self._choose(descriptor)
        except cublasLt.cuBLASLtError as error:
            raise LaunchError(f"cuBLASLt cannot plan {_shape(program)}: {error}") from error

    @property
    def descriptor(self) -> dict[str, str]:
        """The algorithm in the library's own terms, and the version that understands them."""
        return {"library": self._library.name, "algorithm": self._algorithm.tobytes().hex()}

    def _describe(self) -> None:
        binding, program = self._binding, self._program
        product = ColumnMajor.of(program)
        self._operation = binding.matmul_desc_create(_compute_type(), FLOAT32)
        finalize(self, binding.matmul_desc_destroy, self._operation)
        for name, value in (
            ("TRANSA", int(product.left.transposed)),
            ("TRANSB", int(product.right.transposed)),
            ("EPILOGUE", int(binding.Epilogue[EPILOGUES[program.epilogue]])),
        ):
            self._set_operation(name, value)
        if program.bias is not None:
            self._set_operation("BIAS_POINTER", self._bias_pointer)
        self._left = self._layout(product.left, program.dtype)
        self._right = self._layout(product.right, program.dtype)
        self._result = self._layout(program.result, program.result_dtype)
        self._addend = self._layout(program.addend or program.result, program.result_dtype)

    def _set_operation(self, name: str, value: int) -> None:
        attribute = self._binding.MatmulDescAttribute[name]
        content = np.array([value]).astype(self._binding.get_matmul_desc_attribute_dtype(attribute))
        self._binding.matmul_desc_set_attribute(self._operation, attribute, content.ctypes.data, content.nbytes)

    def _layout(self, operand: MatmulOperand, dtype: str) -> int:
        """A stored matrix, its rows read as columns."""
        binding = self._binding
        layout = binding.matrix_layout_create(CUDA_TYPES[dtype], operand.columns, operand.rows, operand.leading)
        finalize(self, binding.matrix_layout_destroy, layout)
        return int(layout)

    def _choose(self, descriptor: Mapping[str, str] | None) -> Any:
        """The algorithm as an array of 64 bytes, kept alive for the library to read."""
        wanted = self._program.algorithm
        if descriptor is not None:
            content = np.frombuffer(bytes.fromhex(descriptor["algorithm"]), np.uint8).copy()
            if descriptor["library"] == self._library.name and self._accepts(content):
                return content
            wanted = 0
        proposals = self._proposals()
        if wanted >= len(proposals):
            raise LaunchError(
                f"cuBLASLt proposes {len(proposals)} algorithms for {_shape(self._program)}; number {wanted} was asked"
            )
        return np.frombuffer(proposals[wanted]["algo"].tobytes(), np.uint8).copy()

    def _accepts(self, algorithm: Any) -> bool:
        """Whether the library can run `algorithm` on this product and device, in the workspace that there is."""
        binding = self._binding
        checked = np.zeros(1, binding.matmul_heuristic_result_dtype)
        layouts = (self._left, self._right, self._addend, self._result)
        try:
            binding.matmul_algo_check(
                self._library.light, self._operation, *layouts, algorithm.ctypes.data, checked.ctypes.data
            )
        except binding.cuBLASLtError:
            return False
        return bool(checked["workspace_size"][0] <= WORKSPACE_BYTES)

    def _proposals(self) -> Any:
        """The heuristic's usable proposals, best first."""
        binding = self._binding
        preference = binding.matmul_preference_create()
        try:
            for name, value in (
                ("MAX_WORKSPACE_BYTES", WORKSPACE_BYTES),
                ("REDUCTION_SCHEME_MASK", int(binding.ReductionScheme.COMPUTE_TYPE)),
                *((f"MIN_ALIGNMENT_{matrix}_BYTES", ALIGNMENT_BYTES) for matrix in "ABCD"),
            ):
                attribute = binding.MatmulPreferenceAttribute[name]
                content = np.array([value]).astype(binding.get_matmul_preference_attribute_dtype(attribute))
                binding.matmul_preference_set_attribute(preference, attribute, content.ctypes.data, content.nbytes)
            results = np.zeros(PROPOSALS, binding.matmul_heuristic_result_dtype)
            found = np.zeros(1, np.int32)
            binding.matmul_algo_get_heuristic(
                self._library.light,
                self._operation,
                self._left,
                self._right,
                self._addend,
                self._result,
                preference,
                PROPOSALS,
                results.ctypes.data,
                found.ctypes.data,
            )
        finally:
            binding.matmul_preference_destroy(preference)
        proposals = results[: found[0]]
        return proposals[proposals["state"] == 0]

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        """See `launch.Launchable.launch`."""
        program = self._program
        if program.bias is not None and pointers[program.bias] != self._bias_pointer:
            self._bias_pointer = pointers[program.bias]
            self._set_operation("BIAS_POINTER", self._bias_pointer)
        result = _address(program.result, program.result_dtype, pointers)
        addend = result if program.addend is None else _address(program.addend, program.result_dtype, pointers)
        try:
            self._binding.matmul(
                self._library.light,
                self._operation,
                self._alpha.ctypes.data,
                _address(program.b, program.dtype, pointers),
                self._left,
                _address(program.a, program.dtype, pointers),
                self._right,
                self._beta.ctypes.data,
                addend,
                self._addend,
                result,
                self._result,
                self._algorithm.ctypes.data,
                self._library.workspace_pointer,
                WORKSPACE_BYTES,
                stream,
            )
        except self._binding.cuBLASLtError as error:
            raise LaunchError(f"cuBLASLt cannot compute {_shape(program)}: {error}") from error


class BatchedMatmulLaunch:
    """A batch of products whose matrices lie at two strides: cuBLAS with arrays of pointers, one algorithm.

    Args:
        program: What to compute; no bias and no addend.

    Raises:
        LaunchError: If the program asks for another algorithm than the first.
    """

    def __init__(self, program: MatmulProgram) -> None:
        from nvmath.bindings import cublas

        if program.algorithm:
            raise LaunchError(f"cuBLAS has one algorithm for batches; number {program.algorithm} was asked")
        self._binding = cublas
        self._program = program
        self._product = ColumnMajor.of(program)
        self._library = library()
        self._alpha = np.array([program.scale], np.float32)
        self._beta = np.array([0.0], np.float32)
        self._compute_type = _compute_type()
        # Captured graphs read these arrays: they live as long as this object.
        self._pointer_arrays: dict[tuple[int, int, int], tuple[DeviceArray, ...]] = {}

    @property
    def descriptor(self) -> dict[str, str]:
        """The library's version; it chooses the algorithm itself."""
        return {"library": self._library.name, "algorithm": ""}

    def launch(self, pointers: Mapping[str, int], stream: int) -> None:
        """See `launch.Launchable.launch`."""
        program, product, binding = self._program, self._product, self._binding
        left, right, result = self._arrays(pointers)
        handle = self._library.full
        try:
            binding.set_stream(handle, stream)
            # Setting the stream makes the library forget its workspace, and it may not allocate while captured.
            binding.set_workspace(handle, self._library.workspace_pointer, WORKSPACE_BYTES)
            binding.gemm_batched_ex(
                handle,
                int(product.left.transposed),
                int(product.right.transposed),
                product.rows,
                product.columns,
                product.inner,
                self._alpha.ctypes.data,
                left.pointer,
                CUDA_TYPES[program.dtype],
                product.left.leading,
                right.pointer,
                CUDA_TYPES[program.dtype],
                product.right.leading,
                self._beta.ctypes.data,
                result.pointer,
                CUDA_TYPES[program.result_dtype],
                program.result.leading,
                program.batch[0] * program.batch[1],
                self._compute_type,
                int(binding.GemmAlgo.DEFAULT),
            )
        except binding.cuBLASError as error:
            raise LaunchError(f"cuBLAS cannot compute {_shape(program)}: {error}") from error

    def _arrays(self, pointers: Mapping[str, int]) -> tuple[DeviceArray, ...]:
        """Arrays of the batch's left, right and result pointers on the device."""
        program, product = self._program, self._product
        operands = (
            (product.left, program.dtype),
            (product.right, program.dtype),
            (program.result, program.result_dtype),
        )
        first, second, third = (pointers[operand.tensor] for operand, _ in operands)
        key = (first, second, third)
        if key not in self._pointer_arrays:
            self._pointer_arrays[key] = tuple(
                upload(batch_addresses(operand, dtype, program.batch, pointers[operand.tensor]))
                for operand, dtype in operands
            )
        return self._pointer_arrays[key]


def batch_addresses(operand: MatmulOperand, dtype: str, batch: tuple[int, int], base: int) -> Any:
    """Address of each matrix of a batch, inner index fastest: uint64 (outer * inner,)."""
    outer, inner = (np.arange(count, dtype=np.uint64) for count in batch)
    elements = operand.offset + outer[:, None] * operand.outer_stride + inner[None, :] * operand.inner_stride
    return (np.uint64(base) + elements.astype(np.uint64) * np.uint64(ITEMSIZES[dtype])).reshape(-1)


def load_matmul(
    program: MatmulProgram, descriptor: Mapping[str, str] | None = None
) -> MatmulLaunch | BatchedMatmulLaunch:
    """`program` ready to be launched on the current device, by `descriptor`'s algorithm where it still exists.

    Raises:
        LaunchError: If the library is missing or refuses it.
    """
    library()
    if program.batch != (1, 1):
        return BatchedMatmulLaunch(program)
    return MatmulLaunch(program, descriptor)


def _compute_type() -> int:
    """Float32 sums and, for float32 operands, float32 products: never TF32."""
    from nvmath.bindings import cublas

    return int(cublas.ComputeType.COMPUTE_32F)


def _address(operand: MatmulOperand, dtype: str, pointers: Mapping[str, int]) -> int:
    return pointers[operand.tensor] + operand.offset * ITEMSIZES[dtype]


def _shape(program: MatmulProgram) -> str:
    product = ColumnMajor.of(program)
    return f"a product of {product.columns} x {product.inner} x {product.rows} in {program.dtype} ({program.epilogue})"
