// Small kernels that use the emulated machine rightly and wrongly: see test_emulator.py.
#pragma once

#include "barriers.cuh"
#include "cluster.cuh"
#include "common.cuh"
#include "tf32.cuh"
#include "wgmma.cuh"

namespace atoffer {

constexpr unsigned kMatrixBytes = 16 * 32;
constexpr unsigned kBarrierAt = 2 * kMatrixBytes;

// product (16 x 8, float32) = a (16 x 16, row-major) * b (16 x 8, row-major): through copies, ldmatrix and mma.
__device__ inline void multiply(char* memory, const __half* a, const __half* b, float* product) {
    const unsigned start = shared_address(memory), lane = threadIdx.x;
    if (lane == 0) start_barrier(start + kBarrierAt, kWarpSize);
    __syncwarp();
    copy_async<16>(start + lane * 16, a + lane * 8);
    copy_async<16>(start + kMatrixBytes + lane * 16, b + lane * 8, lane < 16);  // then zeros
    arrive_with_copies(start + kBarrierAt);
    wait_phase(start + kBarrierAt, 0);
    unsigned left[4], right[4];
    load_matrices(left, start + lane % 16 * 32 + lane / 16 * 16);
    load_matrices_transposed(right, start + kMatrixBytes + lane * 16);
    float sum[4] = {};
    multiply_add<__half>(sum, left, right[0], right[1]);
    for (int i = 0; i < 4; ++i) product[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}

// product (16 x 8, float32) = a (columns 0 to 7) * b (rows 0 to 7): in TF32.
__device__ inline void multiply_tf32(const __half* a, const __half* b, float* product) {
    const int row = threadIdx.x / 4, column = threadIdx.x % 4;
    unsigned words[4];
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(to_float(a[(row + i % 2 * 8) * 16 + column + i / 2 * 4]));
    float sum[4] = {};
    multiply_add_tf32(sum, words, __float_as_uint(to_float(b[column * 8 + row])),
                      __float_as_uint(to_float(b[(column + 4) * 8 + row])));
    for (int i = 0; i < 4; ++i) product[(row + i / 2 * 8) * 8 + column * 2 + i % 2] = sum[i];
}

__device__ inline void misuse(int fault, char* memory, const __half* tensor, float* result) {
    const unsigned start = shared_address(memory), lane = threadIdx.x;
    unsigned matrices[4];
    if (fault == 1) copy_async<16>(start + 8, tensor);
    if (fault == 2) copy_async<16>(start, tensor + 4);
    if (fault == 3) copy_async<16>(start, tensor + (1 << 20));
    if (fault == 4) load_matrices(matrices, start + 2 * kMatrixBytes + 16);
    if (fault == 5) wait_phase(start + kBarrierAt, 0);
    if (fault == 6 && lane > 0) __syncthreads();
    if (fault == 7) lane < 16 ? static_cast<void>(__syncwarp()) : static_cast<void>(__any_sync(kFullWarp, 1));
    if (fault == 8) result[128] = 1.0f;
    if (fault == 9) memory[2 * kMatrixBytes + 8] = 1;
    if (fault == 10) *reinterpret_cast<Vector<float, 2>*>(result + 1) = {};
    if (fault == 11) result[0] = result[1 << 20];
}

// What shared memory holds before a copy is waited for.
__device__ inline void read_early(char* memory, const __half* tensor, float* result) {
    char* own = memory + threadIdx.x * 16;
    copy_async<16>(shared_address(own), tensor);
    result[threadIdx.x] = *reinterpret_cast<const float*>(own);
}

// What a thread has of three copies, while PENDING groups may be on their way: the third belongs to no group. Lanes 16 to
// 31 have nothing to copy, and no address.
template <int PENDING>
__device__ inline void read_groups(char* memory, const __half* a, float* result) {
    const unsigned lane = threadIdx.x, to = shared_address(memory) + lane * 16;
    const bool valid = lane < 16;
    const __half* row = valid ? a + lane * 16 : nullptr;
    copy_or_clear<0, 0>(to, row, valid);
    commit_copies();
    copy_or_clear<kMatrixBytes, 16>(to, row, valid);
    commit_copies();
    copy_or_clear<2 * kMatrixBytes, 0>(to, row, valid);
    wait_copies<PENDING>();
    for (int copy = 0; copy < 3; ++copy) {
        const char* here = memory + copy * kMatrixBytes + lane * 16;
        result[copy * kWarpSize + lane] = to_float(*reinterpret_cast<const __half*>(here));
    }
}

// Ones, but for a line that is given up; the last is read from there.
__device__ inline void discard_second_line(float* result) {
    constexpr int kLineFloats = kLineBytes / sizeof(float);
    for (int line = 0; line < 4; ++line) result[line * kLineFloats + threadIdx.x] = 1.0f;
    __syncwarp();
    if (threadIdx.x > 0) return;
    discard_line(result + kLineFloats);
    result[4 * kLineFloats - 1] = result[kLineFloats];
}

// Two blocks, each of which waits for the other.
__device__ inline void take_turns(int* counts, float* result) {
    if (threadIdx.x == 0) {
        count_released(counts + blockIdx.x);
        while (load_acquired(counts + 1 - blockIdx.x) == 0) continue;
        result[blockIdx.x] = 1.0f;
    }
}

// Each block of a cluster of two leaves its number with the other; the second may be `gone` before.
__device__ inline void exchange_numbers(char* memory, bool gone, float* result) {
    const int rank = blockIdx.x % 2;
    const unsigned place = shared_address(memory), barrier = place + kBarrierAt;
    if (gone && rank == 1) return;
    if (threadIdx.x == 0) {
        start_barrier(barrier, 1);
        arrive_expecting(barrier, 16);
    }
    if (!gone) synchronise_cluster();
    for (int i = 0; gone && i < 1000; ++i) emulation::pause();
    if (threadIdx.x > 0) return;
    const float4 own = {static_cast<float>(blockIdx.x), 0.0f, 0.0f, 0.0f};
    store_remote(remote_address(place, 1 - rank), own, remote_address(barrier, 1 - rank));
    wait_phase(barrier, 0);
    result[blockIdx.x] = *reinterpret_cast<const float*>(memory);
}

// product (64 x 64, float32) = a (64 x 16) * b (16 x 64), or times the transpose of b (64 x 16): both in shared memory, as
// panels whose other columns are NaN. A warpgroup's; nothing of it is there before it is waited for.
template <bool TRANSPOSED>
__device__ inline void multiply_panels(char* memory, const __half* a, const __half* b, float* product) {
    const unsigned start = (shared_address(memory) + 1023) / 1024 * 1024;
    const auto place = [&](unsigned panel, int row, int column) {
        return reinterpret_cast<__half*>(emulation::shared_bytes("a panel", start + panel + panel_offset(row, column / 8) +
                                                                 column % 8 * 2, 2));
    };
    constexpr int kRows = TRANSPOSED ? 16 : 64, kColumns = TRANSPOSED ? 64 : 16;
    for (int i = threadIdx.x; i < 64 * 16; i += kWarpgroupSize) {
        *place(0, i / 16, i % 16) = a[i];
        *place(64 * 128, i / kColumns, i % kColumns) = b[i];
    }
    __syncthreads();
    float sum[32];
    for (float& one : sum) one = -1.0f;
    issue_product<__half, 64, TRANSPOSED>(sum, PanelDescriptor(start, 16).at(0),
                                          PanelDescriptor(start + 64 * 128, kRows * 128).at(0), false);
    commit_products();
    if (sum[0] != -1.0f) emulation::fail("a product is there before it is waited for");
    wait_products<0>();
    const int row = threadIdx.x / kWarpSize * 16 + threadIdx.x % kWarpSize / 4;
    for (int i = 0; i < 32; ++i) product[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = sum[i];
}

}  // namespace atoffer
