"""The kernel before every timed launch of a segment: in a layer a kernel follows another one, never itself.

Launched after themselves, kernels overlap as they never do in a forward: a library's begin early after their own kind.
What a segment costs is what it adds to a stream of neighbours; what a neighbour costs, what it adds to a stream of long
kernels: alone, so short ones might be bound by launches.
"""

from dataclasses import replace

from atoffer_rl.kernels.device_array import zeros
from atoffer_rl.kernels.launch import load_program
from atoffer_rl.kernels.program import KernelProgram
from atoffer_rl.kernels.timing import Neighbour, StreamLaunch

BLOCKS, THREADS = 96, 256
VECTOR_BYTES = 16
LONG_ENTRY = "long_neighbour"
LONG_ROUNDS = 16
"""4.6 us on an H200, several times a launch. Each goes to L2 (`__ldcg`, `__stcg`), as the only one of the neighbour."""
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

extern "C" __global__ void {LONG_ENTRY}(const float4* __restrict__ source, float4* __restrict__ target) {{
    copy<{LONG_ROUNDS}>(source, target);
}}
"""


def neighbour_program() -> KernelProgram:
    """The neighbour's source and launch; the source has the long kernel, too: `LONG_ENTRY`."""
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

    def launcher(entry: str) -> StreamLaunch:
        launchable = load_program(replace(program, entry=entry), cubin)
        return lambda stream: launchable.launch({name: array.pointer for name, array in memory.items()}, stream)

    return Neighbour(launcher(program.entry), launcher(LONG_ENTRY))
