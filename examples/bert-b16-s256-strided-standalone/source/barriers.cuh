// Waiting for one another: threads of a block for copies and for each other, blocks for other blocks.
#pragma once

namespace atoffer {

// ---- Barriers in shared memory (sm_80 and later): a phase ends when as many arrivals as were announced have come.

constexpr int kBarrierBytes = 8;

__device__ __forceinline__ void start_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// What this thread wrote to shared memory before is visible to whoever waits for the phase.
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(barrier) : "memory");
}

// Arrives when all copies that this thread has begun are complete; does not wait for them.
__device__ __forceinline__ void arrive_with_copies(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Whether a phase is over; phases alternate between parity 0, the first, and 1. Parity 1 of a new barrier is over.
__device__ __forceinline__ bool phase_over(unsigned barrier, int parity) {
    int over;
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\tselp.s32 %0, 1, 0, p;\n\t}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over;
}

// Waits for the end of a phase.
__device__ __forceinline__ void wait_phase(unsigned barrier, int parity) {
#if __CUDA_ARCH__ >= 900
    int over;
    do {
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.s32 %0, 1, 0, p;\n\t}"
                     : "=r"(over)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!over);
#else
    while (!phase_over(barrier, parity)) continue;
#endif
}

// Waits for the end of a phase that other blocks of the cluster have a part in: what they stored is visible then.
__device__ __forceinline__ void wait_phase_of_cluster(unsigned barrier, int parity) {
    int over;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.s32 %0, 1, 0, p;\n\t}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!over);
}

// Waits for the THREADS threads (whole warps) that name the same barrier, 1 to 15; 0 is __syncthreads.
template <int THREADS>
__device__ __forceinline__ void synchronise_some(int name) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}

// Counts as one of them, and does not wait.
template <int THREADS>
__device__ __forceinline__ void announce_some(int name) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "n"(THREADS) : "memory");
}

// ---- Counts in device memory, between blocks.

// Adds 1; what the warp wrote before its last __syncwarp is visible to whoever sees the new count.
__device__ __forceinline__ void count_released(int* count) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}

__device__ __forceinline__ int load_acquired(const int* count) {
    int seen;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    return seen;
}

}  // namespace atoffer
