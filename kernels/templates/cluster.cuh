// Blocks of a cluster (sm_90 and later): waiting for one another, and each other's shared memory.
#pragma once

#include "common.cuh"

namespace atoffer {

// Counts this thread as one that has come so far; does not wait. What it wrote before, to any block's shared memory, is
// visible to whoever waits.
__device__ __forceinline__ void announce_to_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Waits for every thread of the cluster to have announced itself since the last wait.
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void synchronise_cluster() {
    announce_to_cluster();
    await_cluster();
}

// The address of the cluster's block `rank` that `address` is of this block.
__device__ __forceinline__ unsigned remote_address(unsigned address, int rank) {
    unsigned remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// Stores 16 bytes in another block's shared memory, at a remote address.
__device__ __forceinline__ void store_remote(unsigned remote, float4 vector) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(vector.x), "f"(vector.y),
                 "f"(vector.z), "f"(vector.w)
                 : "memory");
}

// V floats (1, 2 or 4) in the shared memory of the cluster's block `rank`, at the place that `from` is in this block's.
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
