"""A kernel's launch by the CUDA driver, begun while the kernel before it on the stream is still ending.

CuPy launches a kernel when the one before has ended and its memory is flushed. The driver may be told that a kernel
waits for that itself (programmatic dependent launch, from sm_90 on): then its blocks are in place, their code loaded
and their barriers set up, when their inputs are. Every generated kernel waits so: see `wait_for_inputs` of common.cuh.
"""

import ctypes
import sys
from collections.abc import Sequence

OVERLAPPING_CAPABILITY = 90
"""Where launches can overlap: this compute capability and later ones."""
_STREAM_SERIALIZATION_ATTRIBUTE = 6
_ATTRIBUTE_VALUE_BYTES = 64
_INVALID_CONTEXT = 201


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, padded to 8 bytes, and a union whose first member here is an int."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("allowed", ctypes.c_int),
        ("rest", ctypes.c_char * (_ATTRIBUTE_VALUE_BYTES - 4)),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class DriverLaunch:
    """Launches of one kernel, whose parameters are all pointers, from any thread.

    Args:
        function: The CUfunction's handle, of the context that is current.
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block.
        overlaps: Whether the kernel waits for its inputs itself.
    """

    def __init__(
        self, function: int, grid: Sequence[int], block: Sequence[int], shared_bytes: int, overlaps: bool
    ) -> None:
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        self._function = ctypes.c_void_p(function)
        self._context = ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(self._context))
        self._attribute = _Attribute(id=_STREAM_SERIALIZATION_ATTRIBUTE, allowed=1)
        self._config = _Config(
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            shared_bytes,
            None,
            ctypes.pointer(self._attribute),
            int(overlaps),
        )

    def __call__(self, addresses: Sequence[int], stream: int) -> str:
        """Enqueue one launch on `stream` with these pointers; why the driver refuses it, empty if it does not."""
        values = (ctypes.c_void_p * len(addresses))(*addresses)
        size = ctypes.sizeof(ctypes.c_void_p)
        parameters = (ctypes.c_void_p * len(addresses))(
            *(ctypes.addressof(values) + index * size for index in range(len(addresses)))
        )
        config = _Config.from_buffer_copy(self._config)  # threads that launch at the same time have a stream each
        config.stream = stream
        arguments = (ctypes.byref(config), self._function, parameters, None)
        code = self._driver.cuLaunchKernelEx(*arguments)
        if code == _INVALID_CONTEXT:  # a thread that has used no CUDA yet
            self._driver.cuCtxSetCurrent(self._context)
            code = self._driver.cuLaunchKernelEx(*arguments)
        return self._name_of(code) if code else ""

    def _name_of(self, code: int) -> str:
        name = ctypes.c_char_p()
        self._driver.cuGetErrorName(code, ctypes.byref(name))
        return (name.value or b"CUDA error %d" % code).decode()
