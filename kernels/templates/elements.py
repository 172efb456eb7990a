"""What device code calls the number formats and activations of a workload."""

from atoffer_rl.dtype import DType

ELEMENT_TYPES = {DType.FLOAT32: "float", DType.FLOAT16: "__half", DType.BFLOAT16: "__nv_bfloat16"}
ACTIVATION_TYPES = {"gelu": "atoffer::Gelu", "gelu_tanh": "atoffer::GeluTanh", "relu": "atoffer::Relu"}
