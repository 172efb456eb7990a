"""What device code calls the number formats and activations of a workload."""

from atoffer_rl.dtype import DType

ELEMENT_TYPES = {DType.FLOAT32: "float", DType.FLOAT16: "__half", DType.BFLOAT16: "__nv_bfloat16"}
_ACTIVATION_TYPES = {"gelu": "Gelu", "gelu_tanh": "GeluTanh", "relu": "Relu"}
_ACCURATE = {"gelu": "AccurateGelu", "gelu_tanh": "AccurateGeluTanh"}


def activation_type(activation: str, element: DType) -> str:
    """The functor of `activation`; float32 results take the forms whose errors scale with the result."""
    accurate = _ACCURATE if element is DType.FLOAT32 else {}
    return f"atoffer::{(_ACTIVATION_TYPES | accurate)[activation]}"
