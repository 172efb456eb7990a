"""Host arrays in device memory, shared by everyone who holds equal content."""

import hashlib
from weakref import WeakValueDictionary

import numpy as np

from atoffer_rl.kernels.program import PlanArray


class DeviceArray:
    """An array in the current device's memory, for as long as someone holds it.

    Args:
        values: What it holds.
    """

    def __init__(self, values: PlanArray) -> None:
        import cupy

        self._array = cupy.asarray(values)
        cupy.cuda.get_current_stream().synchronize()
        self.pointer = int(self._array.data.ptr)


_uploaded: WeakValueDictionary[tuple[int, str], DeviceArray] = WeakValueDictionary()


def upload(values: PlanArray) -> DeviceArray:
    """`values` on the current device, shared with everyone who holds equal values there."""
    import cupy

    content = hashlib.sha256(f"{values.dtype.str}{values.shape}".encode() + values.tobytes()).hexdigest()
    key = (int(cupy.cuda.runtime.getDevice()), content)
    found = _uploaded.get(key)
    if found is None:
        found = _uploaded[key] = DeviceArray(np.ascontiguousarray(values))
    return found


def zeros(size_bytes: int) -> DeviceArray:
    """Zeros on the current device, the caller's own."""
    return DeviceArray(np.zeros(size_bytes, np.uint8))


class DeviceBytes:
    """Uninitialised memory on the current device, for as long as someone holds it.

    Args:
        size: Bytes.
    """

    def __init__(self, size: int) -> None:
        import cupy

        self._array = cupy.empty(size, cupy.uint8)
        self.pointer = int(self._array.data.ptr)
