"""A scheme as a whole encoder forward: every segment of every layer on one stream, in one arena."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from atoffer_rl.errors import SchemeError
from atoffer_rl.kernels.device_array import DeviceBytes
from atoffer_rl.kernels.launch import Launchable, load_choice
from atoffer_rl.liveness import plan_buffers
from atoffer_rl.operators import LAYER_INPUT, LAYER_OUTPUT
from atoffer_rl.scheme import Scheme
from atoffer_rl.tensors import LENGTHS, OFFSETS
from atoffer_rl.workload import Workload


class Arena(Protocol):
    """Memory that activations lie in."""

    pointer: int


class CompiledEncoder:
    """A scheme's segments, loaded, and the memory for its activations.

    Args:
        workload: Shapes and the number of layers.
        scheme: How a layer is cut and implemented.
        segments: The scheme's choices, loaded, in order.
        arena: At least `liveness.plan_buffers(...).peak_bytes` of device memory, a multiple of 256.
    """

    def __init__(self, workload: Workload, scheme: Scheme, segments: Sequence[Launchable], arena: Arena) -> None:
        self.workload = workload
        self.scheme = scheme
        self.plan = plan_buffers(workload, scheme.runs)
        self._segments = tuple(segments)
        self._arena = arena
        self._places = [
            {name: arena.pointer + offset for name, offset in plan.offsets_bytes.items()}
            for plan in (self.plan, self.plan.mirrored())
        ]

    def forward(
        self,
        x: int,
        weights: Sequence[Mapping[str, int]],
        out: int,
        stream: int,
        lengths: int | None = None,
        offsets: int | None = None,
    ) -> None:
        """Enqueue the forward pass; captured if `stream` is being captured and a forward went before.

        Args:
            x: Address of the input (batch, seq_len, width), row-major, in the workload's format; not written.
            weights: One mapping from `operators.WEIGHTS` to addresses for each layer.
            out: Address of the output, shaped as the input.
            stream: The CUDA stream's handle.
            lengths: Address of the sequences' lengths (batch,), int32, if the workload is padded.
            offsets: Address of the rows (batch,), int32, at which sequences begin, if the workload is packed.

        Raises:
            SchemeError: If there are not as many weight sets as layers, lengths for a padded workload alone, or offsets
                for a packed one alone.
            LaunchError: If a segment cannot be launched.
        """
        layers = self.workload.layers
        if len(weights) != layers:
            raise SchemeError(f"this encoder has {layers} layers: {len(weights)} weight sets do not fit")
        if (lengths is not None) != self.workload.padded:
            raise SchemeError(f"this encoder's lengths are {self.workload.lengths}: pass lengths unless they are full")
        if (offsets is not None) != self.workload.packed:
            raise SchemeError("offsets are those of packed sequences: pass them if the workload is packed, else none")
        given = {LENGTHS: lengths, OFFSETS: offsets}
        shared = {name: address for name, address in given.items() if address is not None}
        for layer, named in enumerate(weights):
            pointers = {**self._places[layer % 2], **shared, **named}
            if layer == 0:
                pointers[LAYER_INPUT] = x
            if layer == layers - 1:
                pointers[LAYER_OUTPUT] = out
            for segment in self._segments:
                segment.launch(pointers, stream)


def compile_encoder(workload: Workload, scheme: Scheme) -> CompiledEncoder:
    """`scheme` compiled and loaded on the current device, with an arena of its own.

    Raises:
        CompileError: If the compiler refuses a segment.
        LaunchError: If the driver or a library refuses one.
    """
    segments = [load_choice(workload, choice) for choice in scheme.choices]
    arena = DeviceBytes(plan_buffers(workload, scheme.runs).peak_bytes)
    return CompiledEncoder(workload, scheme, segments, arena)


def addresses(tensors: Mapping[str, Any]) -> dict[str, int]:
    """Device addresses of torch tensors by name."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}
