"""What the project knows of a GPU: the numbers that rooflines, hard rules and observations use."""

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from atoffer_rl.dtype import DType
from atoffer_rl.errors import StoreError
from atoffer_rl.quote import quote

MOST_WHOLE = 2**40
LEAST_RATE, MOST_RATE = 1e-3, 1e9
"""No GPU's numbers lie outside."""


@dataclass(frozen=True)
class DeviceSpec:
    """A GPU model.

    Attributes:
        name: As the driver reports it.
        arch: Compiler target, such as `sm_90a`.
        multiprocessors: Streaming multiprocessors.
        shared_bytes_per_block: Largest dynamic shared memory of a block.
        shared_bytes_per_multiprocessor: Shared memory of a multiprocessor.
        registers_per_multiprocessor: 32-bit registers of a multiprocessor.
        l2_bytes: L2 cache.
        bandwidth_gb_s: Device memory bandwidth, GB/s.
        tensor_tflops: Dense 16-bit tensor-core rate, TFLOP/s.
        float32_tflops: CUDA-core float32 rate, TFLOP/s.
    """

    name: str
    arch: str
    multiprocessors: int
    shared_bytes_per_block: int
    shared_bytes_per_multiprocessor: int
    registers_per_multiprocessor: int
    l2_bytes: int
    bandwidth_gb_s: float
    tensor_tflops: float
    float32_tflops: float

    @property
    def compute_capability(self) -> int:
        """The arch as a number: 90 for `sm_90a`."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))

    def peak_tflops(self, dtype: DType) -> float:
        """The arithmetic ceiling for products of `dtype`, TFLOP/s."""
        return self.float32_tflops if dtype is DType.FLOAT32 else self.tensor_tflops

    def to_json(self) -> dict[str, Any]:
        """The device as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """The device that `to_json` wrote.

        Raises:
            StoreError: If a field is unknown, missing, or nothing that a GPU has.
        """
        names = {item.name for item in fields(cls)}
        if not isinstance(value, dict) or value.keys() != names:
            raise StoreError(f"not a device: its fields are {', '.join(sorted(names))}")
        for item in fields(cls):
            if not _is_possible(item.type, value[item.name]):
                raise StoreError(f"not a device: its {item.name} cannot be {quote(value[item.name])}")
        if not re.fullmatch(r"sm_\d{2,3}[af]?", value["arch"], re.ASCII):
            raise StoreError(f"not a device: arch must be such as sm_90a, not {quote(value['arch'])}")
        return cls(**value)


def _is_possible(kind: Any, value: Any) -> bool:
    if kind is str:
        return isinstance(value, str) and bool(value)
    if kind is int:
        return type(value) is int and 1 <= value <= MOST_WHOLE
    return type(value) in (int, float) and LEAST_RATE <= value <= MOST_RATE


H100 = DeviceSpec(
    name="NVIDIA H100 80GB HBM3",
    arch="sm_90a",
    multiprocessors=132,
    shared_bytes_per_block=232_448,
    shared_bytes_per_multiprocessor=233_472,
    registers_per_multiprocessor=65_536,
    l2_bytes=52_428_800,
    bandwidth_gb_s=3_000.0,
    tensor_tflops=790.0,
    float32_tflops=60.0,
)
H200 = replace(
    H100, name="NVIDIA H200", l2_bytes=62_914_560, bandwidth_gb_s=4_300.0, tensor_tflops=760.0, float32_tflops=51.0
)
KNOWN_DEVICES = (H100, H200)
"""Models whose rates are estimates of what large copies and products reach; single cards differ."""
DEFAULT_DEVICE = H200
"""What is meant where no device is named: the one of the tables that ship."""
