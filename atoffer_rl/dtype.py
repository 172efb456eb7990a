"""Number formats: those a workload may ask for, and that of sequence lengths."""

from enum import Enum


class DType(Enum):
    """A storage format; what is stored in 16 bits is accumulated in float32."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT32 = "int32"

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return 4 if self in (DType.FLOAT32, DType.INT32) else 2

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next representable number of a floating-point format."""
        return {DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[self]


FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)
"""What activations and weights may be stored as."""
