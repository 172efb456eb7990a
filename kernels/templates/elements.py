"""What device code calls the number formats, activations and tensors of a workload."""

from atoffer_rl.dtype import DType
from atoffer_rl.operators import run_results, run_weights
from atoffer_rl.run import Run
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload

ELEMENT_TYPES = {DType.FLOAT32: "float", DType.FLOAT16: "__half", DType.BFLOAT16: "__nv_bfloat16", DType.INT32: "int"}
_ACTIVATION_TYPES = {"gelu": "Gelu", "gelu_tanh": "GeluTanh", "relu": "Relu"}
_ACCURATE = {"gelu": "AccurateGelu", "gelu_tanh": "AccurateGeluTanh"}


def activation_type(activation: str, element: DType) -> str:
    """The functor of `activation`; float32 results take the forms whose errors scale with the result."""
    accurate = _ACCURATE if element is DType.FLOAT32 else {}
    return f"atoffer::{(_ACTIVATION_TYPES | accurate)[activation]}"


def tensor_parameter(workload: Workload, run: Run, name: str) -> str:
    """The declaration of the pointer to tensor `name` in a kernel of `run`."""
    element = ELEMENT_TYPES[layer_tensors(workload)[name].dtype]
    return f"{'' if name in run_results(run) else 'const '}{element}* __restrict__ {name}"


def weight_vectors(workload: Workload, run: Run) -> list[tuple[str, int]]:
    """Name and bytes of each weight of `run` that is a vector, to be asked for before inputs are waited for."""
    weights = ((name, layer_tensors(workload)[name]) for name in run_weights(run))
    return [(name, tensor.size_bytes) for name, tensor in weights if len(tensor.shape) == 1]
