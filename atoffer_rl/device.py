"""What the project knows of a GPU: the numbers that rooflines, hard rules and observations use."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from atoffer_rl.dtype import DType


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
    def from_json(cls, value: dict[str, Any]) -> Self:
        """The device that `to_json` wrote."""
        return cls(**value)


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
