"""The number formats a workload may ask for."""

from enum import Enum


class DType(Enum):
    """A storage format; accumulation is float32 for all of them."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return 4 if self is DType.FLOAT32 else 2

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next representable number."""
        return {DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[self]
