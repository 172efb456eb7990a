"""The kernel before every timed launch of a segment: in a layer a kernel follows another one, never itself.

Launched after themselves, kernels overlap as they never do in a forward: a library's begin early after their own kind.
What a segment costs is what it adds to a stream of neighbours.
"""

from typing import Any

from atoffer_rl.kernels.cubin_cache import CubinCache
from atoffer_rl.kernels.launch import load_program
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.timing import Neighbour, time_launches

BLOCKS, THREADS = 96, 256
VECTOR_BYTES = 16
REPLAYS = 200
_SOURCE = f"""
// Copies {BLOCKS * THREADS * VECTOR_BYTES} bytes, 16 a thread: about what a layer's smallest segments do.
#include "common.cuh"

extern "C" __global__ void neighbour(const float4* __restrict__ source, float4* __restrict__ target) {{
    atoffer::wait_for_inputs();
    const int i = blockIdx.x * {THREADS} + threadIdx.x;
    target[i] = source[i];
}}
"""


def neighbour_program() -> KernelProgram:
    """Its source and how it is launched."""
    grid, block = (BLOCKS, 1, 1), (THREADS, 1, 1)
    return KernelProgram("neighbour", _SOURCE, ("common.cuh",), grid, block, 0, ("source", "target"), overlaps=True)


def load_neighbour(stream: Any, arch: str) -> Neighbour:
    """The kernel compiled (or found in the cache of cubins), loaded and timed.

    Args:
        stream: The CuPy stream that it enqueues on.
        arch: What the current device executes, such as `sm_90a`.

    Raises:
        CompileError: If the compiler refuses it.
        LaunchError: If the driver refuses it.
    """
    import cupy

    program = neighbour_program()
    memory = cupy.zeros((2, BLOCKS * THREADS * VECTOR_BYTES), dtype=cupy.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    pointers = {name: int(memory[row].data.ptr) for row, name in enumerate(program.arguments)}
    launchable = load_program(program, CubinCache().compiled(program, arch))

    def launch(kept: Any = memory) -> None:
        launchable.launch(pointers, stream.ptr)

    return Neighbour(launch, min(time_launches(stream, [launch], REPLAYS).samples_us))
