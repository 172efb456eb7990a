"""The kernel before every timed launch of a segment: in a layer a kernel follows another one, never itself.

Launched after themselves, kernels overlap as they never do in a forward: a library's begin early after their own kind.
What a segment costs is what it adds to a stream of neighbours.
"""

from dataclasses import replace

from atoffer_rl.kernels.device_array import zeros
from atoffer_rl.kernels.launch import load_program
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.timing import Launcher, Neighbour

BLOCKS, THREADS = 96, 256
VECTOR_BYTES = 16
LONG_ROUNDS = 16
_SOURCE = f"""
// Copies {BLOCKS * THREADS * VECTOR_BYTES} bytes, 16 a thread, once (about what a layer's smallest segments do) or in
// several rounds.
#include "common.cuh"

template <int kRounds>
__device__ __forceinline__ void copy(const float4* __restrict__ source, float4* __restrict__ target) {{
    atoffer::wait_for_inputs();
    const int i = blockIdx.x * {THREADS} + threadIdx.x;
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {{
        const float4 vector = __ldcg(source + i);
        __stcg(target + i, vector);
        __syncthreads();
    }}
}}

extern "C" __global__ void neighbour(const float4* __restrict__ source, float4* __restrict__ target) {{
    copy<1>(source, target);
}}

extern "C" __global__ void long_neighbour(const float4* __restrict__ source, float4* __restrict__ target) {{
    copy<{LONG_ROUNDS}>(source, target);
}}
"""


def neighbour_program() -> KernelProgram:
    """Its source and how it is launched; the source has the long one, too."""
    grid, block = (BLOCKS, 1, 1), (THREADS, 1, 1)
    return KernelProgram("neighbour", _SOURCE, ("common.cuh",), grid, block, 0, ("source", "target"), overlaps=True)


def load_neighbour(cubin: bytes) -> Neighbour:
    """The kernel on the current device.

    Args:
        cubin: Its machine code.

    Raises:
        LaunchError: If the driver refuses it.
    """
    program = neighbour_program()
    memory = {name: zeros(BLOCKS * THREADS * VECTOR_BYTES) for name in program.arguments}

    def launcher(entry: str) -> Launcher:
        launchable = load_program(replace(program, entry=entry), cubin)
        return lambda stream: launchable.launch({name: array.pointer for name, array in memory.items()}, stream)

    return Neighbour(launcher(program.entry), launcher("long_neighbour"))
