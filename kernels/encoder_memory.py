"""What a whole forward reads and writes on the GPU, and whether what it wrote is right.

Import this module only where a forward is executed: it loads torch.
"""

import torch

from atoffer_rl.kernels.encoder import addresses
from atoffer_rl.kernels.inputs import draw_weights, typical_lengths
from atoffer_rl.kernels.packing import sequence_tensors, without_padding
from atoffer_rl.kernels.reference import Precision, encoder_reference
from atoffer_rl.kernels.torch_dtypes import TORCH_DTYPES
from atoffer_rl.kernels.verify import Verdict, compare
from atoffer_rl.operators import LAYER_INPUT
from atoffer_rl.tensors import layer_tensors
from atoffer_rl.workload import Workload


class EncoderMemory:
    """Input, lengths and offsets, output and every layer's own weights of an encoder, as torch tensors on the device.

    Args:
        workload: Whose.
        seed: Of the values.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        device, dtype = torch.device("cuda", torch.cuda.current_device()), TORCH_DTYPES[workload.element]
        shape = layer_tensors(workload)[LAYER_INPUT].shape
        self.workload = workload
        source = torch.Generator(device).manual_seed(seed)
        self.x = torch.randn(shape, generator=source, device=device).to(dtype)
        self.out = torch.empty_like(self.x)
        self._layers = [draw_weights(workload, seed + layer, device) for layer in range(workload.layers)]
        self.weights = [addresses(layer) for layer in self._layers]
        self.lengths = typical_lengths(workload, device) if workload.padded else None
        self.sequences = {} if self.lengths is None else sequence_tensors(workload, self.lengths)
        self._exact = encoder_reference(workload, self.x, self._layers, lengths=self.lengths)
        self._eager = encoder_reference(workload, self.x, self._layers, Precision.EAGER, self.lengths)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self.out.fill_(float("nan"))

    def verdict(self) -> Verdict:
        """Whether the output is right: see verify.py for what an error may be."""
        out, exact, eager = self.out, self._exact, self._eager
        if self.lengths is not None:
            out, exact, eager = (without_padding(self.workload, rows, self.lengths) for rows in (out, exact, eager))
        return compare(out, exact, eager, self.workload.element.epsilon)
