// Blocks of a cluster (sm_90 and later), numbered by rank: waiting for one another, and each other's shared memory.
#pragma once

#include "common.cuh"

namespace atoffer {

// Waits for every thread of the cluster; what they wrote to shared memory is then visible to all of them.
__device__ __forceinline__ void synchronise_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Tells the other blocks that this thread has begun, and that the barriers it started may be used; does not wait.
__device__ __forceinline__ void announce_begun() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tbarrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// Waits until all threads of the cluster have announced themselves: then all blocks have shared memory.
__device__ __forceinline__ void await_begun() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// The address of the block `rank` that `address` is of this block.
__device__ __forceinline__ unsigned remote_address(unsigned address, int rank) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// Stores 16 bytes at a remote address, some time; a barrier of that block, at `barrier`, likewise remote, counts them when
// they are there.
__device__ __forceinline__ void store_remote(unsigned remote, float4 vector, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
                 "f"(vector.x), "f"(vector.y), "f"(vector.z), "f"(vector.w), "r"(barrier)
                 : "memory");
}

// Arrives at a barrier of this block, whose phase ends when so many bytes have come, too.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n\t}" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}

// V floats (1, 2 or 4) in the shared memory of the block `rank`, at the place that `from` is in this block's.
template <int V>
__device__ __forceinline__ void load_remote(float (&result)[V], const float* from, int rank) {
    static_assert(V == 1 || V == 2 || V == 4, "a load moves 4, 8 or 16 bytes");
    const unsigned address = remote_address(shared_address(from), rank);
    if constexpr (V == 4) {
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(result[0]), "=f"(result[1]), "=f"(result[2]), "=f"(result[3])
                     : "r"(address)
                     : "memory");
    } else if constexpr (V == 2) {
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                     : "=f"(result[0]), "=f"(result[1])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(result[0]) : "r"(address) : "memory");
    }
}

}  // namespace atoffer
